// The node's GPUs.

package publish

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gpumem/device"
	"gpumem/device/cuda"
	"gpumem/device/open"
	"gpumem/size"
)

// Sim returns n simulated GPUs, 1 to 16, of memory bytes each. All programs that know the
// file share them. The file is made with its folder if it is not there; one that is there
// must have GPUs of that number and size. Programs of any user may use it.
func Sim(file string, n int, memory uint64) ([]GPU, error) {
	if n < 1 || n > 16 || memory == 0 {
		return nil, fmt.Errorf("%d simulated GPUs of %s: want 1 to 16 with memory", n, size.Format(memory))
	}
	if !filepath.IsAbs(file) || strings.Contains(file, ",") {
		return nil, fmt.Errorf("simulated GPUs in %q: want an absolute path without a comma", file)
	}
	folder := filepath.Dir(file)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, fmt.Errorf("simulated GPUs: %w", err)
	}
	// In a container a part of the path that is a symbolic link on the host is a folder.
	folder, err := filepath.EvalSymlinks(folder)
	if err != nil {
		return nil, fmt.Errorf("simulated GPUs: %w", err)
	}
	file = filepath.Join(folder, filepath.Base(file))
	totals := strings.TrimSuffix(strings.Repeat(fmt.Sprintf("%d/", memory), n), "/")
	spec, err := open.Parse("sim@" + file + ",create,total=" + totals)
	if err != nil {
		return nil, fmt.Errorf("simulated GPUs: %w", err)
	}
	switch err := spec.Make(); {
	case errors.Is(err, fs.ErrExist):
	case err != nil:
		return nil, fmt.Errorf("simulated GPUs: %w", err)
	}
	if err := os.Chmod(file, 0o666); err != nil { // also of one that was killed before it
		return nil, fmt.Errorf("simulated GPUs: %w", err)
	}
	spec.Create = nil
	list, err := spec.Status()
	if err != nil {
		return nil, fmt.Errorf("simulated GPUs: %w", err)
	}
	for _, l := range list {
		if len(list) != n || l.Total != memory {
			return nil, fmt.Errorf("simulated GPUs: %s has %d, of %s; %d of %s are wanted: remove the file once no pod uses it, or ask for what it has", file, len(list), size.Format(l.Total), n, size.Format(memory))
		}
	}
	return gpus(list, func(l open.Listed) string { return spec.UUID(l.Ordinal).String() })
}

// CUDA returns the GPUs of NVIDIA's driver. A GPU that is divided by MIG is not among them.
// A build with -tags nodriver has no way to the driver, and the error says so.
func CUDA() ([]GPU, error) {
	all, err := cuda.List()
	if err != nil {
		return nil, fmt.Errorf("GPUs of NVIDIA's driver: %w", err)
	}
	var list []open.Listed
	for i, st := range all {
		if st.MIG == "" && st.UUID != "" {
			list = append(list, open.Listed{Words: fmt.Sprintf("cuda:%d", i), Status: st})
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("GPUs of NVIDIA's driver: it shows %d, and none that is whole and has a UUID", len(all))
	}
	return gpus(list, func(l open.Listed) string { return l.UUID })
}

// gpus describes listed devices.
func gpus(list []open.Listed, uuid func(open.Listed) string) ([]GPU, error) {
	var out []GPU
	for _, l := range list {
		spec, err := open.Parse(l.Words)
		if err != nil {
			return nil, err
		}
		capability := ""
		if l.CCMajor > 0 {
			capability = fmt.Sprintf("%d.%d.0", l.CCMajor, l.CCMinor)
		}
		out = append(out, GPU{
			Name:         fmt.Sprintf("gpu-%d", l.Ordinal),
			UUID:         uuid(l),
			Product:      l.Name,
			Architecture: architecture(l.CCMajor, l.CCMinor),
			Capability:   capability,
			Simulated:    l.Simulated,
			Total:        l.Total,
			Key:          l.Key(),
			Meter:        meter{spec},
			Words:        l.Words,
		})
	}
	return out, nil
}

// meter reads a GPU's status anew at each call.
type meter struct{ spec open.Spec }

// Status returns the GPU's status, see share.Meter.
func (m meter) Status() (device.Status, error) {
	list, err := m.spec.Status()
	if err != nil {
		return device.Status{}, err
	}
	if len(list) == 0 {
		return device.Status{}, fmt.Errorf("device %q: it has no device", m.spec.Text)
	}
	return list[0].Status, nil
}

// architecture returns the name of a compute capability's architecture, as NVIDIA's DRA
// driver publishes it; "" if unknown. The names are those of developer.nvidia.com/cuda-gpus.
func architecture(major, minor int) string {
	switch {
	case major == 7 && minor == 5:
		return "Turing"
	case major == 8 && minor == 9:
		return "Ada Lovelace"
	case major == 10 || major == 11 || major == 12:
		return "Blackwell"
	}
	return map[int]string{5: "Maxwell", 6: "Pascal", 7: "Volta", 8: "Ampere", 9: "Hopper"}[major]
}
