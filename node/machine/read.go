// Reading of state files.

package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	for i, d := range s.Devices {
		if d.Index < 0 {
			return nil, fmt.Errorf("devices[%d]: index %d is below zero", i, d.Index)
		}
	}
	if p := s.Process; p != nil && p.Fraction != nil && !(*p.Fraction >= 0) {
		return nil, fmt.Errorf("process: per_process_memory_fraction %v is below zero", *p.Fraction)
	}
	return s, nil
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
		return fmt.Errorf("line %d: %v; a state file is JSON, such as gpumem ps --json writes", line(syntax.Offset), syntax)
	case errors.As(err, &kind):
		field := kind.Field
		if field == "" {
			field = "the file"
		}
		return fmt.Errorf("line %d: %s is a %s, and should be of type %v", line(kind.Offset), field, kind.Value, kind.Type)
	}
	return err
}
