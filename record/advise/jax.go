package advise

// JAX's settings, by release.

import (
	"fmt"
	"slices"
	"strings"

	"gpumem/policy"
)

const (
	jaxFraction    = "XLA_CLIENT_MEM_FRACTION"
	jaxOldFraction = "XLA_PYTHON_CLIENT_MEM_FRACTION" // in releases that do not read the other
	jaxPreallocate = "XLA_PYTHON_CLIENT_PREALLOCATE=false"
	jaxAllocator   = "XLA_PYTHON_CLIENT_ALLOCATOR="
	// jaxNoPages has JAX take a GPU without virtual memory management.
	jaxNoPages = "XLA_FLAGS=--xla_gpu_experimental_vmm_disabled=true"
)

// jaxSettings are those of one release on one card.
type jaxSettings struct {
	*adviser
	has      features
	base     []string // set in every candidate
	fraction string   // the variable
}

// jax returns the candidates of a release of JAX: those settings that it reads. The error
// is that the release refuses the card.
func (a *adviser) jax(has features) ([]*Candidate, error) {
	j := jaxSettings{adviser: a, has: has, fraction: a.fractionOf()}
	if _, ok := a.read(has); !ok {
		j.base = []string{jaxNoPages}
		if _, ok := a.read(has, j.base...); !ok {
			return nil, a.refusesCard()
		}
	}
	name := a.source.release().String()
	plain, _ := j.way(name)
	a.ofFree = plain.policy.Of == policy.Free
	list := []*Candidate{fixed(plain), limited(nil, j.limit(name+":"))}
	if w, ok := j.way(name+":preallocate=false", jaxPreallocate); ok {
		list = append(list, limited(&w, j.limit(name+":preallocate=false,", jaxPreallocate)))
	}
	if w, ok := j.async(); ok && has.pools {
		list = append(list, fixed(w))
	}
	if w, ok := j.way("vmm:fraction=.75", jaxAllocator+"vmm"); ok && has.pages && w.policy.Kind == policy.VMM {
		list = append(list, limited(&w, j.limit("vmm:", jaxAllocator+"vmm")))
	}
	// In some releases platform is a growing pool.
	if w, ok := j.way("platform", jaxAllocator+"platform"); ok && w.policy.Kind == policy.Platform {
		list = append(list, fixed(w))
	}
	return list, nil
}

// refusesCard is the error of a release that does not run on the card.
func (a *adviser) refusesCard() error {
	return fmt.Errorf("%s refuses a GPU without virtual memory management", a.source.release())
}

// async returns the driver's pool, without preallocation if the release can do that.
func (j jaxSettings) async() (way, bool) {
	w, ok := j.way("", jaxAllocator+"cuda_async", jaxPreallocate)
	if w.policy.Preallocate {
		w, ok = j.way("", jaxAllocator+"cuda_async")
	}
	w.policy.Spec = asyncSpec(w.policy)
	return w, ok && w.policy.Kind == policy.Async
}

// asyncSpec returns a name for the driver's pool that keeps as much. TensorFlow's, which
// leaves a reserve of the card, has none; async is near to it.
func asyncSpec(p policy.Policy) string {
	if p.Fraction == 0 && p.Limit == 0 && p.AsyncKeep {
		return "async"
	}
	if p.Preallocate || p.AsyncKeep {
		return fmt.Sprintf("async:fraction=%g,of=%s,preallocate=%v", p.Fraction, p.Of, p.Preallocate)
	}
	return "async:limit=1B" // next to nothing
}

// way returns the policy of an environment under a name. ok is false if the release does
// not read it so.
func (j jaxSettings) way(spec string, set ...string) (w way, ok bool) {
	set = append(slices.Clone(j.base), set...)
	p, ok := j.read(j.has, set...)
	p.Spec = spec
	w = way{policy: p, set: set}
	shown := set[len(j.base):]
	if len(shown) == 0 {
		shown = set
	}
	for _, s := range shown {
		for _, prefix := range []string{"XLA_PYTHON_CLIENT_", "XLA_CLIENT_", "XLA_FLAGS=--xla_gpu_experimental_"} {
			s = strings.TrimPrefix(s, prefix)
		}
		w.brief = append(w.brief, s)
	}
	return w, ok
}

// limit returns ways with a fraction, whose names begin with spec.
func (j jaxSettings) limit(spec string, set ...string) func(int, uint64) way {
	return func(percent int, _ uint64) way {
		text := percentText(percent)
		w, _ := j.way(spec+"fraction="+text, append(slices.Clone(set), j.fraction+"="+text)...)
		w.limits = &Range{Least: text}
		return w
	}
}

// fractionOf returns the variable of a fraction in the release.
func (a *adviser) fractionOf() string {
	if _, ok := a.read(features{pages: true}, jaxFraction+"=.50"); ok {
		return jaxFraction
	}
	return jaxOldFraction
}
