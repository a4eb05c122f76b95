package hlotest

// Comparison of modules and shapes.

import (
	"fmt"
	"slices"
	"strconv"

	"gpumem/xla/internal/hlo"
)

// Equal compares two modules in all that makes a program: names, order, opcodes,
// shapes with layouts, operands, values, attributes, control predecessors, roots,
// aliases and tables. Style, lines and IDs do not count. The error says in one
// line what differs first; nil: nothing.
func Equal(a, b *hlo.Module) error {
	switch {
	case a.Name != b.Name:
		return differ("the module's name", a.Name, b.Name)
	case a.Scheduled != b.Scheduled:
		return differ("is_scheduled", a.Scheduled, b.Scheduled)
	case a.Tables != b.Tables:
		return fmt.Errorf("the tables of files and stack frames differ")
	}
	if err := equalAliases(a.Aliases, b.Aliases); err != nil {
		return err
	}
	if err := equalAttributes(a.Attributes, b.Attributes); err != nil {
		return fmt.Errorf("the module: %w", err)
	}
	for n := range max(len(a.Computations), len(b.Computations)) {
		if n >= len(a.Computations) || n >= len(b.Computations) {
			return differ("the number of computations", len(a.Computations), len(b.Computations))
		}
		if err := equalComputations(a.Computations[n], b.Computations[n]); err != nil {
			return err
		}
	}
	if x, y := computationName(a.Entry), computationName(b.Entry); x != y {
		return differ("the entry", x, y)
	}
	return nil
}

func differ(what string, a, b any) error {
	x, y := fmt.Sprint(a), fmt.Sprint(b)
	if len(x) > 80 || len(y) > 80 {
		// What is the same before does not help.
		same := 0
		for same < len(x) && same < len(y) && x[same] == y[same] {
			same++
		}
		same = max(0, same-20)
		return fmt.Errorf("%s differs from byte %d on: %s and %s", what, same, short(x[same:]), short(y[same:]))
	}
	return fmt.Errorf("%s: %s and %s", what, x, y)
}

// short quotes a text and cuts it where it is long.
func short(s string) string {
	if len(s) > 50 {
		return strconv.Quote(s[:50]) + "..."
	}
	return strconv.Quote(s)
}

func equalAliases(a, b []hlo.Alias) error {
	for n := range max(len(a), len(b)) {
		if n >= len(a) || n >= len(b) {
			return differ("the number of aliases", len(a), len(b))
		}
		x, y := a[n], b[n]
		if x.Parameter != y.Parameter || x.Must != y.Must || !slices.Equal(x.Output, y.Output) || !slices.Equal(x.Index, y.Index) {
			return differ(fmt.Sprintf("alias %d", n), x, y)
		}
	}
	return nil
}

// shown are the attributes that a text shows. Those of the module that are read into fields
// are left out: the fields are compared.
func shown(list []hlo.Attribute) []hlo.Attribute {
	return slices.DeleteFunc(slices.Clone(list), func(a hlo.Attribute) bool {
		return a.Key == "is_scheduled" || a.Key == "input_output_alias"
	})
}

func equalAttributes(a, b []hlo.Attribute) error {
	a, b = shown(a), shown(b)
	for n := range max(len(a), len(b)) {
		switch {
		case n >= len(a):
			return fmt.Errorf("the first has no attribute %s", b[n].Key)
		case n >= len(b):
			return fmt.Errorf("the second has no attribute %s", a[n].Key)
		}
		x, y := a[n], b[n]
		switch {
		case x.Key != y.Key:
			return differ(fmt.Sprintf("the key of attribute %d", n), x.Key, y.Key)
		case x.Value != y.Value:
			return differ("attribute "+x.Key, x.Value, y.Value)
		case x.List != y.List || !slices.EqualFunc(x.Calls, y.Calls, func(c, d *hlo.Computation) bool { return c.Name == d.Name }):
			return differ("attribute "+x.Key, computationNames(x), computationNames(y))
		}
	}
	return nil
}

func computationNames(a hlo.Attribute) any {
	var list []string
	for _, c := range a.Calls {
		list = append(list, c.Name)
	}
	if !a.List && len(list) == 1 {
		return list[0]
	}
	return list
}

func computationName(c *hlo.Computation) string {
	if c == nil {
		return ""
	}
	return c.Name
}

func equalComputations(a, b *hlo.Computation) error {
	if a.Name != b.Name {
		return differ("the name of a computation", a.Name, b.Name)
	}
	fail := func(what string, x, y any) error {
		return fmt.Errorf("computation %s: %w", a.Name, differ(what, x, y))
	}
	if a.Thread != b.Thread {
		return fail("the thread", a.Thread, b.Thread)
	}
	for n := range max(len(a.Instructions), len(b.Instructions)) {
		if n >= len(a.Instructions) || n >= len(b.Instructions) {
			return fail("the number of instructions", len(a.Instructions), len(b.Instructions))
		}
		x, y := a.Instructions[n], b.Instructions[n]
		if x.Name != y.Name {
			return fail(fmt.Sprintf("the name of instruction %d", n), x.Name, y.Name)
		}
		if err := equalInstructions(x, y); err != nil {
			return fmt.Errorf("%s in %s: %w", x.Name, a.Name, err)
		}
	}
	if x, y := names([]*hlo.Instruction{a.Root}), names([]*hlo.Instruction{b.Root}); !slices.Equal(x, y) {
		return fail("the root", x, y)
	}
	return nil
}

func equalInstructions(a, b *hlo.Instruction) error {
	if a.Opcode != b.Opcode {
		return differ("the opcode", a.Opcode, b.Opcode)
	}
	if a.Parameter != b.Parameter {
		return differ("the parameter's number", a.Parameter, b.Parameter)
	}
	if a.Opcode != hlo.Parameter && a.Literal != b.Literal {
		return differ("the value", a.Literal, b.Literal)
	}
	if !EqualShapes(a.Shape, b.Shape) {
		return differ("the shape", a.Shape, b.Shape)
	}
	if x, y := names(a.Operands), names(b.Operands); !slices.Equal(x, y) {
		return differ("the operands", x, y)
	}
	if x, y := names(a.After), names(b.After); !slices.Equal(x, y) {
		return differ("the control predecessors", x, y)
	}
	return equalAttributes(a.Attributes, b.Attributes)
}

func names(list []*hlo.Instruction) []string {
	var all []string
	for _, i := range list {
		if i == nil {
			all = append(all, "none")
			continue
		}
		all = append(all, i.Name)
	}
	return all
}

// EqualShapes reports whether two shapes are the same, layouts included. An empty layout,
// which only a shape without dimensions can have, equals no layout.
func EqualShapes(s, t *hlo.Shape) bool {
	if s == t {
		return true
	}
	if s == nil || t == nil {
		return false
	}
	return s.Type == t.Type && s.Layout == t.Layout && s.Buffer == t.Buffer &&
		slices.Equal(s.Dims, t.Dims) && slices.Equal(s.Dynamic, t.Dynamic) &&
		slices.EqualFunc(s.Elements, t.Elements, EqualShapes)
}
