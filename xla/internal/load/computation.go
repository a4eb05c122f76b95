package load

// Computations and the graph of their instructions.

import (
	"fmt"

	"gpumem/xla/internal/hlo"
)

// A computation is one that is read, with what links it.
type computation struct {
	c    *hlo.Computation
	raw  []byte // the HloComputationProto
	id   int64
	list []*instruction
	ids  map[int64]*instruction
	low  map[int64]*instruction
}

// find is the instruction of an id. Newer releases put the computation's number into
// the upper half of an instruction's id, and not everywhere: so the lower half
// counts where the whole is not there (HloInstruction::CalculateLocalId).
func (c *computation) find(id int64) *instruction {
	if i := c.ids[id]; i != nil {
		return i
	}
	return c.low[id&(1<<32-1)]
}

// checkName says what is wrong with a name that a text could not have.
func checkName(s string) error {
	letters := 0
	for letters < len(s) && (isFirstLetter(s[letters]) || letters > 0 && isLaterLetter(s[letters])) {
		letters++
	}
	if s == "" || letters < len(s) {
		return fmt.Errorf("%.40q: expected letters, digits, dots, dashes and underscores, a letter first", s)
	}
	return nil
}

func isFirstLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' }

func isLaterLetter(c byte) bool { return c >= '0' && c <= '9' || c == '-' || c == '.' }

func (d *decoder) computation(b []byte) (*computation, error) {
	f := d.fields(b)
	c := &computation{raw: b, ids: map[int64]*instruction{}, low: map[int64]*instruction{}}
	c.c = &hlo.Computation{Module: d.m, Name: f.string(computationName), Thread: f.string(computationExecutionThread)}
	c.id = f.int(computationID)
	root := f.int(computationRootID)
	if *f.err != nil {
		return nil, fmt.Errorf("computation %d: %w", len(d.m.Computations), *f.err)
	}
	if err := checkName(c.c.Name); err != nil {
		return nil, fmt.Errorf("computation %d: its name: %w", len(d.m.Computations), err)
	}
	if c.c.Thread == "main" {
		c.c.Thread = ""
	}
	if d.computations[c.id] != nil {
		return nil, fmt.Errorf("computation %s: id %d is there twice", c.c.Name, c.id)
	}
	d.computations[c.id] = c
	f.eachMessage(computationInstructions, func(b []byte) {
		name := fmt.Sprint(len(c.list))
		i, err := d.instruction(b)
		if i != nil && i.i != nil {
			name = i.i.Name
		}
		if err == nil && c.ids[i.id] != nil {
			err = fmt.Errorf("id %d is there twice", i.id)
		}
		if err != nil {
			f.fail(fmt.Errorf("computation %s, instruction %s: %w", c.c.Name, name, err))
			return
		}
		i.i.Parent = c.c
		c.ids[i.id], c.low[i.id&(1<<32-1)] = i, i
		c.list = append(c.list, i)
		c.c.Instructions = append(c.c.Instructions, i.i)
	})
	if *f.err != nil {
		return nil, *f.err
	}
	r := c.find(root)
	if r == nil {
		return nil, fmt.Errorf("computation %s: the root %d is not in it", c.c.Name, root)
	}
	c.c.Root = r.i
	d.m.Computations = append(d.m.Computations, c.c)
	return c, nil
}

// link joins an instruction with its operands, control predecessors and callees.
func (d *decoder) link(c *computation, i *instruction) error {
	for _, id := range i.operands {
		o := c.find(id)
		if o == nil {
			return fmt.Errorf("operand %d is not in the computation", id)
		}
		i.i.AddOperand(o.i)
	}
	seen := make(map[*instruction]bool, len(i.after))
	for _, id := range i.after {
		p := c.find(id)
		if p == nil {
			return fmt.Errorf("control predecessor %d is not in the computation", id)
		}
		if !seen[p] {
			seen[p] = true
			i.i.After = append(i.i.After, p.i)
		}
	}
	var called []*hlo.Computation
	for _, id := range i.called {
		callee := d.computations[id]
		if callee == nil {
			return fmt.Errorf("computation %d, which it calls, is not there", id)
		}
		called = append(called, callee.c)
	}
	return d.finish(i, called)
}
