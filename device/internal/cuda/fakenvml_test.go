//go:build linux && (amd64 || arm64) && !nodriver

// NVML for tests; see fakecuda_test.go.

package cuda

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"unsafe"
)

// fakeNVML is what NVML knows. Guarded by fake.mu, or set before use.
type fakeNVML struct {
	started bool
	version string
	devices []*nvmlGPU
}

// nvmlGPU is one GPU or slice in NVML's eyes.
type nvmlGPU struct {
	uuid                  string
	name                  string
	free, used, reserved  uint64
	display, monitor      int32
	mig                   uint32
	compute, graphic, mps []nvmlProcess
	entry                 int            // bytes of an entry of a list; 0: as the function has it
	clears                bool           // lists are cleared before they are filled
	grow                  func(*nvmlGPU) // called at each question for a list, before it is answered
	count                 uint32         // what lists claim to hold; 0: the truth
}

const nvmlBits = 0x5606_0000_0000

// add makes NVML know a GPU.
func (n *fakeNVML) add(g *fakeGPU) *nvmlGPU {
	d := &nvmlGPU{uuid: uuidText("GPU", g.uuid), name: g.name, free: 600 << 20, used: 300 << 20, reserved: 124 << 20}
	n.devices = append(n.devices, d)
	return d
}

// writeFile writes a file, and the folders that it lies in.
func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// ask begins a call of NVML about a device.
func ask(symbol string, h uint64) (*fake, *nvmlGPU, int32) {
	f, code := enter(symbol)
	switch i := h - nvmlBits; {
	case code != 0:
		return f, nil, code
	case !f.nv.started:
		return f, nil, 1
	case i >= uint64(len(f.nv.devices)):
		f.problem("%s of device %#x", symbol, h)
		return f, nil, 2
	default:
		return f, f.nv.devices[i], 0
	}
}

// lists answers a question for a list of processes with entries of so many
// bytes.
func lists(symbol string, entry int, of func(*nvmlGPU) []nvmlProcess) any {
	return func(h uint64, count *uint32, p *byte) int32 {
		_, d, code := ask(symbol, h)
		if code != 0 {
			return code
		}
		if d.grow != nil {
			d.grow(d)
		}
		all := of(d)
		room := int(*count)
		*count = uint32(len(all))
		if d.count != 0 {
			*count = d.count
		}
		if room < int(*count) {
			return 7
		}
		entry := entry
		if d.entry != 0 {
			entry = d.entry
		}
		b := unsafe.Slice(p, len(all)*entry)
		if d.clears {
			clear(unsafe.Slice(p, room*entry))
		}
		for i, one := range all {
			e := b[i*entry : (i+1)*entry]
			binary.NativeEndian.PutUint32(e, one.pid)
			binary.NativeEndian.PutUint64(e[8:], one.used)
			for j := range e[16:] {
				e[16+j] = 0xff // no slice; no protected memory
			}
		}
		return 0
	}
}

