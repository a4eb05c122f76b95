package gap

// Instructions that gap splitting may compute again.

import (
	"slices"

	"gpumem/hlo"
	"gpumem/hlo/passes"
)

// rules say what gap splitting may compute again.
type rules struct {
	collectives bool // those without an effect, and random bits made from a state
	effects     passes.Effects
	apart       map[*hlo.Computation]bool // known to have such collectives or random bits, or none
}

func newRules(collectives bool) *rules {
	return &rules{collectives, passes.Effects{}, map[*hlo.Computation]bool{}}
}

// allow reports whether an instruction may be computed again. Collectives have to
// run alike on all devices, and random bits are the same again only by their state: neither
// is unless asked, nor what has them inside. Calls of pure computations are, and
// annotations of sharding, which are no work.
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
