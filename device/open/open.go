// Package open makes a device from the words of the command line, so that
// nothing else has to know which kinds there are.
package open

import (
	"fmt"
	"strings"

	"gpumem/device"
	"gpumem/device/sim"
)

// EnvVar names the device to use where the command line does not.
const EnvVar = "GPUMEM_DEVICE"

// Default is the device that stands in where there is no other: a simulated
// GPU of the size of today's common card.
const Default = "sim:80GiB"

// Spec is a device that can be made, and made again at another size.
type Spec struct {
	Text string     // as given
	Sim  sim.Config // the simulated GPU
}

// Parse reads a device's words. Today that is sim:SIZE[,key=value...]; a real
// GPU (cuda:N) and a shared simulated one (sim@FILE) are refused with a line
// that says so.
func Parse(s string) (Spec, error) {
	switch {
	case strings.HasPrefix(s, "sim:"):
		cfg, err := sim.ParseConfig(strings.TrimPrefix(s, "sim:"))
		if err != nil {
			return Spec{}, err
		}
		if _, err := sim.New(cfg); err != nil {
			return Spec{}, err
		}
		return Spec{Text: s, Sim: cfg}, nil
	case strings.HasPrefix(s, "cuda:"), strings.HasPrefix(s, "sim@"):
		return Spec{}, fmt.Errorf("device %q: this version has private simulated GPUs only; use sim:SIZE, such as %s", s, Default)
	}
	return Spec{}, fmt.Errorf("device %q: want sim:SIZE[,granularity=SIZE][,used=SIZE][,display=SIZE][,cc=9.0][,name=TEXT], such as %s", s, Default)
}

// Choose is the device to use when flag is the command line's word ("" if not
// given): the flag, else the environment's, else [Default]. note is a line for
// people when the choice was nobody's.
func Choose(flag string, lookup func(string) (string, bool)) (spec Spec, note string, err error) {
	if flag != "" {
		spec, err = Parse(flag)
		return spec, "", err
	}
	if v, ok := lookup(EnvVar); ok && v != "" {
		spec, err = Parse(v)
		if err != nil {
			err = fmt.Errorf("%s: %w", EnvVar, err)
		}
		return spec, "", err
	}
	spec, err = Parse(Default)
	return spec, "no device named: using a simulated GPU, " + Default + " (--device or $" + EnvVar + " choose another)", err
}

// Device makes the device.
func (s Spec) Device() (device.Device, error) { return sim.New(s.Sim) }

// WithTotal makes the same device with another total, in bytes. What others
// hold on it stays; a total that cannot hold that is an error. A name that was
// not given but taken from the words would be wrong for another total, so such
// a device is called after its size.
func (s Spec) WithTotal(total uint64) (device.Device, error) {
	cfg := s.Sim
	cfg.Total = total
	if cfg.Name == s.Text {
		cfg.Name = ""
	}
	return sim.New(cfg)
}
