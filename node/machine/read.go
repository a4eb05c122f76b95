// Reading of state files.

package machine

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"gpumem/size"
)

// maxState is the longest state file in bytes; a machine's has some KiB.
const maxState = 64 << 20

// Read reads a state file. Every field may be absent, and unknown fields are skipped. The
// error has the line, without the file's name.
func Read(r io.Reader) (*Snapshot, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxState+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxState {
		return nil, fmt.Errorf("more than %d MiB; a state file is what gpumem ps --json writes", maxState>>20)
	}
	s := new(Snapshot)
	if err := json.Unmarshal(text, s); err != nil {
		return nil, withLine(text, err)
	}
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(text, &fields) // it is an object, or null
	if fields == nil || len(fields) > 0 && !slices.ContainsFunc(known, func(k string) bool { _, ok := fields[k]; return ok }) {
		return nil, fmt.Errorf("none of the fields of a state is in it (%s); %s", strings.Join(known, ", "), written)
	}
	for i := range s.Devices {
		if err := s.Devices[i].check(s.Devices[:i]); err != nil {
			return nil, fmt.Errorf("devices[%d]: %w", i, err)
		}
	}
	if p := s.Process; p != nil && p.Fraction != nil && !(*p.Fraction >= 0) {
		return nil, fmt.Errorf("process: per_process_memory_fraction %v is below zero", *p.Fraction)
	}
	return s, nil
}

// known are the fields of a state.
var known = []string{"devices", "driver", "process", "tried"}

const written = "a state file is JSON, as gpumem ps --json writes it"

// check returns an error if no machine is in such a state. A total of 0 is unknown.
func (d *Device) check(before []Device) error {
	more := func(what string, bytes uint64) error {
		if d.Total == 0 || bytes <= d.Total {
			return nil
		}
		return fmt.Errorf("%s %s is above total_bytes, %s", what, size.Format(bytes), size.Format(d.Total))
	}
	if d.Index < 0 {
		return fmt.Errorf("index %d is below zero", d.Index)
	}
	if slices.ContainsFunc(before, func(b Device) bool {
		return b.Index == d.Index && b.Simulated == d.Simulated && b.Spec == d.Spec && b.UUID == d.UUID
	}) {
		return fmt.Errorf("index %d is another device's already", d.Index)
	}
	err := cmp.Or(more("used_bytes", d.InUse()), more("free_bytes", orZero(d.Free)))
	for i := range d.Programs {
		err = cmp.Or(err, more(fmt.Sprintf("processes[%d].used_bytes", i), d.Programs[i].Holds()))
	}
	return err
}

// withLine adds the line to an error of the JSON.
func withLine(text []byte, err error) error {
	line := func(at int64) int {
		n := 1
		for _, b := range text[:min(max(at, 0), int64(len(text)))] {
			if b == '\n' {
				n++
			}
		}
		return n
	}
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("line %d: %v; %s", line(syntax.Offset), syntax, written)
	case errors.As(err, &kind):
		return fmt.Errorf("line %d: %s is %s, want %s; %s", line(kind.Offset), cmp.Or(kind.Field, "the file"), found(kind.Value), wanted(kind.Type), written)
	}
	return err
}

// found names the value that a file has, such as "string" or "number 1e40".
func found(value string) string {
	switch kind, number, _ := strings.Cut(value, " "); {
	case number != "":
		return number
	case kind == "bool":
		return "true or false"
	case kind == "array" || kind == "object":
		return "an " + kind
	default:
		return "a " + kind
	}
}

// wanted names a type in the words of JSON.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return wanted(t.Elem())
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice:
		return "an array"
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Float64:
		return "a number"
	default:
		return "a whole number from 0 to 2^64"
	}
}
