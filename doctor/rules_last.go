package doctor

// What is said where no rule finds a failure, or no cause of one.

import (
	"fmt"
	"slices"
)

var lastRules = []rule{
	{
		name: "a warning", cause: NonfatalWarning,
		seen:   "lines that say themselves that they are no failure, and no failure",
		not:    "any failure",
		source: "bfc_allocator.cc; cpu_allocator_impl.cc",
		test: func(e *evidence) *finding {
			if e.fails(failures...) || e.fails(CUDAError) || e.has(HostOOMKilled, HostRefused, HostDriver, Setting, OtherFailure) {
				return nil
			}
			for _, w := range []struct {
				kind Kind
				what string
			}{
				{BFCWarning, "the caller can do without this memory, and says so: it may be slower, and goes on"},
				{GarbageCollection, "the pool gives free regions back to ask for a larger one; it goes on"},
				{HostWarning, "a large request on the host that was served"},
				{XLADevice, "an algorithm that was tried did not fit; another is taken"},
				{HostPinned, "without pinned memory the program goes on, with slower copies"},
				{Resharding, "a slow way from one sharding to another; \"rematerialization\" here is not about memory that is short"},
			} {
				if f := e.pick(w.kind, nil); f != nil {
					r := shown(cureWarning, quote(f, w.what))
					r.verdict = VerdictNonfatal
					return r
				}
			}
			return nil
		},
	},
}

// certainty is what is sure where no rule finds a cause.
func (e *evidence) certainty() []string {
	var c []string
	if p := e.pool(); p != nil && p.want > 0 {
		c = append(c, fmt.Sprintf("line %d is the failure: %s was refused", p.refused.Line, human(p.want)))
	} else if f := e.driverRefusal(); f != nil {
		first, last, n := e.ladder()
		if n > 2 {
			c = append(c, fmt.Sprintf("lines %d to %d are one request: each is nine tenths of the one before, from %s down to %s; the driver had less than each of them", first.Line, last.Line, human(first.Want), human(last.Want)))
		} else {
			c = append(c, fmt.Sprintf("the driver refused %s (line %d)", human(f.Want), f.Line))
		}
	}
	if d := e.dump; d != nil && d.Pool > 0 && len(c) == 0 {
		c = append(c, fmt.Sprintf("the dumped pool has %s, of which %s is in use and %s free, in pieces of %s at most", human(d.Pool), human(d.InUse), human(d.Free()), human(d.LargestFree)))
	}
	if f := e.contextOOM(); f != nil {
		c = append(c, "not even a context could be made on the GPU: it was full before this program took any")
		if f.Tells(HasTotal) && f.Total >= saneTotal {
			c = append(c, fmt.Sprintf("the total in line %d is no size: %d is %s below 2^64", f.Line, f.Total, human(-f.Total)))
		}
	}
	limit := e.pick(PoolStats, func(f *Fact) bool { return f.Name == "Limit" })
	inUse := e.pick(PoolStats, func(f *Fact) bool { return f.Name == "InUse" })
	if limit != nil && inUse != nil && limit.Limit > 0 {
		if left := limit.Limit - min(limit.Limit, inUse.InUse); left < limit.Limit/50 {
			c = append(c, fmt.Sprintf("the pool is full: %s of its limit of %s is in use (lines %d and %d)", human(inUse.InUse), human(limit.Limit), limit.Line, inUse.Line))
			if limit.Limit < gib {
				c = append(c, "the limit is small: "+human(limit.Limit)+"; why is not told")
			}
		}
	}
	if f := e.pick(TFCopy, nil); f != nil {
		c = append(c, fmt.Sprintf("a copy to the GPU found no room (line %d)", f.Line))
	}
	if f := e.pick(TFOOM, nil); f != nil {
		if n := tensorBytes(f); n > 0 {
			c = append(c, fmt.Sprintf("the tensor of line %d is %s", f.Line, human(n)))
		}
	}
	if f := e.pick(BFCWarning, nil); f != nil && e.fails(failures...) {
		c = append(c, fmt.Sprintf("line %d is a warning, not the failure", f.Line))
	}
	if h := e.handle(); h != nil {
		c = append(c, h.certain()...)
		if h.from != nil && !h.short() && !h.plenty() && !h.scarce() {
			c = append(c, fmt.Sprintf("%d %% free is what JAX's default pool leaves by design (a quarter, less a context), and a library would fit into it", percent(h.left, h.total)))
		}
	}
	if f := e.pick(CUDAError, func(f *Fact) bool { return isOOM(f.Code + f.Value) }); f != nil && len(c) == 0 {
		c = append(c, fmt.Sprintf("the driver refused memory (line %d); whose request it was is not told", f.Line))
	}
	if t := e.torch(); t != nil && len(c) == 0 {
		c = append(c, fmt.Sprintf("PyTorch was refused %s (line %d)", human(t.want), t.fact.Line))
	} else if f := e.pick(TorchOOM, nil); f != nil && len(c) == 0 {
		c = append(c, fmt.Sprintf("PyTorch was refused memory (line %d)", f.Line))
	}
	return slices.Compact(c)
}

// unknowns are the facts that would help where no rule finds a cause.
func (e *evidence) unknowns() []missing {
	if !e.fails(failures...) && !e.fails(CUDAError) {
		return nil
	}
	var m []missing
	if e.total().bytes == 0 {
		m = append(m, needTotal)
	}
	if _, told := e.others(); !told {
		m = append(m, needProcesses)
	}
	if p := e.pool(); p != nil && p.inUse.bytes == 0 {
		m = append(m, needPoolReport)
	}
	return m
}
