package load

// Asynchronous operations. In a message an async-start calls a computation of one
// operation; texts, from 2022 on, have that operation's name with -start and leave the
// computation out. What is read is as in the text.

import (
	"slices"
	"strings"

	"gpumem/xla/internal/hlo"
)

// unwrapAsync turns async-start and what follows it into the form of the text, where the
// computation that it calls is one operation on its parameters in their order.
func (d *decoder) unwrapAsync(built []*computation) {
	wrappers := map[*hlo.Computation]bool{}
	for _, c := range built {
		for _, x := range c.list {
			if x.i.Opcode != hlo.AsyncStart {
				continue
			}
			w := x.i.Call("calls")
			if w == nil || !wrapsOneOperation(w) {
				continue
			}
			thread := slices.DeleteFunc(slices.Clone(x.i.Attributes), func(a hlo.Attribute) bool { return a.Key != "async_execution_thread" })
			own := x.behind
			for _, a := range w.Root.Attributes {
				// What the start has itself, such as metadata, stays its own.
				if !slices.ContainsFunc(own, func(b hlo.Attribute) bool { return a.Key == b.Key }) && a.Key != "metadata" {
					thread = append(thread, a)
				}
			}
			x.i.Attributes = append(thread, own...)
			x.i.Opcode = w.Root.Opcode + "-start"
			wrappers[w] = true
			renameAsync(x.i, w.Root.Opcode)
		}
	}
	if len(wrappers) == 0 {
		return
	}
	called := map[*hlo.Computation]bool{}
	for i := range d.m.All() {
		for _, callee := range i.Called() {
			called[callee] = true
		}
	}
	d.m.Computations = slices.DeleteFunc(d.m.Computations, func(c *hlo.Computation) bool {
		return !called[c] && wrappers[c]
	})
}

// wrapsOneOperation reports whether a computation is one operation on its parameters.
func wrapsOneOperation(c *hlo.Computation) bool {
	parameters := c.Parameters()
	return c.Root.Opcode != hlo.Parameter && len(c.Instructions) == len(parameters)+1 && slices.Equal(c.Root.Operands, parameters)
}

// renameAsync gives the updates and the end that follow a start its operation's name.
func renameAsync(start *hlo.Instruction, op hlo.Opcode) {
	for at := start; at != nil; {
		var next *hlo.Instruction
		for _, u := range at.Users {
			if u.Opcode == hlo.AsyncUpdate || u.Opcode == hlo.AsyncDone {
				u.Opcode = op + hlo.Opcode(strings.TrimPrefix(string(u.Opcode), "async"))
				if u.Opcode.IsAsyncDone() {
					continue
				}
				if u.Opcode != hlo.AsyncUpdate { // once: a message may have a cycle
					next = u
				}
			}
		}
		at = next
	}
}
