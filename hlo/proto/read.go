// Package proto reads binary HLO modules: the message HloModuleProto of
// xla/service/hlo.proto, as --xla_dump_to with --xla_dump_hlo_as_proto writes it
// (inside an HloProto), as snapshots have it, and as jaxlib's
// as_serialized_hlo_module_proto gives it. What is read is a [hlo.Module] as if
// its text had been parsed: attributes have the text that XLA prints (that of
// jaxlib 0.12.0.1 where releases differ).
//
// The message has no number of replicas and of partitions: neither has the module.
package proto

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/hlo"
	"gpumem/hlo/verify"
)

// maxBytes is what a message of protocol buffers may have.
const maxBytes = 1<<31 - 1

// ErrTooLarge is the error of input of 2 GiB or more, unpacked.
var ErrTooLarge = errors.New("hlo/proto: more than 2^31-1 bytes, which no protocol buffer has")

// ErrNoModule is the error of input that is none of the messages with a module.
var ErrNoModule = errors.New("hlo/proto: neither an HloModuleProto, nor an HloProto or HloSnapshot with one in it")

// Decode reads a module from an HloModuleProto, an HloProto, an HloSnapshot or an
// HloUnoptimizedSnapshot. Errors name the computation and instruction. The notes name what
// it left out, fields of instructions that have no text: a module with notes may be
// measured, but its text lacks them.
//
// The bytes may be damaged or made to harm: Decode calls hold, unless it is nil, with the
// bytes of memory that the module takes beside them, a part at a time. The first error of
// hold ends reading.
func Decode(b []byte, hold func(bytes int64) error) (m *hlo.Module, notes []string, err error) {
	if len(b) > maxBytes {
		return nil, nil, ErrTooLarge
	}
	// An HloProto has the module in field 1, a snapshot an HloProto.
	for range 3 {
		if isModule(b) {
			d := &decoder{
				m:            &hlo.Module{Style: hlo.Style{Percent: true, Signatures: true}},
				shapes:       map[string]*hlo.Shape{},
				computations: map[int64]*computation{},
				hold:         hold,
			}
			if err := d.module(b); err != nil {
				return nil, nil, fmt.Errorf("hlo/proto: %w", err)
			}
			return d.m, d.notes, nil
		}
		inner, ok := first(b)
		if !ok {
			break
		}
		b = inner
	}
	return nil, nil, ErrNoModule
}

