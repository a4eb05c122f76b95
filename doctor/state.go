package doctor

// What is known of the machine: the state file, which gpumem ps --json writes too.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// A State is what is known of a machine and of the program that failed.
// Every field may be absent, and fields that are not known are passed over.
// Sizes are in bytes.
type State struct {
	Devices []DeviceState `json:"devices,omitempty"`
	Process *ProcessState `json:"process,omitempty"`
	// Tried are settings that were tried, and whether they helped.
	Tried []Attempt `json:"tried,omitempty"`
}

// A DeviceState is one GPU.
type DeviceState struct {
	Index   int    `json:"index"`
	Name    string `json:"name,omitempty"`
	Total   uint64 `json:"total_bytes,omitempty"`
	Used    uint64 `json:"used_bytes,omitempty"`
	Display bool   `json:"display_active,omitempty"`
	// Processes are those on the GPU; nil: not told, empty: none.
	Processes []Holder `json:"processes,omitempty"`
}

// A Holder is a process that has memory on a GPU.
type Holder struct {
	PID        int      `json:"pid"`
	Name       string   `json:"name,omitempty"`
	Kind       string   `json:"kind,omitempty"` // compute, graphics or both; empty: not told
	Used       uint64   `json:"used_bytes,omitempty"`
	Frameworks []string `json:"frameworks,omitempty"`
	ParentGone bool     `json:"parent_gone,omitempty"`
}

// A ProcessState is the program that failed.
type ProcessState struct {
	PID              int               `json:"pid,omitempty"`
	Frameworks       []string          `json:"frameworks,omitempty"`
	Versions         map[string]string `json:"versions,omitempty"` // of the frameworks
	Env              map[string]string `json:"env,omitempty"`
	Fraction         *float64          `json:"per_process_memory_fraction,omitempty"`
	BackendRecreated *bool             `json:"backend_recreated,omitempty"`
}

// An Attempt is a setting that was tried.
type Attempt struct {
	Env    map[string]string `json:"env"`
	Helped bool              `json:"helped"`
}

// maxState is the longest state file in bytes; a machine's is some KiB.
const maxState = 64 << 20

// ReadState reads a state file. The error says what is wrong and where, without
// the file's name.
func ReadState(r io.Reader) (*State, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxState+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxState {
		return nil, fmt.Errorf("more than %d MiB; a state file is what gpumem ps --json writes", maxState>>20)
	}
	s := new(State)
	if err := json.Unmarshal(text, s); err != nil {
		return nil, stateError(text, err)
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

// stateError gives an error of the JSON its line.
func stateError(text []byte, err error) error {
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

// device is what is known of the GPU with this ordinal; of the only one where it is below
// zero. Nil: nothing.
func (s *State) device(ordinal int) *DeviceState {
	if s == nil {
		return nil
	}
	if ordinal < 0 && len(s.Devices) == 1 {
		return &s.Devices[0]
	}
	if i := slices.IndexFunc(s.Devices, func(d DeviceState) bool { return d.Index == max(ordinal, 0) }); i >= 0 {
		return &s.Devices[i]
	}
	return nil
}
