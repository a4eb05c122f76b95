package examples_test

import (
	"fmt"
	"slices"
	"testing"

	"gpumem/record/replay"
	"gpumem/size"
)

// What JAX's page says of its allocators, and what ours does about it, on the
// shipped recordings.

// results are by the policy's words.
func results(rep *replay.Report) map[string]*replay.Result {
	m := map[string]*replay.Result{}
	for _, r := range rep.Results {
		m[r.Policy] = r
	}
	return m
}

var all = append(slices.Clone(byDefault), "elastic:eager=true")

// byDefault are the policies of a command that names none.
var byDefault = []string{"jax", "jax:preallocate=false", "platform", "async", "vmm", "elastic"}

// Growth is refused where a preallocated pool passes; elastic passes on every
// device on which either does, and on smaller ones.
func TestElasticFitsWhereGrowthFails(t *testing.T) {
	for n := uint64(11); n <= 19; n++ {
		r := results(run(t, "fragmentation", fmt.Sprintf("sim:%dGiB", n), false, "jax:preallocate=false", "elastic"))
		if r["jax:preallocate=false"].Fits || !r["elastic"].Fits {
			t.Errorf("on %d GiB growth fits %v, elastic %v; want no, yes", n, r["jax:preallocate=false"].Fits, r["elastic"].Fits)
		}
	}
}

// Elastic needs the smallest device of all, hardly larger than what lives.
func TestElasticNeedsLeast(t *testing.T) {
	for _, name := range []string{"training", "fragmentation", "platform"} {
		rep := run(t, name, "sim:24GiB", true, "jax", "platform", "vmm", "elastic")
		r := results(rep)["elastic"]
		if r.Smallest == nil || float64(*r.Smallest) > 1.01*float64(r.LowerBound) {
			t.Errorf("%s: elastic needs %v bytes, and any allocator %d; want at most 1 %% more", name, r.Smallest, r.LowerBound)
			continue
		}
		for _, o := range rep.Results {
			if o.Smallest != nil && *o.Smallest < *r.Smallest {
				t.Errorf("%s: %s needs %s, elastic %s", name, o.Policy, size.Format(*o.Smallest), size.Format(*r.Smallest))
			}
		}
	}
}

// Platform holds little and is slowest. Eager elastic holds less in the mean.
// Lazy elastic holds about as much as is live at most, calls the driver a
// fraction as long, hardly ever after the start, and gives back at idle what
// platform gives back.
func TestElasticAgainstPlatform(t *testing.T) {
	for _, name := range []string{"training", "fragmentation", "platform"} {
		rep := run(t, name, "sim:24GiB", false, all...)
		r := results(rep)
		lazy, eager, platform, jax := r["elastic"], r["elastic:eager=true"], r["platform"], r["jax"]
		if eager.HeldMean >= platform.HeldMean {
			t.Errorf("%s: eager elastic holds %s in the mean, platform %s", name, size.Format(uint64(eager.HeldMean)), size.Format(uint64(platform.HeldMean)))
		}
		if eager.HeldPeak > platform.HeldPeak {
			t.Errorf("%s: eager elastic holds %s at most, platform %s", name, size.Format(eager.HeldPeak), size.Format(platform.HeldPeak))
		}
		if float64(lazy.HeldPeak) > 1.3*float64(rep.Trace.PeakLive) {
			t.Errorf("%s: lazy elastic holds %s at most, of which %s lives", name, size.Format(lazy.HeldPeak), size.Format(rep.Trace.PeakLive))
		}
		if lazy.HeldIdle > platform.HeldIdle || lazy.HeldIdle >= jax.HeldIdle {
			t.Errorf("%s: at idle lazy elastic holds %s, platform %s, jax %s", name,
				size.Format(lazy.HeldIdle), size.Format(platform.HeldIdle), size.Format(jax.HeldIdle))
		}
		if lazy.DriverSeconds > platform.DriverSeconds/10 {
			t.Errorf("%s: lazy elastic spends %.3g s in the driver, platform %.3g", name, lazy.DriverSeconds, platform.DriverSeconds)
		}
		if name != "fragmentation" && lazy.LateAllocs*50 > rep.Trace.Allocs { // that one needs more in every step
			t.Errorf("%s: after the first events %d of %d allocations called the driver", name, lazy.LateAllocs, rep.Trace.Allocs)
		}
	}
}

// Async fragments in another way than the pool, so it breaks at another point;
// it takes nothing beforehand; vmm never fragments but keeps what was freed, and
// is capped by its fraction.
func TestAsyncAndVMM(t *testing.T) {
	r := results(run(t, "fragmentation", "sim:16GiB", true, "jax", "async", "vmm", "vmm:fraction=.75"))
	jax, async, vmm, capped := r["jax"], r["async"], r["vmm"], r["vmm:fraction=.75"]
	if !jax.Fits || async.Fits || *async.Smallest == *jax.Smallest {
		t.Errorf("jax fits %v from %d bytes on, async %v from %d; want yes, no, and another size", jax.Fits, *jax.Smallest, async.Fits, *async.Smallest)
	}
	if async.DriverCalls < 1000*jax.DriverCalls {
		t.Errorf("async calls the driver %d times, jax %d", async.DriverCalls, jax.DriverCalls)
	}
	if !vmm.Fits || vmm.HeldMean <= r["jax"].HeldMean/2 {
		t.Errorf("vmm fits %v and holds %s in the mean", vmm.Fits, size.Format(uint64(vmm.HeldMean)))
	}
	if limit := uint64(12 * gib); capped.HeldPeak > limit || capped.Stats.BytesLimit != limit || capped.HeldPeak >= vmm.HeldPeak {
		t.Errorf("vmm with a fraction of .75 holds %s, its limit is %s", size.Format(capped.HeldPeak), size.Format(capped.Stats.BytesLimit))
	}
}
