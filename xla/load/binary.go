package load

// Binary modules: the message HloModuleProto of xla/service/hlo.proto, as --xla_dump_to with
// --xla_dump_hlo_as_proto writes it (inside an HloProto), as snapshots have it, and as
// jaxlib's as_serialized_hlo_module_proto gives it. What is read is a [hlo.Module] as if its
// text had been parsed: attributes have the text that XLA prints (that of jaxlib 0.12.0.1
// where releases differ).
//
// The message has no number of replicas and of partitions: neither has the module.

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/xla/hlo"
	"gpumem/xla/internal/verify"
)

// Numbers of fields of xla/service/hlo.proto and xla/xla_data.proto that encode.go writes, too.
// Those that are only read stand where they are.
const (
	moduleComputations = 3
	moduleSchedule     = 7

	computationName         = 1
	computationInstructions = 2
	computationShape        = 4 // of its parameters and result
	computationID           = 5
	computationRoot         = 6
	computationFusion       = 7 // is_fusion_computation

	instructionName     = 1
	instructionOpcode   = 2
	instructionShape    = 3
	instructionLiteral  = 8
	instructionNumber   = 9 // parameter_number
	instructionKind     = 11
	instructionIndex    = 13 // tuple_index
	instructionSizes    = 20 // dynamic_slice_sizes
	instructionID       = 35
	instructionOperands = 36
	instructionAfter    = 37
	instructionCalled   = 38

	shapeType     = 2
	shapeDims     = 3
	shapeElements = 4
	shapeLayout   = 5
	shapeDynamic  = 6
	layoutOrder   = 1 // minor to major
	tupleType     = 13

	programParameters = 1
	programResult     = 2
	programNames      = 3

	literalShape = 1
)

// maxBytes is what a message of protocol buffers may have.
const maxBytes = 1<<31 - 1

// ErrTooLarge is the error of input of 2 GiB or more, unpacked.
var ErrTooLarge = errors.New("xla/load: more than 2^31-1 bytes, which no protocol buffer has")

// ErrNoModule is the error of input that is none of the messages with a module.
var ErrNoModule = errors.New("xla/load: neither an HloModuleProto, nor an HloProto or HloSnapshot with one in it")

// Decode reads a module from an HloModuleProto, an HloProto, an HloSnapshot or an
// HloUnoptimizedSnapshot. Errors name the computation and instruction. The notes name what
// it left out, fields of instructions that have no text: a module with notes may be
// measured, but its text lacks them.
//
// The bytes may be damaged or made to harm: Decode calls hold, unless it is nil, with the
// bytes of memory that the module takes beside them, a part at a time. The first error of
// hold ends reading.
func Decode(b []byte, hold func(bytes int64) error) (m *hlo.Module, notes []string, err error) {
	d, err := decode(b, hold)
	if err != nil {
		return nil, nil, err
	}
	return d.m, d.notes, nil
}

// decode is Decode, with what the module was read from.
func decode(b []byte, hold func(bytes int64) error) (*decoder, error) {
	if len(b) > maxBytes {
		return nil, ErrTooLarge
	}
	// An HloProto has the module in field 1, a snapshot an HloProto.
	for range 3 {
		if isModule(b) {
			d := &decoder{
				m:            &hlo.Module{Style: hlo.Style{Percent: true, Signatures: true}},
				raw:          b,
				shapes:       map[string]*hlo.Shape{},
				computations: map[int64]*computation{},
				hold:         hold,
			}
			if err := d.module(b); err != nil {
				return nil, fmt.Errorf("xla/load: %w", err)
			}
			return d, nil
		}
		inner, ok := first(b)
		if !ok {
			break
		}
		b = inner
	}
	return nil, ErrNoModule
}

// isModule reports whether a message has the fields of a module: a name and
// computations with names.
func isModule(b []byte) bool {
	computations := 0
	err := walk(b, func(x field) error {
		switch x.n {
		case 1, 2:
			if x.typ != protowire.BytesType || !utf8.Valid(x.bytes) || bytes.ContainsFunc(x.bytes, func(r rune) bool { return r < ' ' }) {
				return errCut
			}
		case moduleComputations:
			if x.typ != protowire.BytesType {
				return errCut
			}
			computations++
		}
		return nil
	})
	return err == nil && computations > 0
}

