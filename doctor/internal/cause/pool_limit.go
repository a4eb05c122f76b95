package cause

// pool_limit: the pool reached its own limit.

import (
	"fmt"
	"math"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

func poolLimit(c *view) (all []Explanation) {
	if st := c.About("blocklimit"); st != nil {
		all = append(all, sure(725, "a limit on one allocation", c.splitBlock(),
			st.Quoted("the driver has a limit on one allocation, whatever is free")))
	}
	if st := c.About("workspace"); st != nil {
		all = append(all, sure(687, "a library's own workspace", largerWorkspace,
			st.Quoted("it is a workspace of a fixed size that is too small, and not the GPU")))
	}
	all = append(all, c.reportLimit()...)
	if r := c.bare; r != nil && c.bareXLA() {
		all = append(all, fits(212, "a request and nothing more", c.raiseLimit(r.Want), seeReport,
			r.St.Quoted(r.Refused())).needs(needTotal, needReport))
	}
	return append(all, c.compiledLimit()...)
}

// splitBlock is what to do about a driver's limit on one allocation.
func (c *view) splitBlock() Remedy {
	if c.About("blocklimit").HasAny("platform") { // the words of PyTorch for Intel's GPUs
		return intelBlock
	}
	return c.advise("batch", "cache").step("no setting of a pool lifts this limit: the one buffer has to be smaller, or in parts")
}

// largerWorkspace is what to do about FlashInfer's workspace; flashinfer-ai/flashinfer#1357.
var largerWorkspace = steps("give FlashInfer a larger workspace: SGLANG_FLASHINFER_WORKSPACE_SIZE=BYTES (SGLang), "+
	"VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=BYTES (vLLM); 536870912 is enough for most models",
	"or ask for less at once: a smaller prefill (--chunked-prefill-size in SGLang, --max-num-batched-tokens in vLLM)")

// reportLimit is for the pool of XLA or TensorFlow, by its report.
func (c *view) reportLimit() found {
	p := c.poolAccount()
	switch {
	case p == nil || p.above(c):
		return nil
	case c.poolFull(p) && c.total.Bytes == 0:
		x := fits(438, "the pool is at its limit", c.raiseLimit(p.InUse.Bytes+p.Want), giveState,
			quote(p.Refused.St, "%v requested", p.Want),
			p.Limit.From,
			p.InUse.From).needs(needTotal).only()
		return found{x.certainly(account.Say("the pool is full: %v of its limit of %v is in use, and %v more was requested",
			p.InUse.Bytes, p.Limit.Bytes, p.Want))}
	case c.poolFull(p) && !c.poolAboveGPU(p):
		var outside []string
		if n := account.Less(c.total.Bytes, p.Limit.Bytes); n > 0 { // else the pool is of unified memory
			outside = []string{account.Human(n) + " of the GPU lies outside of the pool"}
		}
		return found{sure(436, "the pool is at its limit", c.raiseLimit(p.InUse.Bytes+p.Want),
			quote(p.Refused.St, "%v requested", p.Want)).and(lines([]statement.Evidence{p.Limit.From, p.InUse.From},
			c.totalLine())...).
			only().
			certainly(outside...)}
	}
	return nil
}

// compiledLimit is for a program whose size the compiler tells.
func (c *view) compiledLimit() found {
	k, p, total := c.Compiled, c.Pool, c.total.Bytes
	usual, part, whose := c.Usual(k.Buffers.Bytes > 0)
	b := k.Buffers
	switch {
	case c.rematHolds():
	case b.Bytes > 0 && (b.Bytes > account.LargestGPU || account.AboveGPU(b.Bytes, total)):
	case b.Bytes > 0 && total > 0 && b.Bytes > usual:
		return found{sure(463, "the program's buffers above the pool", c.raiseLimit(b.Bytes),
			with(b, "the program needs %v; its pool may take %s of %v %s, which is %v", b.Bytes, part, total, whose,
				usual),
			c.totalLine()[0])}
	case b.Bytes > 0 && total > 0 && account.AboveOwn(b.Bytes, c.OwnUsed()):
		return found{sure(462, "the program's buffers above its pool", c.raiseLimit(b.Bytes),
			with(b, "the program needs %v for its buffers alone", b.Bytes),
			statement.Evidence{Text: fmt.Sprintf("devices.processes: %d bytes of its own", c.OwnUsed()),
				Reading: account.Say("the program's pool and context have %v, and the GPU %v", c.OwnUsed(), total)})}
	case b.Bytes > 0 && k.Small:
	case b.Bytes > 0 && total == 0:
		return found{fits(452, "the program's buffers", c.raiseLimit(b.Bytes), giveState,
			with(b, "the program needs %v for its buffers alone", b.Bytes)).needs(needTotal, needEnv).
			certainly("the program's buffers take " + account.Human(b.Bytes) + " together, by the compiler's own count")}
	case b.Bytes > 0 || p == nil || p.Refused == nil || p.Limit.Bytes > 0 && p.InUse.Bytes > 0:
	case k.Announced.Bytes > 0 && p.Want > k.Announced.Bytes && !c.announcedAbove():
		l := []statement.Evidence{with(k.Announced, "the pool may have %v", k.Announced.Bytes),
			quote(p.Refused.St, "%v in one piece is more", p.Want)}
		if total > 0 {
			return found{sure(450, "a request above the pool", c.raiseLimit(p.Want), l...).and(c.totalLine()...).only()}
		}
		return found{fits(450, "a request above the pool", c.raiseLimit(p.Want), giveState,
			l...).needs(needTotal).only()}
	case total > 0 && c.Uses("jax") && p.Want > usual && c.poolAccount() != nil:
		return found{sure(425, "a request above the pool", c.raiseLimit(p.Want),
			quote(p.Refused.St, "%v in one piece is more than the pool's %s of %v", p.Want, part, total)).
			and(c.totalLine()...).only()}
	}
	if used, of := c.GPUUsed(); used > 0 && b.Bytes == 0 {
		if l := c.ReportPiece(); l.Line > 0 && c.usedIsPart(used, of) {
			l.Reading = "a pool's report, which is printed when the pool refuses a request"
			return found{sure(448, "the GPU is used up to the pool's part", c.raiseLimit(used+used/10), l,
				inUse(used, "%v of %v is in use: that is the pool's share, and the rest of the GPU is free",
					used, of)).only()}
		}
	}
	return nil
}

// usedIsPart reports whether what is in use is the pool's part of the GPU.
func (c *view) usedIsPart(used, total uint64) bool {
	f, _ := c.Fraction()
	return math.Abs(float64(used)/float64(total)-f) < .02
}

// announcedAbove reports whether a request above the announced pool is above the GPU as well, or
// above what a limit may be raised to and leave libraries their room.
func (c *view) announcedAbove() bool {
	total := c.total.Bytes
	return total > 0 && float64(c.Pool.Want) > account.NearlyAll*float64(total)
}

// raiseLimit raises the limit of XLA's or TensorFlow's pool to what is needed, in bytes.
func (c *view) raiseLimit(needed uint64) Remedy {
	total := c.total.Bytes
	switch {
	case !c.onJAX() && !c.Uses("exla"):
		return c.advise("limit")
	case total == 0:
		return c.fraction("0.95", "if the GPU has more than the pool's limit").
			step(when(c.sharedCode(),
				"in TensorFlow, whose code has the same words: a limit is set in code, by per_process_gpu_memory_fraction or memory_limit"),
				"raise the limit where the GPU has more than that; where it has not, make the program smaller: "+
					"batch, sequence, sharding, jax.checkpoint")
	}
	value := up(1.05 * float64(needed) / float64(total))
	unified := c.Unified()
	if most := math.Min(float64(account.Less(total, account.FirstLibrary+account.ContextMost/4))/float64(total),
		account.NearlyAll); !unified && number(value) > most {
		value = down(most)
	}
	pool := uint64(number(value) * float64(total))
	if unified {
		r := c.fraction(value, account.Say("a pool of %v in unified memory, of which the GPU holds %v at a time: slow, but it runs",
			pool, total))
		name, _ := c.FractionName()
		return r.set("TF_FORCE_UNIFIED_MEMORY", "1", "XLA reads it too: a pool above the GPU's memory needs "+
			"it").check(c.jaxCheck(name + "=" + value + " TF_FORCE_UNIFIED_MEMORY=1"))
	}
	r := c.fraction(value, account.Say("a pool of %v: %v are needed, and %v of the GPU's %v are left to libraries",
		pool, needed, account.Less(total, pool), total))
	set := c.Env[account.Prealloc]
	return r.step(when(needed > pool,
		"this is close to the whole GPU: a smaller batch or jax.checkpoint is the safer way"),
		when(set != "" && c.Grows(),
			"XLA_PYTHON_CLIENT_PREALLOCATE="+set+" does not raise the limit: a growing pool has the same one"))
}
