package measure

// A program by itself, for who wants to know what one call of it allocates.

import (
	"context"
	"io"

	"gpumem/internal/input"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/load"
	"gpumem/xla/internal/memory"
)

// Totals are what XLA's memory_analysis says of a program, in bytes of the device.
type Totals = memory.Totals

// A LiveValue is a value in memory, with where it comes from in the program.
type LiveValue = memory.LiveValue

// A Program is a compiled module that was read from a file.
type Program struct {
	Module *hlo.Module
	binary []byte // nil if the file is a text
}

// Looks reports whether content begins as a module does, of which head is all or 4 KiB and
// more. A binary one is a message whose first field is a message or a text, as many are.
func Looks(head []byte) bool { return load.Looks(head) }

// Open reads a program from a file. The path - is standard input. The error names the file and,
// where the problem is in its text, the line and the column.
func Open(ctx context.Context, path string) (*Program, error) {
	m, binary, err := load.File(ctx, path)
	return &Program{m, binary}, err
}

// Read is Open for input that is open.
func Read(ctx context.Context, in *input.Reader) (*Program, error) {
	m, binary, err := load.Read(ctx, in)
	return &Program{m, binary}, err
}

// IsBinary reports whether the program was read from a binary module.
func (p *Program) IsBinary() bool { return p.binary != nil }

// WriteBinary writes as a binary module what remat made of a binary program. All that it has not
// changed is as in the program's own file.
func (p *Program) WriteBinary(w io.Writer, planned *hlo.Module) error {
	b, err := load.Rewrite(p.binary, planned)
	if err == nil {
		_, err = w.Write(b)
	}
	return err
}

// A Part is a part of an argument or of the result that takes memory of the device. Instruction is
// the parameter, or the root.
type Part struct {
	LiveValue
	Index   []int // in a tuple
	InPlace bool  // an argument whose memory a result takes, or a result in an argument's memory
	Table   bool  // the table of a tuple's parts
}

// Arguments returns the parts of the arguments of a call.
func (p *Program) Arguments() (list []Part) {
	inPlace := map[int]bool{}
	for _, a := range p.Module.Aliases {
		inPlace[a.Parameter] = true
	}
	for _, a := range memory.Arguments(p.Module) {
		list = append(list, describePart(a, inPlace[a.Instruction.Parameter]))
	}
	return list
}

// Results returns the parts of the result of a call.
func (p *Program) Results() (list []Part) {
	for _, r := range memory.Results(p.Module) {
		list = append(list, describePart(r, r.Aliased))
	}
	return list
}

func describePart(p memory.Part, inPlace bool) Part {
	shape := p.Instruction.Shape.At(p.Index...)
	v := LiveValue{Instruction: p.Instruction.Name, Shape: shape.String(), Bytes: p.Bytes, OpName: p.Instruction.OpName()}
	return Part{LiveValue: v, Index: p.Index, InPlace: inPlace, Table: !shape.IsArray()}
}

// Measure returns what a call takes, and the n largest values that live at its peak. A program that
// XLA has not compiled is brought nearer to what it will run, for good: elementwise operations are
// fused, and what frees most comes first.
func (p *Program) Measure(n int) (t Totals, largest []LiveValue, err error) {
	if !p.Module.Scheduled {
		if err := fuseAndOrder(p.Module); err != nil {
			return t, nil, err
		}
	}
	s, err := memory.Summarize(p.Module, n)
	if err != nil {
		return t, nil, err
	}
	return s.Totals, s.Largest, nil
}

func fuseAndOrder(m *hlo.Module) error {
	if _, err := hlo.Fuse(m); err != nil {
		return err
	}
	orders, err := memory.Orders(m)
	if err != nil {
		return err
	}
	for _, o := range orders {
		if o.Name == "list" {
			o.Apply(m)
		}
	}
	return nil
}

// Temporaries returns the n largest values at the peak that are neither arguments nor results.
func (p *Program) Temporaries(n int) (list []LiveValue, err error) {
	a, err := memory.AnalyzeModule(p.Module)
	if err != nil {
		return nil, err
	}
	_, _, alive := a.Peak()
	sources := p.Module.Sources()
	for _, v := range alive {
		if v.Instruction.Opcode != hlo.Parameter && !v.LiveOut && len(list) < n {
			list = append(list, memory.Describe(v, sources))
		}
	}
	return list, nil
}