var nvmlCallbacks = map[string]any{
	"nvmlInit_v2": func() int32 {
		f, code := enter("nvmlInit_v2")
		if code == 0 {
			f.nv.started = true
		}
		return code
	},
	"nvmlSystemGetDriverVersion": func(p *byte, n uint64) int32 {
		f, code := enter("nvmlSystemGetDriverVersion")
		if code == 0 {
			fill(p, n, f.nv.version)
		}
		return code
	},
	"nvmlDeviceGetCount_v2": func(n *uint32) int32 {
		f, code := enter("nvmlDeviceGetCount_v2")
		if code == 0 {
			*n = uint32(len(f.nv.devices))
		}
		return code
	},
	"nvmlDeviceGetHandleByIndex_v2": func(i uint64, h *uint64) int32 {
		_, code := enter("nvmlDeviceGetHandleByIndex_v2")
		if code == 0 {
			*h = nvmlBits + i
		}
		return code
	},
	"nvmlDeviceGetHandleByUUID": func(p *byte, h *uint64) int32 {
		f, code := enter("nvmlDeviceGetHandleByUUID")
		if code != 0 {
			return code
		}
		uuid := text(unsafe.Slice(p, 41))
		for i, d := range f.nv.devices {
			if d.uuid == uuid {
				*h = nvmlBits + uint64(i)
				return 0
			}
		}
		return 6
	},
	"nvmlDeviceGetName": func(h uint64, p *byte, n uint64) int32 {
		_, d, code := ask("nvmlDeviceGetName", h)
		if code == 0 {
			fill(p, n, d.name)
		}
		return code
	},
	"nvmlDeviceGetMemoryInfo": func(h uint64, m *[3]uint64) int32 {
		_, d, code := ask("nvmlDeviceGetMemoryInfo", h)
		if code == 0 {
			*m = [3]uint64{d.free + d.used + d.reserved, d.free, d.used + d.reserved}
		}
		return code
	},
	"nvmlDeviceGetMemoryInfo_v2": func(h uint64, m *[5]uint64) int32 {
		_, d, code := ask("nvmlDeviceGetMemoryInfo_v2", h)
		if code == 0 {
			if uint32(m[0]) != 0x2000028 {
				return 25
			}
			m[1], m[2], m[3], m[4] = d.free+d.used+d.reserved, d.reserved, d.free, d.used
		}
		return code
	},
	"nvmlDeviceGetComputeRunningProcesses_v3":    lists("nvmlDeviceGetComputeRunningProcesses_v3", 24, func(d *nvmlGPU) []nvmlProcess { return d.compute }),
	"nvmlDeviceGetComputeRunningProcesses_v2":    lists("nvmlDeviceGetComputeRunningProcesses_v2", 24, func(d *nvmlGPU) []nvmlProcess { return d.compute }),
	"nvmlDeviceGetComputeRunningProcesses":       lists("nvmlDeviceGetComputeRunningProcesses", 16, func(d *nvmlGPU) []nvmlProcess { return d.compute }),
	"nvmlDeviceGetGraphicsRunningProcesses_v3":   lists("nvmlDeviceGetGraphicsRunningProcesses_v3", 24, func(d *nvmlGPU) []nvmlProcess { return d.graphic }),
	"nvmlDeviceGetGraphicsRunningProcesses_v2":   lists("nvmlDeviceGetGraphicsRunningProcesses_v2", 24, func(d *nvmlGPU) []nvmlProcess { return d.graphic }),
	"nvmlDeviceGetGraphicsRunningProcesses":      lists("nvmlDeviceGetGraphicsRunningProcesses", 16, func(d *nvmlGPU) []nvmlProcess { return d.graphic }),
	"nvmlDeviceGetMPSComputeRunningProcesses_v3": lists("nvmlDeviceGetMPSComputeRunningProcesses_v3", 24, func(d *nvmlGPU) []nvmlProcess { return d.mps }),
	"nvmlDeviceGetMPSComputeRunningProcesses_v2": lists("nvmlDeviceGetMPSComputeRunningProcesses_v2", 24, func(d *nvmlGPU) []nvmlProcess { return d.mps }),
	"nvmlDeviceGetMPSComputeRunningProcesses":    lists("nvmlDeviceGetMPSComputeRunningProcesses", 16, func(d *nvmlGPU) []nvmlProcess { return d.mps }),
	"nvmlDeviceGetDisplayActive": func(h uint64, on *int32) int32 {
		_, d, code := ask("nvmlDeviceGetDisplayActive", h)
		if code == 0 {
			*on = d.display
		}
		return code
	},
	"nvmlDeviceGetDisplayMode": func(h uint64, on *int32) int32 {
		_, d, code := ask("nvmlDeviceGetDisplayMode", h)
		if code == 0 {
			*on = d.monitor
		}
		return code
	},
	"nvmlDeviceGetMigMode": func(h uint64, current, pending *uint32) int32 {
		_, d, code := ask("nvmlDeviceGetMigMode", h)
		if code == 0 {
			*current, *pending = d.mig, d.mig
		}
		return code
	},
}
