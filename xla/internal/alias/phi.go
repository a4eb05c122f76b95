package alias

// Values that are one of several, where control flow meets.
//
// A while defines its parts, the parameter of its body those of the state, and each is a
// phi: either the part that the loop begins with, or the one that the body returns. Of a
// body that returns part 0 as it got it, the phi of the parameter is the initial value or
// itself, and so the initial value; and so is part 0 of the while. Both values are dropped.
// Part 1, which the body computes, stays: a value of the while, and one of the parameter.
//
// In the loop of the package comment the body changes all parts of the state, so that no phi
// goes: value 10, the array in the parameter of the body, is either value 0, p, or value 13,
// y; so are 5 in the condition and 17, the result. If y returned x as it is, 10 would be 0 or
// itself, and so 0. 5 and 17, which are 0 or 10, would be 0 then, too: the loop would forward
// p, and nothing but the table and the counter would be its own.
//
// resolvePhis works in two passes since phis refer to each other in circles. The first one sends
// values along phis until nothing changes: each phi knows no value, one, or many. Each phi
// goes at most two steps down that list, so that it ends soon. The second one settles what
// became equal only by the first, as inner loops forward what outer ones do.

import "slices"

// resolvePhis replaces the phis that are one value whichever way control came, as
// XLA does (xla/service/hlo_phi_graph.cc): those whose inputs, themselves left
// out, are the same, and those from which, through phis alone, only one value
// that is no phi can be reached.
func (f *Flow) resolvePhis() {
	n := len(f.Values)
	number := make([]int32, n) // 1 + the number of the phi that makes the value
	for k, p := range f.phis {
		number[p.value] = int32(k) + 1
	}
	// became leads from a value to that which it turned out to be, maybe by way of others.
	became := make([]int32, n)
	for v := range became {
		became[v] = int32(v)
	}
	find := func(v int32) int32 {
		for became[v] != v {
			became[v] = became[became[v]]
			v = became[v]
		}
		return v
	}

	for k, v := range f.onlyValues(number) {
		if v >= 0 {
			became[f.phis[k].value] = v
		}
	}

	// What is left may still be forwarded by a loop inside: its phis have become values of
	// the outer loop by now, so that inputs that differed are the same.
	for changed := true; changed; {
		changed = false
		for _, p := range f.phis {
			if became[p.value] != p.value {
				continue
			}
			one, several := int32(-1), false
			for _, v := range p.in {
				if v = find(v); v != p.value {
					several = several || one >= 0 && one != v
					one = v
				}
			}
			if !several && one >= 0 {
				became[p.value], changed = one, true
			}
		}
	}
	// Chains of replacements are followed to their ends by find.
	f.dropReplaced(find)
}

// onlyValues returns, by phi, the one value that is no phi and reaches it, below 0 if there are
// none or many. number is 1 + the number of the phi that makes a value.
func (f *Flow) onlyValues(number []int32) []int32 {
	// Phis whose value changes put those that take it in on the list again.
	const unknown, many = -1, -2
	only := make([]int32, len(f.phis))
	users := make([][]int32, len(f.phis))
	var work []int32
	for k, p := range f.phis {
		only[k] = unknown
		for _, v := range p.in {
			if q := number[v]; q > 0 {
				users[q-1] = append(users[q-1], int32(k))
			}
		}
		work = append(work, int32(k))
	}
	slices.Reverse(work)
	for len(work) > 0 {
		k := work[len(work)-1]
		work = work[:len(work)-1]
		was := only[k]
		for _, v := range f.phis[k].in {
			source := v
			if q := number[v]; q > 0 {
				source = only[q-1]
			}
			if only[k] == unknown {
				only[k] = source
			} else if source != unknown && source != only[k] {
				only[k] = many
			}
		}
		if only[k] != was {
			work = append(work, users[k]...)
		}
	}
	return only
}

// dropReplaced takes the values out that became others and numbers the rest anew, in their old order.
// Positions that had one of those get the one that it became. Nothing else may keep the ID of
// a value while values are still found.
func (f *Flow) dropReplaced(find func(int32) int32) {
	values := f.Values
	renamed := make([]int32, len(values))
	kept := values[:0]
	for k := range values {
		if find(int32(k)) != int32(k) {
			continue
		}
		renamed[k] = int32(len(kept))
		v := values[k]
		v.ID = len(kept)
		kept = append(kept, v)
	}
	for p, v := range f.val {
		f.val[p] = renamed[find(v)]
	}
	f.Values = kept
}
