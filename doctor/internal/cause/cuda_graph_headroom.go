package cause

// cuda_graph_headroom: no room was left for CUDA graphs, which the driver keeps outside of every
// pool, or which an engine captures when its cache has taken its part.

import (
	"fmt"
	"math"
	"strings"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

func graphHeadroom(c *view) (all []Explanation) {
	if r := c.Last(func(r *account.Refusal) bool { return r.Layer == statement.LayerGraph && !r.Mild }); r != nil {
		all = append(all, sure(860, "graphs without room", c.fewerGraphs(),
			r.St.Quoted("the driver keeps a graph outside of the pool, and had no more for it")))
	}
	r := c.Last(func(r *account.Refusal) bool {
		small := r.Want == 0 || c.Shortfall == nil && account.FewForCapture(r.Want)
		return r.Capture != nil && small && r.Total == 0 && !r.Mild && (r.Layer == statement.LayerDriver || r.Layer == statement.LayerPool)
	})
	if r != nil {
		all = append(all, sure(855, "an error while graphs are captured", c.fewerGraphs(),
			r.Capture.Quoted("CUDA graphs are captured"),
			r.St.Quoted("the driver keeps graphs outside of every pool, and had no more")))
	}
	return all
}

// fewerGraphs makes fewer graphs, or leaves them room.
func (c *view) fewerGraphs() Remedy {
	if c.onJAX() && c.Uses("jax") {
		return c.lessFraction(.05, "an instantiated graph takes memory of the driver, outside of the pool").
			step(letJAXGrow, "or make no graphs: XLA_FLAGS=--xla_gpu_enable_command_buffer=")
	}
	return c.advise("graphs", "beside")
}

// lessCache leaves more room beside an engine's cache, by as much as was lacking where that is
// known.
func (c *view) lessCache(s *account.Shortfall) Remedy {
	if c.Uses("sglang") || strings.Contains(s.Capture.Text, "CudaGraphRunner") || strings.Contains(s.Capture.Text, "Capture cuda graph") {
		value, why := "0.8", "lower what you use now by .05"
		if f := c.Number("mem_fraction_static"); f > .1 {
			value, why = down(f-.05), fmt.Sprintf("it is %v now: this is .05 less", f)
		}
		return c.advise("graphs").set("--mem-fraction-static", value,
			"SGLang's share for weights and cache; graphs take memory beside it; "+why)
	}
	if !c.Uses("vllm") {
		return c.fewerGraphs()
	}
	share, now := c.Number("gpu_memory_utilization"), "the value that you use (0.9 by default; 0.92 since vLLM 0.20)"
	if share > 0 {
		now = fmt.Sprintf("the %v of now", share)
	} else {
		share = .9
	}
	value, why := down(share-.03), "graphs take memory beside the cache: take three hundredths off "+now
	if s.GPU > 0 {
		reserve := uint64(256 * statement.Mib)
		part := float64(s.Want+reserve) / float64(s.GPU)
		value = down(math.Max(share-part, .1))
		why = account.Say("%v and a reserve of %v are %.0f %% of %v: take that off %s", s.Want, reserve,
			math.Ceil(100*part), s.GPU, now)
	}
	return c.advise("graphs").set("--gpu-memory-utilization", value, why)
}
