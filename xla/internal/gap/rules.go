package gap

// Instructions that gap splitting may recompute.
//
// XLA's own pass (hlo.Effects.Recomputable) is the measure, with three exceptions. Calls of
// computations without a side effect and copies may be recomputed here, since they give the
// same result. Asynchronous halves may not, as a start has one end. And what has to run alike
// on all devices, or would draw other random bits, needs leave by Options.Collectives: a
// plan is made for one module, but each device may plan for itself, with another result.

import (
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
)

// rules decide what may be recomputed. What they find out about computations is kept for the
// module, as fusions and calls may share one.
type rules struct {
	collectives bool // also those without a side effect, and random bits made from a state
	effects     hlo.Effects
	apart       hlo.Effects // here of computations with collectives or random bits
	never       hlo.Effects // here of computations with what is never recomputed by itself
}

func newRules(collectives bool) *rules {
	return &rules{collectives, hlo.Effects{}, hlo.Effects{}, hlo.Effects{}}
}

// allow reports whether an instruction may be recomputed. Collectives have to run alike on
// all devices, and random bits are the same only with the same state: both, and what has
// them inside, are recomputed only with rules.collectives. Calls of pure computations may
// be recomputed, and annotations of sharding, which compute nothing. What holds for an
// instruction holds inside of what it calls, too.
func (r *rules) allow(i *hlo.Instruction) bool {
	if !r.collectives && r.isApart(i) || r.isNever(i) {
		return false
	}
	switch i.Opcode {
	case hlo.Call, hlo.Copy, hlo.CustomCall:
		return !r.effects.Of(i)
	}
	return r.effects.Recomputable(i)
}

// runsOnce reports whether an instruction computes something and never runs again, neither by gap
// splitting nor by XLA's pass.
func (r *rules) runsOnce(i *hlo.Instruction) bool {
	if i.Opcode == hlo.Parameter || i.Opcode == hlo.Constant || memory.HandsOn(i) {
		return false
	}
	return !r.allow(i) && !r.effects.Recomputable(i)
}

// isNever reports whether an instruction is never recomputed, or something that it calls: loops,
// conditionals, custom calls but annotations, and asynchronous halves.
func (r *rules) isNever(i *hlo.Instruction) bool {
	switch i.Opcode {
	case hlo.While, hlo.Conditional:
		return true
	case hlo.CustomCall:
		if target, _ := i.Attribute("custom_call_target"); target != `"Sharding"` {
			return true
		}
	}
	return i.Opcode.IsAsyncStart() || i.Opcode.IsAsyncUpdate() || i.Opcode.IsAsyncDone() || r.never.Calls(i, r.isNever)
}

// isApart reports whether an instruction is a collective or makes random bits, or what it
// calls does. The list has those without a side effect: the others, such as rng, are never
// recomputed, whatever the options say.
func (r *rules) isApart(i *hlo.Instruction) bool {
	switch i.Opcode {
	case hlo.AllReduce, hlo.AllGather, hlo.ReduceScatter, hlo.AllToAll, "ragged-all-to-all",
		hlo.CollectivePermute, hlo.CollectiveBroadcast, hlo.RngBitGenerator:
		return true
	}
	return r.apart.Calls(i, r.isApart)
}
