package advise

// RMM's resources, and policies by their names for programs of which nothing is known.

import "fmt"

// rmm returns RMM's resources, each by the policy that is nearest to it.
func (a *adviser) rmm(has features) []*Candidate {
	pool := limited(nil, func(percent int, total uint64) way {
		w := named(fmt.Sprintf("bfc:preallocate=false,limit=%dB", max(1, total/100*uint64(percent))))
		w.call = []string{"rmm.reinitialize(pool_allocator=True, initial_pool_size=2**21)"}
		w.brief = []string{"pool_allocator=True"}
		return w
	})
	pool.whole, pool.Approximate = true, "RMM's pool grows and divides its blocks in another way"
	list := []*Candidate{fixed(named("platform")), pool}
	if has.pools {
		w := named("async")
		w.call = []string{"rmm.mr.set_current_device_resource(rmm.mr.CudaAsyncMemoryResource())"}
		w.brief = []string{"CudaAsyncMemoryResource()"}
		c := fixed(w)
		c.Approximate = "RMM's own begins with half of the free memory"
		list = append(list, c)
	}
	return list
}

// policies returns policies by name, for a program of which the framework is unknown.
func (a *adviser) policies(has features) []*Candidate {
	limit := func(name, keys string) func(int, uint64) way {
		return func(percent int, _ uint64) way {
			text := percentText(percent)
			w := named(name + ":fraction=" + text + keys)
			w.limits = &Range{Least: text}
			return w
		}
	}
	grow := named("bfc:preallocate=false")
	list := []*Candidate{
		fixed(named("bfc")),
		limited(nil, limit("bfc", "")),
		limited(&grow, limit("bfc", ",preallocate=false")),
	}
	if has.pools {
		list = append(list, fixed(named("async")))
	}
	if has.pages {
		vmm := named("vmm:fraction=.75")
		list = append(list, limited(&vmm, limit("vmm", "")))
	}
	return append(list, fixed(named("platform")))
}
