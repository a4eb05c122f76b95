package memory

// What a loop fusion does not read, it does not use: the buffers of a tuple that
// is its operand need not all live until it runs.

import (
	"fmt"

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

// fusionUses says whether a loop fusion uses one part of operand o, by its place in
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
	for n, x := range fusion.Operands {
		if x != o {
			continue
		}
		if n >= len(uses.read) || sub >= len(uses.read[n]) {
			return false, shapeError(fusion, "its operands are not the parameters of the computation that it calls")
		}
		if uses.read[n][sub] {
			return true, nil
		}
	}
	return false, nil
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
			if sub, ok := offset(i.Shape, d.index); ok && i.Parameter >= 0 && sub < len(uses.read[i.Parameter]) {
				uses.read[i.Parameter][sub] = true
			}
		}
	}
	for k, i := range c.Instructions {
		for sub, q := range p.of[k] {
			if i == c.Root {
				read(q)
			}
			for _, u := range i.Users {
				if u.Opcode == hlo.GetTupleElement && sub > 0 {
					continue
				}
				if isLoopFusion(u) {
					used, err := a.fusionUses(u, i, sub)
					if err != nil {
						return nil, err
					}
					if !used {
						continue
					}
				}
				read(q)
				break
			}
		}
	}
	a.fused[c] = uses
	return uses, nil
}