// isModule says whether a message has the fields of a module: a name and
// computations with names.
func isModule(b []byte) bool {
	computations := 0
	err := walk(b, func(x field) error {
		switch x.n {
		case 1, 2:
			var name string
			if err := x.string(&name); err != nil || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' }) {
				return errCut
			}
		case 3:
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
	shapes       map[string]*hlo.Shape
	computations map[int64]*computation // by id
	notes        []string
	hold         func(bytes int64) error
	held         int // bytes of memory that hold was not told of yet
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
	var entryName string
	var entry int64
	var layout, schedule, alias, donor, frames, frontend []byte
	hasEntry := false
	var computations [][]byte
	err := walk(b, func(x field) (err error) {
		switch x.n {
		case 1:
			err = x.string(&d.m.Name)
		case 2:
			err = x.string(&entryName)
		case 3:
			computations = append(computations, x.bytes)
		case 4:
			err = x.message(&layout)
		case 6:
			hasEntry = true
			err = x.int(&entry)
		case 7:
			err = x.message(&schedule)
		case 8:
			err = x.message(&alias)
		case 17:
			err = x.message(&frames)
		case 18:
			err = x.message(&donor)
		case 19:
			err = x.message(&frontend)
		case 10, 12, 14:
			// Prefetches and shardings of the whole have no place in a text.
			d.note("field %d of HloModuleProto is left out", x.n)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := named(d.m.Name); err != nil {
		return fmt.Errorf("the module's name: %w", err)
	}
	var built []*computation
	for _, b := range computations {
		c, err := d.computation(b)
		if err != nil {
			return err
		}
		built = append(built, c)
	}
	for _, c := range built {
		for _, i := range c.list {
			if err := d.link(c, i); err != nil {
				return fmt.Errorf("computation %s, instruction %s: %w", c.c.Name, i.i.Name, err)
			}
		}
	}
	d.unwrap(built)
	if c := d.computations[entry]; hasEntry && c != nil {
		d.m.Entry = c.c
	} else {
		if d.m.Entry = d.m.Computation(entryName); d.m.Entry == nil {
			return fmt.Errorf("the entry %q is none of the computations", entryName)
		}
	}
	if schedule != nil {
		if err := d.schedule(schedule); err != nil {
			return err
		}
	}
	if err := d.attributes(alias, donor, layout, frontend, frames); err != nil {
		return err
	}
	// A text cannot have a cycle or a second parameter 0; a message can.
	return verify.Graph(d.m)
}

// attributes sets those of the module, in the printer's order.
func (d *decoder) attributes(alias, donor, layout, frontend, frames []byte) error {
	add := func(key, value string) {
		d.m.Attributes = append(d.m.Attributes, hlo.Attribute{Key: key, Value: value})
	}
	if d.m.Scheduled {
		add("is_scheduled", "true")
	}
	if alias != nil {
		text, err := d.aliases(alias)
		if err != nil {
			return fmt.Errorf("input_output_alias: %w", err)
		}
		if text != "" {
			add("input_output_alias", text)
		}
	}
	if donor != nil {
		text, err := donors(donor)
		if err != nil {
			return fmt.Errorf("buffer_donor: %w", err)
		}
		if text != "" {
			add("buffer_donor", text)
		}
	}
	if layout != nil {
		text, err := d.program(layout)
		if err != nil {
			return fmt.Errorf("entry_computation_layout: %w", err)
		}
		add("entry_computation_layout", text)
	}
	if frontend != nil {
		text, err := stringMap(frontend)
		if err != nil {
			return fmt.Errorf("frontend_attributes: %w", err)
		}
		if text != "{}" {
			add("frontend_attributes", text)
		}
	}
	if frames != nil {
		var err error
		if d.m.Tables, err = tables(frames); err != nil {
			return fmt.Errorf("stack_frame_index: %w", err)
		}
	}
	return nil
}

// program is the text of a ProgramShapeProto: {(shape, shape)->shape}.
func (d *decoder) program(b []byte) (string, error) {
	var parameters []string
	result := ""
	err := walk(b, func(x field) error {
		if x.n != 1 && x.n != 2 {
			return nil
		}
		s, err := d.shape(x.bytes)
		if err != nil {
			return err
		}
		if x.n == 1 {
			if len(parameters)%5 == 0 && len(parameters) > 0 {
				parameters = append(parameters, fmt.Sprintf("/*index=%d*/%s", len(parameters), s))
			} else {
				parameters = append(parameters, s.String())
			}
		} else {
			result = s.String()
		}
		return nil
	})
	return "{(" + strings.Join(parameters, ", ") + ")->" + result + "}", err
}

// braced is {1,2}.
func braced(list []int64) string { return "{" + join(list) + "}" }

func (d *decoder) aliases(b []byte) (string, error) {
	var texts []string
	err := walk(b, func(x field) error {
		if x.n != 1 {
			return nil
		}
		var output, index []int64
		var parameter, kind int64
		if err := walk(x.bytes, func(x field) error {
			switch x.n {
			case 1:
				return x.ints(&output)
			case 2:
				return x.int(&parameter)
			case 3:
				return x.ints(&index)
			case 4:
				return x.int(&kind)
			}
			return nil
		}); err != nil {
			return err
		}
		a := hlo.Alias{Parameter: int(parameter), Must: kind == 2}
		for _, list := range []struct {
			from []int64
			to   *[]int
		}{{output, &a.Output}, {index, &a.Index}} {
			for _, n := range list.from {
				if n < 0 || n > 1<<31 || parameter < 0 || parameter > 1<<31 {
					return fmt.Errorf("index %d of parameter %d", n, parameter)
				}
				*list.to = append(*list.to, int(n))
			}
		}
		how := "may-alias"
		if a.Must {
			how = "must-alias"
		}
		d.m.Aliases = append(d.m.Aliases, a)
		texts = append(texts, fmt.Sprintf("%s: (%d, %s, %s)", braced(output), parameter, braced(index), how))
		return nil
	})
	if err != nil || len(texts) == 0 {
		return "", err
	}
	return "{ " + strings.Join(texts, ", ") + " }", nil
}

func donors(b []byte) (string, error) {
	var texts []string
	err := walk(b, func(x field) error {
		if x.n != 1 {
			return nil
		}
		var parameter int64
		var index []int64
		if err := walk(x.bytes, func(x field) error {
			switch x.n {
			case 1:
				return x.int(&parameter)
			case 2:
				return x.ints(&index)
			}
			return nil
		}); err != nil {
			return err
		}
		texts = append(texts, fmt.Sprintf("(%d, %s)", parameter, braced(index)))
		return nil
	})
	if err != nil || len(texts) == 0 {
		return "", err
	}
	return "{ " + strings.Join(texts, ", ") + " }", nil
}

// tables is the text of a StackFrameIndexProto.
func tables(b []byte) (string, error) {
	var names [2][]string
	var rows [2][]string
	err := walk(b, func(x field) error {
		switch x.n {
		case 1, 2:
			var s string
			if err := x.string(&s); err != nil {
				return err
			}
			names[x.n-1] = append(names[x.n-1], quoted(s))
		case 3, 4:
			var n [7]int64
			if err := walk(x.bytes, func(x field) error {
				if x.n <= 6 {
					return x.int(&n[x.n])
				}
				return nil
			}); err != nil {
				return err
			}
			row := fmt.Sprintf("{file_name_id=%d function_name_id=%d line=%d end_line=%d column=%d end_column=%d}", n[1], n[2], n[3], n[5], n[4], n[6])
			if x.n == 4 {
				// The text counts parents from 1 on, so that 1 is none.
				row = fmt.Sprintf("{file_location_id=%d parent_frame_id=%d}", n[1], n[2]+1)
			}
			rows[x.n-3] = append(rows[x.n-3], row)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for n, table := range []struct {
		head string
		rows []string
	}{{"FileNames", names[0]}, {"FunctionNames", names[1]}, {"FileLocations", rows[0]}, {"StackFrames", rows[1]}} {
		if len(table.rows) == 0 {
			continue
		}
		if n > 0 && text.Len() > 0 {
			text.WriteByte('\n')
		}
		text.WriteString(table.head + "\n")
		for k, row := range table.rows {
			text.WriteString(strconv.Itoa(k+1) + " " + row + "\n")
		}
	}
	return strings.TrimSuffix(text.String(), "\n"), nil
}

// schedule puts the instructions of computations into the order in which they run.
func (d *decoder) schedule(b []byte) error {
	found := false
	err := walk(b, func(x field) error {
		if x.n != 1 {
			return nil
		}
		// A map is a list of pairs.
		var id int64
		var ids []int64
		if err := walk(x.bytes, func(x field) error {
			switch x.n {
			case 1:
				return x.int(&id)
			case 2:
				return walk(x.bytes, func(x field) error {
					if x.n == 1 {
						return x.ints(&ids)
					}
					return nil
				})
			}
			return nil
		}); err != nil {
			return err
		}
		c := d.computations[id]
		if c == nil {
			return fmt.Errorf("the schedule is of computation %d, which is not there", id)
		}
		list := make([]*hlo.Instruction, 0, len(ids))
		seen := map[*hlo.Instruction]bool{}
		for _, n := range ids {
			i := c.find(n)
			if i == nil || seen[i.i] {
				return fmt.Errorf("the schedule of %s has instruction %d, which is not there or twice", c.c.Name, n)
			}
			seen[i.i] = true
			list = append(list, i.i)
		}
		if len(list) != len(c.c.Instructions) {
			return fmt.Errorf("the schedule of %s has %d of %d instructions", c.c.Name, len(list), len(c.c.Instructions))
		}
		c.c.Reorder(list)
		found = true
		return nil
	})
	d.m.Scheduled = found
	return err
}
