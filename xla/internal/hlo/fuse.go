package hlo

// A light fusion, so that a plan's figures hold for programs as they run:
// XLA computes chains of elementwise operations in one kernel, and what lies
// between them takes no memory.

import (
	"fmt"
	"slices"
)

// maxFused is how many instructions one fusion has at most: random bits (threefry) take some 150.
const maxFused = 256

// Fuse puts elementwise operations, with the broadcasts, reshapes, slices and counters that
// feed them, into fusions: what only one fusion uses goes into it, what costs little
// into each that uses it. A reduction may be the end of one. It is less than XLA's
// own fusion, which also merges siblings and transposes. A module that is not scheduled is
// simplified first: see [Simplify]. It returns how many fusions were made. Results stay the same.
func Fuse(m *Module) (int, error) {
	if !m.Scheduled { // else the compiler has done it, and what is called stays apart
		if err := Simplify(m); err != nil {
			return 0, err
		}
	}
	run := m.Running(runs)
	made := 0
	for _, c := range slices.Clone(m.Computations) {
		if run[c] {
			made += fuseIn(c, made)
		}
	}
	_, err := RemoveDead(m)
	return made, err
}

// cheap reports whether an instruction costs so little that each user may have its own.
func cheap(i *Instruction) bool {
	switch i.Opcode {
	case Broadcast, Iota:
		return true
	case Constant:
		n, err := i.Shape.Elems()
		return err == nil && n == 1
	}
	return false
}

// fusible reports whether an instruction may be inside of a fusion.
func fusible(i *Instruction) bool {
	if !i.Shape.IsArray() || len(i.After) > 0 {
		return false
	}
	switch i.Opcode {
	case Select, Compare, Convert, Reshape, Slice, "clamp":
		return true
	}
	return cheap(i) || i.Opcode.Unary() || i.Opcode.Binary()
}

// shared reports whether an instruction is computed in each fusion that uses it: it need not be
// kept, as all of its users may be in one, and they read no more than they would of its result.
// XLA's priority fusion decides by time, and does so mostly (priority_fusion.cc, 2026).
func shared(i *Instruction) bool {
	left, err := i.Shape.Bytes()
	if err != nil || slices.ContainsFunc(i.Users, func(u *Instruction) bool { return !fusible(u) && !reduces(u) }) {
		return false
	}
	for _, o := range i.Operands {
		if cheap(o) {
			continue
		}
		n, err := o.Shape.Bytes()
		if err != nil || n > left {
			return false
		}
		left -= n
	}
	return true
}

// reduces reports whether an instruction is a reduction that may be the end of a fusion.
func reduces(i *Instruction) bool {
	return i.Opcode == Reduce && i.Shape.IsArray() && len(i.After) == 0
}

// fuseIn fuses in one computation.
func fuseIn(c *Computation, made int) int {
	waited := predecessors(c)
	type cluster struct {
		root    *Instruction
		members map[*Instruction]bool
	}
	var clusters []cluster
	in := map[*Instruction][]int{}  // the clusters that have a member
	kept := map[*Instruction]bool{} // stays as an instruction of its own
	// needed reports whether something outside of an instruction's clusters reads it. All of
	// its users are decided.
	needed := func(i *Instruction) bool {
		for _, u := range i.Users {
			if kept[u] || len(in[u]) == 0 || slices.ContainsFunc(in[u], func(n int) bool { return !clusters[n].members[i] }) {
				return true
			}
		}
		return i == c.Root || len(i.Users) == 0
	}
	place := make(map[*Instruction]int, len(c.Instructions))
	for n, i := range c.Instructions {
		place[i] = n
	}
	for n := len(c.Instructions) - 1; n >= 0; n-- {
		root := c.Instructions[n]
		if !needed(root) {
			continue
		}
		kept[root] = true
		if waited[root] || cheap(root) || !fusible(root) && !reduces(root) {
			continue
		}
		k := cluster{root, map[*Instruction]bool{root: true}}
		// Producers in the reverse order, so that all users are decided before.
		work := []*Instruction{root}
		for len(work) > 0 && len(k.members) < maxFused {
			latest := 0
			for x := range work {
				if place[work[x]] > place[work[latest]] {
					latest = x
				}
			}
			i := work[latest]
			work = slices.Delete(work, latest, latest+1)
			for _, o := range i.Operands {
				if k.members[o] || !fusible(o) || waited[o] || o == c.Root || slices.Contains(work, o) {
					continue
				}
				alone := !slices.ContainsFunc(o.Users, func(u *Instruction) bool { return !k.members[u] })
				if cheap(o) || alone || shared(o) {
					k.members[o] = true
					work = append(work, o)
				}
			}
		}
		if len(k.members) < 2 {
			continue
		}
		for i := range k.members {
			in[i] = append(in[i], len(clusters))
		}
		delete(kept, root)
		clusters = append(clusters, k)
	}
	for n, k := range clusters {
		replaceByFusion(c, k.root, k.members, place, fmt.Sprintf("fused_computation.%d", made+n))
	}
	return len(clusters)
}

// replaceByFusion puts a fusion in the place of a cluster's root.
func replaceByFusion(c *Computation, root *Instruction, members map[*Instruction]bool, place map[*Instruction]int, name string) {
	m := c.Module
	body := &Computation{Name: name, Module: m}
	for m.Computation(body.Name) != nil {
		body.Name += "_"
	}
	// Before its caller, with all that members call before it.
	m.Computations = slices.Insert(m.Computations, slices.Index(m.Computations, c), body)
	list := make([]*Instruction, 0, len(members))
	for i := range members {
		list = append(list, i)
	}
	slices.SortFunc(list, func(a, b *Instruction) int { return place[a] - place[b] })
	inside := map[*Instruction]*Instruction{}
	var outside, all []*Instruction
	for _, i := range list {
		for _, o := range i.Operands {
			if members[o] || inside[o] != nil {
				continue
			}
			p := m.NewInstruction(fmt.Sprintf("param_%d", len(outside)), Parameter, o.Shape)
			p.Parameter, p.Literal = len(outside), fmt.Sprint(len(outside))
			inside[o] = p
			outside, all = append(outside, o), append(all, p)
		}
	}
	for _, i := range list {
		d := m.NewInstruction(i.Name, i.Opcode, i.Shape)
		d.Literal, d.Attributes = i.Literal, slices.Clone(i.Attributes)
		for _, o := range i.Operands {
			d.AddOperand(inside[o])
		}
		inside[i] = d
		all = append(all, d)
	}
	body.Reorder(all)
	body.Root = inside[root]
	kind := "kLoop"
	if root.Opcode == Reduce {
		kind = "kInput"
	}
	f := m.NewInstruction("fusion."+root.Name, Fusion, root.Shape, outside...)
	f.Attributes = []Attribute{{Key: "kind", Value: kind}, {Key: "calls", Calls: []*Computation{body}}}
	for _, a := range root.Attributes {
		if a.Key == "metadata" {
			f.Attributes = append(f.Attributes, a)
		}
	}
	f.Parent = c
	at := slices.Index(c.Instructions, root)
	root.ReplaceUses(f, nil)
	c.Instructions[at] = f
	root.Detach()
	root.Parent = nil
	place[f] = place[root]
}
