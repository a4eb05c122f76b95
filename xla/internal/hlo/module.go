// Package hlo is XLA's intermediate language: modules read from text or from a
// binary dump, checked, changed, measured and written again.
//
// [ParseString] reads HLO text as XLA prints it, from 2020 on. [Module.Write] writes
// it. What the package does not know is kept as it stood. A module is a graph
// that may be changed with the methods of edit.go, which keep users and
// operands in step.
package hlo

import (
	"iter"
	"slices"
)

// A Module is a program: computations that call each other.
//
// A module is not safe for use by several goroutines while it is changed.
type Module struct {
	Name string
	// Attributes stand behind the name, in their order: is_scheduled,
	// entry_computation_layout, input_output_alias and so on.
	Attributes []Attribute
	// Tables are the lines of FileNames, FunctionNames, FileLocations and
	// StackFrames as they stood; empty: none.
	Tables string
	// Computations are in the order of the text, callees before callers.
	Computations []*Computation
	// Entry is the one that runs.
	Entry *Computation
	// Scheduled says that the order of instructions is that of execution
	// (is_scheduled=true).
	Scheduled bool
	// Aliases are outputs that have the memory of a parameter (input_output_alias).
	Aliases []Alias
	// Style is how the text was printed.
	Style Style

	ids int
}

// An Alias says that an output lies in the memory of a parameter.
type Alias struct {
	Output    []int // index into the result; empty: the whole
	Parameter int
	Index     []int // into the parameter
	Must      bool  // must-alias: the caller has to donate it
}

// A Style is a choice between what printers of different releases write.
type Style struct {
	Percent       bool // names begin with %
	OperandShapes bool // operands have their shapes
	Signatures    bool // computations have parameters and result behind their name
}

// A Computation is a list of instructions with one result.
type Computation struct {
	Name   string
	Module *Module
	// Instructions are in the order of the text, or of execution if the
	// module is scheduled.
	Instructions []*Instruction
	Root         *Instruction
	// Thread is the execution thread, empty for the main one.
	Thread string
}

// An Instruction is one operation and its result.
type Instruction struct {
	Name   string
	Opcode Opcode
	Shape  *Shape
	// Operands and, among the instructions of the same computation, those that use this
	// one, each once. Change them by the methods of edit.go.
	Operands []*Instruction
	Users    []*Instruction
	// Literal is the text between the brackets where it is no list of operands: the number
	// of a parameter, the value of a constant ("{...}" where it is left out).
	Literal string
	// Parameter is the number of a parameter, from 0.
	Parameter int
	// Attributes are in the order of the text, without control-predecessors.
	Attributes []Attribute
	// After are the control predecessors: they run before.
	After []*Instruction
	// Parent is where the instruction stands.
	Parent *Computation
	// ID is unique in the module and below Module.IDs: analyses use it as an index.
	ID int
	// Line is its line in the text, from 1. It is 0 if it was not read from text.
	Line int
}

// An Attribute is a key with a value.
type Attribute struct {
	Key string
	// Value is the text behind the =, as it stood. It is empty for attributes
	// that call.
	Value string
	// Calls are the computations that the value names: of calls, to_apply,
	// condition, body, branch_computations and the like.
	Calls []*Computation
	// List reports whether the computations are written in braces.
	List bool
}

// IDs is a number above the ID of every instruction: the length of an index by ID.
func (m *Module) IDs() int { return m.ids }

// Computation is the computation of this name, nil if there is none.
func (m *Module) Computation(name string) *Computation {
	for _, c := range m.Computations {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Instructions is the number of instructions in all computations.
func (m *Module) Instructions() (n int) {
	for _, c := range m.Computations {
		n += len(c.Instructions)
	}
	return n
}

// All are the instructions of all computations, in the order of the text.
func (m *Module) All() iter.Seq[*Instruction] {
	return func(yield func(*Instruction) bool) {
		for _, c := range m.Computations {
			for _, i := range c.Instructions {
				if !yield(i) {
					return
				}
			}
		}
	}
}

// Running returns the computations that run by themselves, and not as a part of an operation: the
// entry, and what is called from there by instructions for which runs is true.
func (m *Module) Running(runs func(*Instruction) bool) map[*Computation]bool {
	found := map[*Computation]bool{m.Entry: true}
	for _, c := range slices.Backward(m.CalleesFirst()) {
		for _, i := range c.Instructions {
			if found[c] && runs(i) {
				for _, callee := range i.Called() {
					found[callee] = true
				}
			}
		}
	}
	return found
}

// Attribute is the value of a module's attribute, and whether the module has it.
func (m *Module) Attribute(key string) (string, bool) { return find(m.Attributes, key) }

// Attribute is the value of an attribute, and whether the instruction has it.
func (i *Instruction) Attribute(key string) (string, bool) { return find(i.Attributes, key) }

func find(list []Attribute, key string) (string, bool) {
	for _, a := range list {
		if a.Key == key {
			return a.Value, true
		}
	}
	return "", false
}

// Called are all computations that an instruction calls, in the order of its
// attributes.
func (i *Instruction) Called() []*Computation {
	var all []*Computation
	for _, a := range i.Attributes {
		all = append(all, a.Calls...)
	}
	return all
}

// Call is the computation that an attribute such as body, condition, to_apply or calls
// names. It is nil if the attribute is missing.
func (i *Instruction) Call(key string) *Computation {
	for _, a := range i.Attributes {
		if a.Key == key && len(a.Calls) > 0 {
			return a.Calls[0]
		}
	}
	return nil
}

// Branches are the computations of a conditional: those of branch_computations,
// or the true one and the false one.
func (i *Instruction) Branches() []*Computation {
	for _, a := range i.Attributes {
		if a.Key == "branch_computations" {
			return a.Calls
		}
	}
	if t, f := i.Call("true_computation"), i.Call("false_computation"); t != nil && f != nil {
		return []*Computation{t, f}
	}
	return nil
}

// Parameters are the parameters by number, nil for a number that is missing.
func (c *Computation) Parameters() []*Instruction {
	var all []*Instruction
	for _, i := range c.Instructions {
		if i.Opcode != Parameter || i.Parameter < 0 || i.Parameter > len(c.Instructions) {
			continue
		}
		for len(all) <= i.Parameter {
			all = append(all, nil)
		}
		all[i.Parameter] = i
	}
	return all
}

// Instruction is the instruction of this name, nil if there is none.
func (c *Computation) Instruction(name string) *Instruction {
	for _, i := range c.Instructions {
		if i.Name == name {
			return i
		}
	}
	return nil
}
