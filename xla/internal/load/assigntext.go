package load

// The reader of buffer assignments as text, which --xla_dump_to writes beside a module as
// NAME-buffer-assignment.txt (BufferAssignment::ToString of XLA's buffer_assignment.cc,
// 2020 to 2026):
//
//	BufferAssignment:
//	allocation 4: size 1048576, page 0, parameter 0, shape |f32[512,512]| at ShapeIndex {}:
//	 value: <136 ps_0_.1 @0> (size=1048576,offset=0): f32[512,512]{1,0}
//	allocation 18: size 4194304, page 0, preallocated-temp:
//	 value: <38 fusion-start.1{0} @0> (size=24,offset=1311744): (f32[10]{0}, u32[])
//
// It says where each value lies, with its name, and not when. So of the temporaries those
// count as at the peak that are the largest and lie beside each other.

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gpumem/internal/input"
)

const assignmentHead = "BufferAssignment:"

// isAssignmentText reports whether content begins as a buffer assignment in text.
func isAssignmentText(head []byte) bool {
	return bytes.HasPrefix(bytes.TrimSpace(head), []byte(assignmentHead))
}

var (
	allocationLine = regexp.MustCompile(`^allocation (\d+): (.*):$`)
	valueLine      = regexp.MustCompile(`^ +value: <(?:\d+ )?(\S+?)((?:\{[\d,]*\})?)(?: \(phi\))? @\d+> \(size=(\d+),offset=(\d+)\): (.*)$`)
	shapeInLine    = regexp.MustCompile(`\|[^|]*\|`) // with commas in it
)

// assignmentText reads a buffer assignment in text. Lines that belong to no allocation are
// passed over. Lines may be long: a shape has all parts of a tuple.
func assignmentText(in *input.Reader) (*Assignment, error) {
	text, err := in.Text()
	if err != nil {
		return nil, err
	}
	a := &Assignment{Text: true}
	sum, n := uint64(0), 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, " \r\n")
		switch {
		case strings.HasPrefix(line, "allocation "):
			x, err := allocationOf(line, len(a.Allocations))
			if err == nil {
				if sum += x.Bytes; sum > mostSum {
					err = errors.New("the allocations have more than 2^59 bytes")
				}
			}
			if err != nil {
				return nil, &input.Error{File: in.Name(), Line: n, Msg: err.Error()}
			}
			a.Allocations = append(a.Allocations, x)
		case strings.HasPrefix(line, " value: ") && len(a.Allocations) > 0:
			x := &a.Allocations[len(a.Allocations)-1]
			b, err := valueOf(line, x.Bytes)
			if err != nil {
				return nil, &input.Error{File: in.Name(), Line: n, Msg: err.Error()}
			}
			x.Buffers = append(x.Buffers, b)
		default:
			continue
		}
		if err := in.Take(400); err != nil {
			return nil, err
		}
	}
	if len(a.Allocations) == 0 {
		return nil, in.Fail("a buffer assignment without allocations")
	}
	for k := range a.Allocations {
		x := &a.Allocations[k]
		x.Peak = besideEachOther(x.Buffers, x.Temporary())
	}
	return a, nil
}

// allocationOf reads the line of allocation n.
func allocationOf(line string, n int) (x Allocation, err error) {
	m := allocationLine.FindStringSubmatch(line)
	if m == nil || m[1] != strconv.Itoa(n) {
		return x, fmt.Errorf("%s, where allocation %d should be; the file is damaged", input.Quote(line), n)
	}
	sized := false
	for part := range strings.SplitSeq(shapeInLine.ReplaceAllString(m[2], ""), ",") {
		word, value, _ := strings.Cut(strings.TrimSpace(part), " ")
		var number uint64
		switch word {
		case "size", "color", "parameter":
			var ok bool
			if number, ok = input.Decimal([]byte(value)); !ok || number > mostSum {
				return x, fmt.Errorf("%s: %s is no number for a %s; the file is damaged", input.Quote(line), input.Quote(value), word)
			}
		}
		switch word {
		case "size":
			x.Bytes, sized = number, true
		case "color":
			x.Space = number
		case "parameter": // at a ShapeIndex, whose numbers are parts of their own
			x.Parameter, x.Number = true, int(number)
		case "constant":
			x.Constant = true
		case "thread-local":
			x.ThreadLocal = true
		case "maybe-live-out":
			x.LiveOut = true
		}
	}
	if !sized {
		return x, fmt.Errorf("%s has no size; the file is damaged", input.Quote(line))
	}
	x.Aliased = x.Parameter && x.LiveOut
	return x, nil
}

// valueOf reads the line of a value in an allocation of a size.
func valueOf(line string, within uint64) (b Buffer, err error) {
	m := valueLine.FindStringSubmatch(line)
	if m == nil {
		return b, fmt.Errorf("%s, where a value should be; the file is damaged", input.Quote(line))
	}
	b.Instruction, b.Shape = m[1], m[5]
	for index := range strings.FieldsFuncSeq(m[2], func(r rune) bool { return r < '0' || r > '9' }) {
		n, err := strconv.Atoi(index)
		if err != nil {
			return b, errors.New("a part of a tuple beyond all numbers; the file is damaged")
		}
		b.Index = append(b.Index, n)
	}
	bytes, ok := input.Decimal([]byte(m[3]))
	offset, ok2 := input.Decimal([]byte(m[4]))
	if !ok || !ok2 || offset > within || bytes > within-offset {
		return b, fmt.Errorf("%s lies beyond the end of its allocation of %d bytes; the file is damaged", input.Quote(b.Instruction), within)
	}
	b.Bytes, b.Offset = bytes, offset
	return b, nil
}

// mostBeside is how many values are looked for: more than anybody lists.
const mostBeside = 1000

// besideEachOther returns the largest values that lie beside each other; only the largest where
// the allocation is not for temporaries, for all of its values are then one after the other.
func besideEachOther(values []Buffer, temporary bool) (list []Buffer) {
	values = slices.Clone(values)
	slices.SortStableFunc(values, func(v, w Buffer) int { return cmp.Compare(w.Bytes, v.Bytes) })
	var taken []Buffer // by their offsets
	for _, v := range values {
		at, _ := slices.BinarySearchFunc(taken, v, func(x, y Buffer) int { return cmp.Compare(x.Offset, y.Offset) })
		before := at == 0 || taken[at-1].Offset+taken[at-1].Bytes <= v.Offset
		behind := at == len(taken) || v.Offset+v.Bytes <= taken[at].Offset
		if v.Bytes > 0 && before && behind {
			taken = slices.Insert(taken, at, v)
			if list = append(list, v); !temporary || len(list) == mostBeside {
				break
			}
		}
	}
	return list
}
