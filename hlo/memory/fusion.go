package memory

// Parts of its operands that a loop fusion reads. The buffers of a tuple that it does not
// read need not live until it runs.

import (
	"fmt"
	"slices"

	"gpumem/hlo"
)

// A fusedUses says which parts of its parameters a fused computation reads or returns.
type fusedUses struct {
	read [][]bool // by number of the parameter
}

func isLoopFusion(i *hlo.Instruction) bool {
	if i.Opcode != hlo.Fusion {
		return false
	}
	kind, _ := i.Attribute("kind")
	return kind == "kLoop"
}

// fusionUses reports whether a loop fusion uses one part of operand o, by its place in
// preorder. An operand that it has more than once is used if one is.
func (a *analyzer) fusionUses(fusion, o *hlo.Instruction, sub int) (bool, error) {
	c := fusion.Call("calls")
	if c == nil {
		return true, nil
	}
	uses, err := a.inFusion(c)
	if err != nil {
		return false, err
	}
	for _, n := range a.numbers(fusion, o) {
		if int(n) >= len(uses.read) || sub >= len(uses.read[n]) {
			return false, shapeError(fusion, "its operands are not the parameters of the computation that it calls")
		}
		if uses.read[n][sub] {
			return true, nil
		}
	}
	return false, nil
}

// readers are the users of an instruction that read each part of its result, in the order
// of its users.
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
// get-tuple-element the table of its operand alone, a loop fusion what it uses.
func (a *analyzer) readers(i *hlo.Instruction, parts int) (readers, error) {
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
				used, err := a.fusionUses(u, i, sub)
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

// inFusion finds what a fused computation reads of its parameters.
func (a *analyzer) inFusion(c *hlo.Computation) (*fusedUses, error) {
	if uses, ok := a.fused[c]; ok {
		if uses == nil {
			return nil, fmt.Errorf("computation %s: a fusion in it calls it", c.Name)
		}
		return uses, nil
	}
	a.fused[c] = nil // being looked at
	// The computation with the fusion is still being analyzed.
	place, base := a.place, a.base
	a.place = nil
	defer func() { a.place, a.base = place, base }()
	p, err := a.pointsTo(c)
	if err != nil {
		return nil, err
	}
	uses := &fusedUses{}
	for _, q := range c.Parameters() {
		if q == nil {
			return nil, fmt.Errorf("computation %s: a parameter is missing", c.Name)
		}
		uses.read = append(uses.read, make([]bool, countParts(q.Shape)))
	}
	read := func(q int32) {
		d := p.parts[q]
		if i := c.Instructions[d.definer]; i.Opcode == hlo.Parameter && i.Parameter < len(uses.read) {
			if sub, ok := a.places.offset(i.Shape, d.index); ok && i.Parameter >= 0 && sub < len(uses.read[i.Parameter]) {
				uses.read[i.Parameter][sub] = true
			}
		}
	}
	for k, i := range c.Instructions {
		readers, err := a.readers(i, len(p.of[k]))
		if err != nil {
			return nil, err
		}
		for sub, q := range p.of[k] {
			if i == c.Root || len(readers.of(sub)) > 0 {
				read(q)
			}
		}
	}
	a.fused[c] = uses
	return uses, nil
}
