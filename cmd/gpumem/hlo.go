package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gpumem/hlo"
	"gpumem/hlo/memory"
	"gpumem/hlo/proto"
	"gpumem/hlo/verify"
	"gpumem/internal/input"
	"gpumem/remat/mark"
)

func hloCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "hlo MODULE",
		Short: "Measure the memory of a compiled program",
		Long: `hlo reads a program as XLA has it, a module of HLO: what it takes when most of it
lives, at which instruction, and the largest values that live there, with the
operation and the source line that they come from.

MODULE is a file, gzip or not, or - for standard input: text, as
XLA_FLAGS=--xla_dump_to=DIR writes it (the *.txt), or binary (HloModuleProto,
HloProto, HloSnapshot). In JAX: jax.jit(f).lower(x).compile().as_text().

It prints two peaks. One is what XLA's buffer assignment needs at least:
parameters and results count, values that may share memory do. The other is what
XLA's recompute pass counts, without parameters and results: see gpumem remat.
A module that is not scheduled (is_scheduled=true) is measured in the order of its
text, which is only one of many in which it could run.`,
		Example: `  gpumem hlo module_0042.jit_step.sm_9.0_gpu_after_optimizations.txt
  gpumem hlo step.hlo.gz --json`,
		Args: oneModule,
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := readModule(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			a, err := measure(m)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if asJSON {
				return encode(cmd.OutOrStdout(), a)
			}
			return writeHLO(cmd.OutOrStdout(), a, textWidth)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// oneModule checks the words of a command that takes a module.
func oneModule(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return fmt.Errorf("no module: name its FILE, as in gpumem %s step.hlo; XLA_FLAGS=--xla_dump_to=DIR makes XLA write modules", cmd.Name())
	case len(args) > 1:
		return fmt.Errorf("%s takes one module, and got %d words", cmd.Name(), len(args))
	}
	return nil
}

// readModule reads and checks a module.
func readModule(ctx context.Context, path string) (*hlo.Module, error) {
	in, err := input.Open(ctx, path, input.Options{Kind: "a module"})
	if err != nil {
		return nil, err
	}
	defer in.Close()
	m, text, err := parseModule(in)
	if err == nil {
		err = verify.Module(m)
	}
	if err == nil {
		err = sized(m)
	}
	var at *hlo.SyntaxError
	var wrong *verify.Error
	var unread *input.Error
	switch {
	case errors.As(err, &unread), ctx.Err() != nil:
		return nil, err
	case errors.As(err, &at):
		return nil, fmt.Errorf("%s:%w", in.Name(), err) // FILE:LINE:COLUMN:
	case errors.As(err, &wrong) && wrong.Instruction != nil && wrong.Instruction.Line > 0:
		i := wrong.Instruction
		return nil, fmt.Errorf("%s:%d:%d: %s in %s: %s", in.Name(), i.Line, columnOf(text, i), i.Name, wrong.Computation.Name, wrong.Problem)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", in.Name(), err)
	}
	return m, nil
}

// parseModule reads a module, and its text where it has one.
func parseModule(in *input.Reader) (*hlo.Module, string, error) {
	head, err := in.Content().Peek(4 << 10)
	if err != nil && err != io.EOF {
		return nil, "", err
	}
	if isBinary(head) {
		b, err := in.ReadAll()
		if err != nil {
			return nil, "", err
		}
		m, _, err := proto.Decode(b, in.Take)
		return m, "", err
	}
	text, err := in.Text()
	if err != nil {
		return nil, "", err
	}
	m, err := hlo.ParseWithin(text, in.Take)
	return m, text, err
}

// sized checks that all shapes have a size.
func sized(m *hlo.Module) error {
	for _, c := range m.Computations {
		for _, i := range c.Instructions {
			if _, err := i.Shape.TotalBytes(); err != nil {
				return &verify.Error{Computation: c, Instruction: i, Problem: strings.TrimPrefix(err.Error(), "hlo: ")}
			}
		}
	}
	return nil
}

