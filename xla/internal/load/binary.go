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

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/verify"
)

// maxBytes is what a message of protocol buffers may have.
const maxBytes = 1<<31 - 1

// ErrTooLarge is the error of input of 2 GiB or more, unpacked.
var ErrTooLarge = errors.New("xla/internal/load: more than 2^31-1 bytes, which no protocol buffer has")

// ErrNoModule is the error of input that is none of the messages with a module.
var ErrNoModule = errors.New("xla/internal/load: neither an HloModuleProto, nor an HloProto or HloSnapshot with one in it")

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
	// An HloProto has the module in its first field, a snapshot an HloProto.
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
				return nil, fmt.Errorf("xla/internal/load: %w", err)
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
		case moduleName, moduleEntryComputationName:
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

// first is what a message has where an HloProto has its module.
func first(b []byte) (inner []byte, ok bool) {
	err := walk(b, func(x field) error {
		if x.n == protoHloModule && x.typ == protowire.BytesType && !ok {
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
	d.m.Name = f.string(moduleName)
	entryName, entry := f.string(moduleEntryComputationName), f.int(moduleEntryComputationID)
	// cross_program_prefetches, spmd_output_sharding and spmd_parameters_shardings have no place in a text.
	for _, n := range []no{10, 12, 14} {
		if f.has(n) {
			d.note("field %d of HloModuleProto is left out", n)
		}
	}
	if *f.err != nil {
		return *f.err
	}
	if err := checkName(d.m.Name); err != nil {
		return fmt.Errorf("the module's name: %w", err)
	}
	var built []*computation
	f.eachMessage(moduleComputations, func(b []byte) {
		c, err := d.computation(b)
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
	d.unwrapAsync(built)
	if c := d.computations[entry]; f.has(moduleEntryComputationID) && c != nil {
		d.m.Entry = c.c
	} else if d.m.Entry = d.m.Computation(entryName); d.m.Entry == nil {
		return fmt.Errorf("the entry %q is none of the computations", entryName)
	}
	f.message(moduleSchedule).messages(scheduleSequences, d.readOrder)
	if d.readAttributes(f); *f.err != nil {
		return *f.err
	}
	// A text cannot have a cycle or a second parameter 0; a message can.
	return verify.Graph(d.m)
}

// readAttributes sets those of the module, in the printer's order.
func (d *decoder) readAttributes(f *fields) {
	add := func(key, text string) {
		if text != "" {
			d.m.Attributes = append(d.m.Attributes, hlo.Attribute{Key: key, Value: text})
		}
	}
	if d.m.Scheduled {
		add("is_scheduled", "true")
	}
	for _, a := range []struct {
		n    no
		key  string
		text func(*fields) string
	}{
		{moduleInputOutputAlias, "input_output_alias", d.readAliases},
		{moduleBufferDonor, "buffer_donor", donorsText},
		{moduleHostProgramShape, "entry_computation_layout", program},
		{moduleFrontendAttributes, "frontend_attributes", stringMap},
	} {
		if f.has(a.n) {
			f.within(a.key, func() { add(a.key, a.text(f.message(a.n))) })
		}
	}
	f.within("stack_frame_index", func() { d.m.Tables = tablesText(f.message(moduleStackFrameIndex)) })
}

// program is the text of a ProgramShapeProto: {(shape, shape)->shape}.
func program(f *fields) string {
	return "{(" + everyFifthNumbered(shapeTexts(f, programParameters)) + ")->" + lastShape(f, programResult) + "}"
}

// everyFifthNumbered is a list as the printer writes it, with the number of every fifth element.
func everyFifthNumbered(list []string) string {
	for n := 5; n < len(list); n += 5 {
		list[n] = fmt.Sprintf("/*index=%d*/%s", n, list[n])
	}
	return strings.Join(list, ", ")
}

// braced is {1,2}.
func braced(list []int64) string { return "{" + joinNumbers(list) + "}" }

const mustAlias = 2 // a kind of alias

// readAliases reads those of the module and returns their text, which is empty if there are none.
func (d *decoder) readAliases(f *fields) string {
	return listText(f, func(m *fields) string {
		output, parameter, index := m.ints(aliasOutputShapeIndex), m.int(aliasParameterNumber), m.ints(aliasParameterShapeIndex)
		narrow := func(list []int64) (narrow []int) {
			for _, n := range list {
				if !isIndex(n) || !isIndex(parameter) {
					m.fail(fmt.Errorf("index %d of parameter %d", n, parameter))
				}
				narrow = append(narrow, int(n))
			}
			return narrow
		}
		a := hlo.Alias{Parameter: int(parameter), Must: m.int(aliasKind) == mustAlias, Output: narrow(output), Index: narrow(index)}
		d.m.Aliases = append(d.m.Aliases, a)
		how := "may-alias"
		if a.Must {
			how = "must-alias"
		}
		return fmt.Sprintf("%s: (%d, %s, %s)", braced(output), parameter, braced(index), how)
	})
}

// isIndex reports whether a number may count parameters or elements of tuples.
func isIndex(n int64) bool { return n >= 0 && n <= 1<<31 }

// donorsText is the text of an HloBufferDonorProto: parameter_number, parameter_shape_index.
func donorsText(f *fields) string {
	return listText(f, func(m *fields) string { return fmt.Sprintf("(%d, %s)", m.int(1), braced(m.ints(2))) })
}

// listText is the text of a message that is a list in its first field: empty, or "{ first, second }".
func listText(f *fields, text func(m *fields) string) string {
	texts := f.texts(1, text)
	if len(texts) == 0 {
		return ""
	}
	return "{ " + strings.Join(texts, ", ") + " }"
}

// tablesText is the text of a StackFrameIndexProto.
func tablesText(f *fields) string {
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
	names := func(n no) (rows []string) {
		f.strings(n, func(s string) { rows = append(rows, quoted(s)) })
		return rows
	}
	messages := func(n no, rules []rule) []string {
		return f.texts(n, func(m *fields) string { return joined(m, rules) })
	}
	table("FileNames", names(framesFileNames))
	table("FunctionNames", names(framesFunctionNames))
	table("FileLocations", messages(framesFileLocations, locationRules))
	table("StackFrames", messages(framesStackFrames, frameRules))
	return strings.TrimSuffix(text.String(), "\n")
}

// readOrder puts the instructions of a computation into the order in which they run. f is a
// pair of a map.
func (d *decoder) readOrder(f *fields) {
	id, ids := f.int(entryKey), f.message(entryValue).ints(sequenceInstructionIDs)
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
