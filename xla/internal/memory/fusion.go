package memory

// Parts of its operands that a loop fusion reads. The buffers of a tuple that it does not
// read need not live until it runs.
//
// A tuple of two arrays, of 4 KiB and of 4 MiB, is the operand of a fusion whose computation
// gets element 0 of its parameter and nothing else. Then the fusion uses the table and the
// first array, and the second one is dead after its last other user. XLA looks inside of
// loop fusions for that (hlo_rematerialization.cc), and at no others.

import (
	"fmt"
	"slices"

	"gpumem/xla/internal/alias"
	"gpumem/xla/internal/hlo"
)

func isLoopFusion(i *hlo.Instruction) bool {
	if i.Opcode != hlo.Fusion {
		return false
	}
	kind, _ := i.Attribute("kind")
	return kind == "kLoop"
}

// fusionUses reports whether a loop fusion uses one part of operand o, by its place in
// preorder. An operand that it has more than once is used if one is. A fusion without a
// computation is taken to use everything.
func (a *analyzer) fusionUses(f *alias.Flow, fusion, o *hlo.Instruction, sub int) (bool, error) {
	c := fusion.Call("calls")
	if c == nil {
		return true, nil
	}
	uses, err := a.inFusion(c)
	if err != nil {
		return false, err
	}
	for _, n := range f.Numbers(fusion, o) {
		if int(n) >= len(uses) || sub >= len(uses[n]) {
			return false, shapeError(fusion, "its operands are not the parameters of the computation that it calls")
		}
		if uses[n][sub] {
			return true, nil
		}
	}
	return false, nil
}

// readers are the users of an instruction that read each part of its result, in the order
// of its users. Nearly all instructions have one part, or users that treat all parts but the
// first one alike: then two lists are enough. Only where a loop fusion is among the users
// each part has a list of its readers.
type readers struct {
	whole []*hlo.Instruction   // of the first part
	rest  []*hlo.Instruction   // of each other part
	each  [][]*hlo.Instruction // where not nil: by part
}

func (r *readers) of(sub int) []*hlo.Instruction {
	switch {
	case r.each != nil:
		return r.each[sub]
	case sub == 0:
		return r.whole
	}
	return r.rest
}

// readers finds who reads the parts of i's result, which has a number of them: a
// get-tuple-element the table of its operand alone, a loop fusion what it uses. All other
// users read all parts.
func (a *analyzer) readers(f *alias.Flow, i *hlo.Instruction, parts int) (readers, error) {
	r := readers{whole: i.Users}
	if !slices.ContainsFunc(i.Users, isLoopFusion) {
		if parts > 1 {
			for _, u := range i.Users {
				if u.Opcode != hlo.GetTupleElement {
					r.rest = append(r.rest, u)
				}
			}
		}
		return r, nil
	}
	r.each = make([][]*hlo.Instruction, parts)
	for _, u := range i.Users {
		fusion := isLoopFusion(u)
		for sub := range parts {
			if sub > 0 && u.Opcode == hlo.GetTupleElement {
				break
			}
			if fusion {
				used, err := a.fusionUses(f, u, i, sub)
				if err != nil {
					return r, err
				}
				if !used {
					continue
				}
			}
			r.each[sub] = append(r.each[sub], u)
		}
	}
	return r, nil
}

// inFusion finds which parts of its parameters a fused computation reads or returns, by the
// number of the parameter. It is found once for each computation: fusions may share one, and
// each of their operands asks.
func (a *analyzer) inFusion(c *hlo.Computation) ([][]bool, error) {
	if uses, ok := a.fused[c]; ok {
		if uses == nil {
			return nil, fmt.Errorf("computation %s: a fusion in it calls it", c.Name)
		}
		return uses, nil
	}
	a.fused[c] = nil // being looked at: a fusion that calls itself comes by here again
	f, err := alias.AnalyzeComputation(c)
	if err != nil {
		return nil, err
	}
	read := make([]bool, len(f.Values))
	for k, i := range c.Instructions {
		list := f.Parts(alias.Node(k))
		readers, err := a.readers(f, i, len(list))
		if err != nil {
			return nil, err
		}
		// What the root consists of is returned, which counts as read.
		for sub, v := range list {
			read[v] = read[v] || i == c.Root || len(readers.of(sub)) > 0
		}
	}
	uses := [][]bool{}
	for _, p := range c.Parameters() {
		n, ok := f.Node(0, p)
		if !ok {
			return nil, fmt.Errorf("computation %s: a parameter is missing", c.Name)
		}
		own := f.Parts(n) // a parameter defines all its parts, one after the other
		uses = append(uses, read[own[0]:int(own[0])+len(own)])
	}
	a.fused[c] = uses
	return uses, nil
}
