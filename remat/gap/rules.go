package gap

// Instructions that gap splitting may recompute.

import (
	"slices"

	"gpumem/hlo"
	"gpumem/hlo/passes"
)

// rules decide what may be recomputed.
type rules struct {
	collectives bool // also those without a side effect, and random bits made from a state
	effects     passes.Effects
	apart       map[*hlo.Computation]bool // whether it has collectives or random bits, as far as known
}

func newRules(collectives bool) *rules {
	return &rules{collectives, passes.Effects{}, map[*hlo.Computation]bool{}}
}

// allow reports whether an instruction may be recomputed. Collectives have to run alike on
// all devices, and random bits are the same only with the same state: both, and what has
// them inside, are recomputed only with rules.collectives. Calls of pure computations may
// be recomputed, and annotations of sharding, which compute nothing.
func (r *rules) allow(i *hlo.Instruction) bool {
	if !r.collectives && r.isApart(i) {
		return false
	}
	switch i.Opcode {
	case hlo.Call, hlo.Copy:
		return !r.effects.Of(i)
	case hlo.CustomCall:
		target, _ := i.Attribute("custom_call_target")
		return target == `"Sharding"` && !r.effects.Of(i)
	}
	return !i.Opcode.IsAsyncStart() && !i.Opcode.IsAsyncDone() && r.effects.Recomputable(i)
}

// isApart reports whether an instruction is a collective or makes random bits, or what it
// calls does.
func (r *rules) isApart(i *hlo.Instruction) bool {
	switch i.Opcode {
	case hlo.AllReduce, hlo.AllGather, hlo.ReduceScatter, hlo.AllToAll, hlo.CollectivePermute, hlo.CollectiveBroadcast, "ragged-all-to-all", hlo.RngBitGenerator:
		return true
	}
	for _, c := range i.Called() {
		has, known := r.apart[c]
		if !known {
			r.apart[c] = false // for one that calls itself
			has = slices.ContainsFunc(c.Instructions, r.isApart)
			r.apart[c] = has
		}
		if has {
			return true
		}
	}
	return false
}