// columnOf is where an instruction's name stands in its line, from 1.
func columnOf(text string, i *hlo.Instruction) int {
	for range i.Line - 1 {
		_, text, _ = strings.Cut(text, "\n")
	}
	line, _, _ := strings.Cut(text, "\n")
	return strings.Index(line, i.Name) + 1
}

// isBinary says whether bytes are no text: a message of protobuf has control
// characters near its beginning, the lengths of its fields.
func isBinary(head []byte) bool {
	return slices.ContainsFunc(head, func(b byte) bool { return b < '\t' || b > '\r' && b < ' ' && b != 0x1b })
}

// hloLargest is how many of the values alive at the peak are told.
const hloLargest = 10

// A moduleAnswer is what a module takes. Its JSON is relied on by scripts.
type moduleAnswer struct {
	Name         string       `json:"name"`
	Computations int          `json:"computations"`
	Instructions int          `json:"instructions"`
	Scheduled    bool         `json:"scheduled"`
	Parameter    uint64       `json:"parameter_bytes"`
	Output       uint64       `json:"output_bytes"`
	Alias        uint64       `json:"alias_bytes"`
	Peak         uint64       `json:"peak_bytes"`
	TempPeak     uint64       `json:"temp_peak_bytes"`
	At           string       `json:"peak_instruction"`
	TempAt       string       `json:"temp_peak_instruction"`
	Largest      []liveAnswer `json:"largest"`
	// Regions are those that jax.checkpoint marked.
	Regions int `json:"checkpoint_regions"`

	alive int      // values that live at the peak
	curve []uint64 // bytes in use, by place in the flattened order
}

// A liveAnswer is a value that lives at the peak.
type liveAnswer struct {
	Instruction string `json:"instruction"`
	Shape       string `json:"shape"`
	Bytes       uint64 `json:"bytes"`
	OpName      string `json:"op_name"`
	Source      string `json:"source,omitempty"`
}

// measure is what a module takes.
func measure(m *hlo.Module) (*moduleAnswer, error) {
	a := &moduleAnswer{Name: m.Name, Computations: len(m.Computations), Instructions: m.Instructions(), Scheduled: m.Scheduled, Regions: len(mark.Regions(m)), Largest: []liveAnswer{}}
	var err error
	for _, p := range m.Entry.Parameters() {
		n, e := p.Shape.TotalBytes()
		err = cmp.Or(err, e)
		a.Parameter += n
	}
	if a.Output, err = m.Entry.Root.Shape.TotalBytes(); err != nil {
		return nil, err
	}
	for _, alias := range m.Aliases {
		if s := m.Entry.Root.Shape.At(alias.Output...); s != nil {
			n, e := s.TotalBytes()
			if e != nil {
				return nil, e
			}
			a.Alias += n
		}
	}
	return a, a.peaks(m)
}

// peaks fills in both peaks, and what lives at the first.
func (a *moduleAnswer) peaks(m *hlo.Module) error {
	bytes, at, err := memory.TempPeak(m, memory.Options{})
	if err != nil {
		return err
	}
	a.TempPeak, a.TempAt = bytes, nameOf(at)
	all, err := memory.AnalyzeModule(m)
	if err != nil {
		return err
	}
	var alive []memory.Value
	a.Peak, at, alive = all.Peak()
	a.At, a.alive, a.curve = nameOf(at), len(alive), all.Curve()
	sources := m.Sources()
	for _, v := range alive[:min(len(alive), hloLargest)] {
		i := v.Instruction
		a.Largest = append(a.Largest, liveAnswer{Instruction: i.Name, Shape: i.Shape.At(v.Index...).String(), Bytes: v.Bytes, OpName: i.OpName(), Source: place(sources.Of(i))})
	}
	return nil
}

// nameOf is the name of an instruction, and empty for none.
func nameOf(i *hlo.Instruction) string {
	if i == nil {
		return ""
	}
	return i.Name
}

// place is FILE:LINE, as far as it is known.
func place(file string, line int) string {
	if line == 0 {
		return file
	}
	return fmt.Sprintf("%s:%d", file, line)
}
