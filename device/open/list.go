package open

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"gpumem/device"
	"gpumem/device/cuda"
	"gpumem/device/sim"
)

// Listed is a device with the words that choose it.
type Listed struct {
	Words string // for --device
	device.Status
}

// Key returns the device's name in the registry of leases, the same in every process
// that means this GPU. It is empty for a private device.
func (d Listed) Key() string {
	switch {
	case !d.Simulated && d.UUID == "":
		return fmt.Sprintf("cuda:%d", d.Ordinal)
	case !d.Simulated:
		return d.UUID
	}
	file, ok := strings.CutPrefix(d.Words, "sim@")
	if !ok {
		return ""
	}
	file, _, _ = strings.Cut(file, ",")
	if abs, err := filepath.Abs(file); err == nil {
		file = abs
	}
	if real, err := filepath.EvalSymlinks(file); err == nil {
		file = real
	}
	return fmt.Sprintf("sim@%s,device=%d", file, d.Ordinal)
}

// Status is what stands behind the words, seen without using it: all devices of
// a shared file if no number was given, else one. With Create the file is made
// first.
func (s Spec) Status() ([]Listed, error) {
	switch s.Kind {
	case CUDA:
		all, err := cuda.List()
		if err != nil {
			return nil, err
		}
		if s.Index >= len(all) {
			return nil, fmt.Errorf("device %q: the driver shows %d, so the last is cuda:%d", s.Text, len(all), len(all)-1)
		}
		return []Listed{{Words: s.Text, Status: all[s.Index]}}, nil
	case Shared:
		if err := s.Make(); err != nil {
			return nil, err
		}
		all, err := sim.Look(s.File)
		if err != nil {
			return nil, err
		}
		if !s.All && s.Index >= len(all) {
			return nil, fmt.Errorf("device %q: %s has %d, so the last is device=%d", s.Text, s.File, len(all), len(all)-1)
		}
		var out []Listed
		for i, st := range all {
			words := "sim@" + s.File
			if i > 0 {
				words += fmt.Sprintf(",device=%d", i)
			}
			if s.All || i == s.Index {
				out = append(out, Listed{Words: words, Status: st})
			}
		}
		return out, nil
	}
	d, err := sim.New(s.Sim)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	st, err := d.Status()
	if err != nil {
		return nil, err
	}
	return []Listed{{Words: s.Text, Status: st}}, nil
}

// Driver is the state of the GPUs' driver.
type Driver struct {
	Up  bool   `json:"up"`
	Why string `json:"why,omitempty"` // it is not, for people
}

// All returns every real GPU, and the device that the environment names beside
// them. Without a driver and a named device the list is empty. A simulated GPU that a program finds by
// the driver, too, as under gpumem run --simulate, is listed once, under the words that name it.
func All(lookup func(string) (string, bool)) (list []Listed, driver Driver, err error) {
	driver.Up = true
	real, err := cuda.List()
	if err != nil {
		driver = Driver{Why: err.Error()}
	}
	var named []Listed
	var uuids []string
	if words, ok := lookup(EnvVar); ok && words != "" {
		spec, err := Parse(words)
		if err == nil && spec.Kind != CUDA {
			named, err = spec.Status()
		}
		if err != nil {
			return nil, driver, fmt.Errorf("%s: %w", EnvVar, err)
		}
		for _, d := range named {
			uuids = append(uuids, spec.UUID(d.Ordinal).String())
		}
	}
	for i, st := range real {
		if !slices.Contains(uuids, st.UUID) {
			list = append(list, Listed{Words: fmt.Sprintf("cuda:%d", i), Status: st})
		}
	}
	return append(list, named...), driver, nil
}