// first is field 1 of a message.
func first(b []byte) (inner []byte, ok bool) {
	err := walk(b, func(x field) error {
		if x.n == 1 && x.typ == protowire.BytesType && !ok {
			inner, ok = x.bytes, true
		}
		return nil
	})
	return inner, ok && err == nil
}

type decoder struct {
	m            *hlo.Module
	raw          []byte // the HloModuleProto
	shapes       map[string]*hlo.Shape
	computations map[int64]*computation // by id
	notes        []string
	hold         func(bytes int64) error
	held         int // bytes of memory that hold was not called with yet
}

// count counts memory.
func (d *decoder) count(bytes int) error {
	if d.held += bytes; d.held < 1<<20 || d.hold == nil {
		return nil
	}
	n := d.held
	d.held = 0
	return d.hold(int64(n))
}

// maxNotes is enough to see what is left out.
const maxNotes = 100

func (d *decoder) note(format string, a ...any) {
	if len(d.notes) < maxNotes {
		d.notes = append(d.notes, fmt.Sprintf(format, a...))
	}
}

func (d *decoder) module(b []byte) error {
	f := d.fields(b)
	d.m.Name = f.string(1)
	entryName, entry := f.string(2), f.int(6)
	// Prefetches and shardings of the whole have no place in a text.
	for _, n := range []protowire.Number{10, 12, 14} {
		if f.has(n) {
			d.note("field %d of HloModuleProto is left out", n)
		}
	}
	if *f.err != nil {
		return *f.err
	}
	if err := named(d.m.Name); err != nil {
		return fmt.Errorf("the module's name: %w", err)
	}
	var built []*computation
	f.typed(moduleComputations, protowire.BytesType, "a message", func(x field) {
		c, err := d.computation(x.bytes)
		f.fail(err)
		built = append(built, c)
	})
	if *f.err != nil {
		return *f.err
	}
	for _, c := range built {
		for _, i := range c.list {
			if err := d.link(c, i); err != nil {
				return fmt.Errorf("computation %s, instruction %s: %w", c.c.Name, i.i.Name, err)
			}
		}
	}
	d.unwrap(built)
	if c := d.computations[entry]; f.has(6) && c != nil {
		d.m.Entry = c.c
	} else if d.m.Entry = d.m.Computation(entryName); d.m.Entry == nil {
		return fmt.Errorf("the entry %q is none of the computations", entryName)
	}
	f.message(moduleSchedule).messages(1, d.schedule)
	if d.attributes(f); *f.err != nil {
		return *f.err
	}
	// A text cannot have a cycle or a second parameter 0; a message can.
	return verify.Graph(d.m)
}

// attributes sets those of the module, in the printer's order.
func (d *decoder) attributes(f *fields) {
	a := &attributes{fields: f}
	a.set("is_scheduled", d.m.Scheduled)
	add := func(n protowire.Number, key string, text func(*fields) string) {
		if f.has(n) {
			f.within(key, func() { a.some(key, text(f.message(n))) })
		}
	}
	add(8, "input_output_alias", d.aliases)
	add(18, "buffer_donor", donors)
	add(4, "entry_computation_layout", program)
	add(19, "frontend_attributes", stringMap)
	d.m.Attributes = a.list
	f.within("stack_frame_index", func() { d.m.Tables = tables(f.message(17)) })
}

// program is the text of a ProgramShapeProto: {(shape, shape)->shape}.
func program(f *fields) string {
	var parameters []string
	f.shapes(1, func(s *hlo.Shape) { parameters = append(parameters, s.String()) })
	result := ""
	f.shapes(2, func(s *hlo.Shape) { result = s.String() })
	return "{(" + indexed(parameters) + ")->" + result + "}"
}

// indexed is a list as the printer writes it, with the number of every fifth element.
func indexed(list []string) string {
	for n := 5; n < len(list); n += 5 {
		list[n] = fmt.Sprintf("/*index=%d*/%s", n, list[n])
	}
	return strings.Join(list, ", ")
}

