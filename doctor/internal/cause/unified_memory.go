package cause

// unified_memory: the GPU's memory is the host's, and the host uses it too.

import (
	"math"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

func unifiedMemory(c *view) found {
	if l := c.about("tegra",
		"the allocator of a Jetson, whose GPU has the host's memory, was refused (12 is ENOMEM)"); l != nil {
		return found{sure(955, "the allocator of a Jetson", c.shareMemory(), l...)}
	}
	if l := c.about("nvrm",
		"the driver's kernel module could not get pages of the host's memory, which happens where GPU and "+
			"host share one memory"); l != nil && c.UnifiedDevice() != "" {
		return found{sure(905, "the kernel's driver", c.shareMemory(), l...).certainly("it is the host's memory that ran out")}
	}
	r := c.Last(func(r *account.Refusal) bool { return !r.Mild && r.Layer != statement.LayerHost })
	if r == nil {
		return nil
	}
	spare := "its free memory is what the host can spare at this moment"
	if r.HasFree && r.Total > 0 {
		spare = account.Say("%v of %v free: that is what the host can spare at this moment", r.Free, r.Total)
	}
	if shares := c.SharesMemory(); shares != nil {
		return found{sure(880, "a GPU without memory of its own", c.shareMemory(),
			r.St.Quoted(spare)).and(shares...)}
	}
	if name, ok := account.UnifiedTotal(r.Total); ok && !r.St.HasAny("npu", "xpu", "hip", "mps") {
		return found{sure(880, "a GPU without memory of its own", c.shareMemory(),
			quote(r.St, "%s; a total of %v is %s's, whose memory is the host's", spare, r.Total, name))}
	}
	if c.Uses("metal") && r.Want == 0 && r.Total == 0 && r.LimitTold == 0 {
		return found{sure(880, "a GPU of Apple", c.shareMemory(),
			r.St.Quoted("Metal refused it, whose GPUs have no memory but the host's"))}
	}
	if l := c.about("nvml",
		"PyTorch asks NVML when the driver refused memory, and NVML does not answer: "+
			"as on a Jetson, whose GPU has the host's memory"); l != nil && r.Total == 0 {
		return found{fits(880, "no NVML", c.shareMemory(), seeProcesses, l...).needs(needTotal)}
	}
	return nil
}

// shareMemory is what to do where host and GPU have one memory.
func (c *view) shareMemory() Remedy {
	if c.Uses("metal", "mps") {
		return c.advise("unified").step("end other programs: the memory is the Mac's own, and all of them use it")
	}
	r := Remedy{}
	if g := c.Engine; g != nil && g.AtStart && c.Uses("vllm") {
		f := down(math.Min(float64(g.Free)/float64(g.Total)-.05, .85))
		left := account.Less(g.Total, uint64(number(f)*float64(g.Total)))
		r = r.set("--gpu-memory-utilization", f,
			account.Human(g.Free)+" was free at the start; this leaves the host "+account.Human(left))
	}
	return r.step(
		"the host's page cache and programs take from the same memory: drop the cache before the start (sync; "+
			"echo 3 > /proc/sys/vm/drop_caches), and end what is not needed",
		"leave the host a part: without it the machine hangs before CUDA reports anything")
}