// braced is {1,2}.
func braced(list []int64) string { return "{" + join(list) + "}" }

// aliases reads those of the module and returns their text, which is empty if there are none.
func (d *decoder) aliases(f *fields) string {
	return listed(f, func(m *fields) string {
		output, parameter, index := m.ints(1), m.int(2), m.ints(3)
		a := hlo.Alias{Parameter: int(parameter), Must: m.int(4) == 2}
		narrow := func(list []int64) (narrow []int) {
			for _, n := range list {
				if n < 0 || n > 1<<31 || parameter < 0 || parameter > 1<<31 {
					m.fail(fmt.Errorf("index %d of parameter %d", n, parameter))
				}
				narrow = append(narrow, int(n))
			}
			return narrow
		}
		a.Output, a.Index = narrow(output), narrow(index)
		d.m.Aliases = append(d.m.Aliases, a)
		how := "may-alias"
		if a.Must {
			how = "must-alias"
		}
		return fmt.Sprintf("%s: (%d, %s, %s)", braced(output), parameter, braced(index), how)
	})
}

func donors(f *fields) string {
	return listed(f, func(m *fields) string { return fmt.Sprintf("(%d, %s)", m.int(1), braced(m.ints(2))) })
}

// listed is the text of a message that is a list: empty, or "{ first, second }".
func listed(f *fields, text func(m *fields) string) string {
	var texts []string
	f.messages(1, func(m *fields) { texts = append(texts, text(m)) })
	if len(texts) == 0 {
		return ""
	}
	return "{ " + strings.Join(texts, ", ") + " }"
}

// tables is the text of a StackFrameIndexProto.
func tables(f *fields) string {
	var text strings.Builder
	table := func(head string, rows []string) {
		if len(rows) == 0 {
			return
		}
		if text.Len() > 0 {
			text.WriteByte('\n')
		}
		text.WriteString(head + "\n")
		for k, row := range rows {
			text.WriteString(strconv.Itoa(k+1) + " " + row + "\n")
		}
	}
	for n, head := range []string{"FileNames", "FunctionNames"} {
		var rows []string
		f.strings(protowire.Number(n+1), func(s string) { rows = append(rows, quoted(s)) })
		table(head, rows)
	}
	var locations, frames []string
	f.messages(3, func(m *fields) {
		locations = append(locations, fmt.Sprintf("{file_name_id=%d function_name_id=%d line=%d end_line=%d column=%d end_column=%d}", m.int(1), m.int(2), m.int(3), m.int(5), m.int(4), m.int(6)))
	})
	table("FileLocations", locations)
	f.messages(4, func(m *fields) {
		// The text counts parents from 1 on, so that 1 is none.
		frames = append(frames, fmt.Sprintf("{file_location_id=%d parent_frame_id=%d}", m.int(1), m.int(2)+1))
	})
	table("StackFrames", frames)
	return strings.TrimSuffix(text.String(), "\n")
}

// schedule puts the instructions of a computation into the order in which they run. f is a
// pair of a map.
func (d *decoder) schedule(f *fields) {
	id, ids := f.int(1), f.message(2).ints(1)
	c := d.computations[id]
	if c == nil {
		f.fail(fmt.Errorf("the schedule is of computation %d, which is not there", id))
		return
	}
	list := make([]*hlo.Instruction, 0, len(ids))
	seen := map[*hlo.Instruction]bool{}
	for _, n := range ids {
		i := c.find(n)
		if i == nil || seen[i.i] {
			f.fail(fmt.Errorf("the schedule of %s has instruction %d, which is not there or twice", c.c.Name, n))
			return
		}
		seen[i.i] = true
		list = append(list, i.i)
	}
	if len(list) != len(c.c.Instructions) {
		f.fail(fmt.Errorf("the schedule of %s has %d of %d instructions", c.c.Name, len(list), len(c.c.Instructions)))
		return
	}
	c.c.Reorder(list)
	d.m.Scheduled = true
}
