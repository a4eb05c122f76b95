//go:build linux && (amd64 || arm64) && !nodriver

// What is told of GPUs that are not used.

package cuda

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/device"
)

// statusOf is the state of the only device.
func (f *fake) statusOf() device.Status {
	f.t.Helper()
	all, err := f.use().list()
	if err != nil || len(all) != 1 {
		f.t.Fatalf("%d devices, %v", len(all), err)
	}
	if f.called["cuDevicePrimaryCtxRetain"] != 0 || f.called["cuCtxPushCurrent_v2"] != 0 {
		f.t.Error("a context was made")
	}
	return all[0]
}

// noted asserts that the notes are as many as want, each saying its part.
func noted(t *testing.T, s device.Status, want ...string) {
	t.Helper()
	ok := len(s.Notes) == len(want)
	for i := range s.Notes {
		ok = ok && strings.Contains(s.Notes[i], want[i]) && !strings.Contains(s.Notes[i], "\n")
	}
	if !ok {
		t.Errorf("notes %q, want %q", s.Notes, want)
	}
}

func TestList(t *testing.T) {
	f := newFake(t)
	n := f.nv.devices[0]
	n.display, n.monitor = 1, 1
	n.compute = []nvmlProcess{{pid: 30, used: 3 << 20}, {pid: 10, used: 1 << 20}, {pid: 40, used: 4 << 20}}
	n.graphic = []nvmlProcess{{pid: 20, used: nvmlNotAvailable}, {pid: 10, used: 9 << 20}}
	n.mps = []nvmlProcess{{pid: 30, used: nvmlNotAvailable}}
	f.tempProc("10/comm", "python3\n")
	f.tempProc("20/comm", "Xorg\n")
	second := f.add(2 << 30)
	second.uuid[3], f.nv.devices[1].uuid = 7, "GPU-abcd0007-0000-0000-0000-000000000001"

	all, err := f.use().list()
	if err != nil || len(all) != 2 {
		t.Fatalf("%d devices, %v", len(all), err)
	}
	want := device.Status{
		Info: device.Info{
			Name: "NVIDIA Fake", UUID: "GPU-abcd0000-0000-0000-0000-000000000000", Driver: "580.82.07", Total: 1 << 30,
			Granularity: 512, Page: page, CCMajor: 9, CCMinor: 1, Display: true, HasPages: true, HasPools: true, HasManaged: true, Oversubscribes: true,
		},
		Free: 600 << 20, Used: 300 << 20, Reserved: 124 << 20, DisplayMode: true,
		Processes: []device.Process{
			{PID: 10, Name: "python3", Kind: "compute", Used: 9 << 20, Known: true},
			{PID: 20, Name: "Xorg", Kind: "graphics"},
			{PID: 30, Kind: "mps", Used: 3 << 20, Known: true},
			{PID: 40, Kind: "compute", Used: 4 << 20, Known: true},
		},
	}
	if d := cmp.Diff(want, all[0]); d != "" {
		t.Error(d)
	}
	if all[1].Ordinal != 1 || all[1].Total != 2<<30 || all[1].UUID != f.nv.devices[1].uuid || all[1].Processes != nil {
		t.Errorf("%+v", all[1])
	}
	if f.called["cuDevicePrimaryCtxRetain"] != 0 {
		t.Error("a context was made")
	}
}

// TestNVMLFailures makes each function of NVML answer each code, and leaves it
// out: one note, and the rest stands.
func TestNVMLFailures(t *testing.T) {
	const unknown = "without NVML it is not known"
	whole := newFake(t).statusOf()
	for _, tc := range []struct {
		f     int
		quiet bool     // not having it is no news
		more  []string // notes that follow
		still func(device.Status) bool
	}{
		{nvmlInit, false, []string{unknown}, func(s device.Status) bool { return s.Free == 0 && s.Driver == "CUDA 12.8" }},
		{nvmlSystemGetDriverVersion, true, nil, func(s device.Status) bool { return s.Driver == "CUDA 12.8" && s.Free == whole.Free }},
		{nvmlDeviceGetHandleByUUID, false, []string{unknown}, func(s device.Status) bool { return s.Free == 0 && s.Processes == nil }},
		{nvmlDeviceGetMemoryInfo_v2, false, nil, func(s device.Status) bool { return len(s.Processes) == 1 }},
		{nvmlDeviceGetComputeRunningProcesses, false, nil, func(s device.Status) bool { return s.Free == whole.Free && s.Processes == nil }},
		{nvmlDeviceGetGraphicsRunningProcesses, false, nil, func(s device.Status) bool { return len(s.Processes) == 1 }},
		{nvmlDeviceGetMPSComputeRunningProcesses, false, nil, func(s device.Status) bool { return len(s.Processes) == 1 }},
		{nvmlDeviceGetDisplayActive, true, nil, func(s device.Status) bool { return !s.Display }},
		{nvmlDeviceGetDisplayMode, false, nil, func(s device.Status) bool { return !s.DisplayMode && len(s.Processes) == 1 }},
		{nvmlDeviceGetMigMode, true, nil, func(s device.Status) bool { return s.Free == whole.Free }},
	} {
		fn := nvmlFunctions[tc.f]
		for _, code := range []int32{missing, 1, 2, 3, 4, 6, 7, 9, 10, 12, 13, 15, 17, 18, 19, 20, 25, 999, 77} {
			if code == 7 && strings.Contains(fn.symbol, "RunningProcesses") {
				continue // asks again; see TestGrowingLists
			}
			t.Run(fmt.Sprintf("%s/%d", fn.symbol, code), func(t *testing.T) {
				f := newFake(t)
				f.nv.devices[0].compute = []nvmlProcess{{pid: 10, used: 5}}
				text := nvmlCode(code).Error()
				if code == missing {
					f.lacks[fn.symbol] = true
					text = "NVML has no " + fn.symbol
				} else {
					f.fail[fn.symbol] = code
				}
				s := f.statusOf()
				fallback := tc.f == nvmlDeviceGetMemoryInfo_v2 && lacks(code)
				switch {
				case strings.HasSuffix(fn.symbol, "RunningProcesses_v3") && lacks(code):
					noted(t, s) // an older one does
					if len(s.Processes) != 1 {
						t.Errorf("processes %+v", s.Processes)
					}
					return
				case fallback:
					// The older call has what the driver keeps in what is used.
					if s.Free != whole.Free || s.Used != whole.Used+whole.Reserved || s.Reserved != 0 {
						t.Errorf("%d free, %d used, %d reserved", s.Free, s.Used, s.Reserved)
					}
					noted(t, s)
				case tc.quiet:
					noted(t, s)
				default:
					noted(t, s, append([]string{text}, tc.more...)...)
					if code != missing && !strings.Contains(s.Notes[0], fn.name()) {
						t.Errorf("note %q does not name %s", s.Notes[0], fn.name())
					}
				}
				if !tc.still(s) || s.Name != whole.Name || s.Total != whole.Total || !s.HasPages {
					t.Errorf("%+v", s)
				}
			})
		}
	}
	t.Run("no memory info at all", func(t *testing.T) {
		f := newFake(t)
		f.lacks["nvmlDeviceGetMemoryInfo_v2"], f.lacks["nvmlDeviceGetMemoryInfo"] = true, true
		noted(t, f.statusOf(), "NVML has no nvmlDeviceGetMemoryInfo")
	})
	t.Run("no library", func(t *testing.T) {
		f := newFake(t)
		now.Store(f)
		m := newMachine(f.host, f.find, nil, newNVML(nil, absent(t)))
		all, err := m.list()
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		noted(t, all[0], "NVML cannot be loaded", unknown)
	})
	t.Run("advice", func(t *testing.T) {
		for code, want := range map[nvmlCode]string{18: "reboot or reload", 9: "modprobe", 4: "root"} {
			if !strings.Contains(code.Error(), want) {
				t.Errorf("%v does not say %q", code, want)
			}
		}
	})
	t.Run("NVML comes later", func(t *testing.T) {
		f := newFake(t)
		f.fail["nvmlInit_v2"] = 9
		m := f.use()
		all, _ := m.list()
		noted(t, all[0], "DRIVER_NOT_LOADED", unknown)
		delete(f.fail, "nvmlInit_v2")
		all, _ = m.list()
		noted(t, all[0])
	})
}

// TestListOfBrokenDevice: a device that cannot even be described has a note.
func TestListOfBrokenDevice(t *testing.T) {
	f := newFake(t)
	f.fail["cuDeviceGetName"] = 999
	s := f.statusOf()
	if s.Name != "cuda:0" {
		t.Errorf("name %q", s.Name)
	}
	noted(t, s, "cuDeviceGetName on cuda:0: CUDA_ERROR_UNKNOWN", "does not tell the device's UUID", "not known how much")
}

// TestGrowingLists: programs start between the question how many and which.
func TestGrowingLists(t *testing.T) {
	for _, tc := range []struct {
		name  string
		each  int // programs that start before each answer
		most  int
		count uint32 // what the list claims
		want  int    // processes told of; -1: a note
	}{
		{"still", 0, 5, 0, 5},
		{"within the slack", 3, 100, 0, 6},
		{"past the slack", 20, 1000, 0, 60},
		{"a huge count", 0, 1, 0xffff_ffff, -1},
		{"one more than is believed", 0, 1, maxProcesses + 1, -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFake(t)
			d := f.nv.devices[0]
			d.count = tc.count
			d.compute = nil
			pid := uint32(0)
			start := func(n int) {
				for range min(n, tc.most-int(pid)) {
					pid++
					d.compute = append(d.compute, nvmlProcess{pid: pid, used: 1})
				}
			}
			if tc.each == 0 {
				start(tc.most)
			}
			graphics := 0
			d.grow = func(*nvmlGPU) {
				if graphics++; graphics > 1 { // the first question is MPS's
					start(tc.each)
				}
			}
			s := f.statusOf()
			if tc.want < 0 {
				if len(s.Notes) == 0 || len(s.Processes) != 0 && tc.count != 0 {
					t.Errorf("%d processes, notes %q", len(s.Processes), s.Notes)
				}
				return
			}
			noted(t, s)
			if len(s.Processes) < tc.want || !slices.IsSortedFunc(s.Processes, func(a, b device.Process) int { return a.PID - b.PID }) {
				t.Errorf("%d processes, want at least %d in order", len(s.Processes), tc.want)
			}
		})
	}
	t.Run("never enough", func(t *testing.T) {
		f := newFake(t)
		f.fail["nvmlDeviceGetComputeRunningProcesses_v3"] = 7
		noted(t, f.statusOf(), "grows faster")
	})
}

// TestOlderListsOfProcesses: drivers before 510 have other functions, and some
// others write entries of other sizes than their function's.
func TestOlderListsOfProcesses(t *testing.T) {
	want := []device.Process{
		{PID: 7, Kind: "mps", Used: 1 << 20, Known: true}, {PID: 8, Kind: "compute"},
		{PID: 9, Kind: "graphics", Used: 3 << 30, Known: true}, {PID: 70_000, Kind: "compute", Used: 1<<40 + 1, Known: true},
	}
	for _, lacking := range [][]string{nil, {"_v3"}, {"_v3", "_v2"}} {
		for _, entry := range []int{0, 16, 24, 32} {
			for _, clears := range []bool{false, true} {
				f := newFake(t)
				d := f.nv.devices[0]
				d.entry, d.clears = entry, clears
				d.compute = []nvmlProcess{{70_000, 1<<40 + 1}, {7, 1 << 20}, {8, nvmlNotAvailable}}
				d.mps, d.graphic = []nvmlProcess{{7, nvmlNotAvailable}}, []nvmlProcess{{9, 3 << 30}}
				for _, version := range lacking {
					for _, kind := range []string{"Compute", "Graphics", "MPSCompute"} {
						f.lacks["nvmlDeviceGet"+kind+"RunningProcesses"+version] = true
					}
				}
				s := f.statusOf()
				noted(t, s)
				if !slices.Equal(s.Processes, want) {
					t.Errorf("without %q, entries of %d bytes, cleared %v: %+v", lacking, entry, clears, s.Processes)
				}
			}
		}
	}
	f := newFake(t)
	for _, version := range []string{"_v3", "_v2", ""} {
		f.lacks["nvmlDeviceGetComputeRunningProcesses"+version] = true
	}
	noted(t, f.statusOf(), "NVML has no nvmlDeviceGetComputeRunningProcesses;")
	f = newFake(t)
	f.nv.devices[0].entry, f.nv.devices[0].compute = 40, []nvmlProcess{{7, 1}}
	noted(t, f.statusOf(), "unknown way")
}

// FuzzParseProcesses: whatever a library writes, and says that it wrote, is
// read within bounds.
func FuzzParseProcesses(f *testing.F) {
	f.Add([]byte{7, 0, 0, 0, 1, 1, 1, 1, 9, 9, 9, 9, 9, 9, 9, 9}, uint16(1), uint16(4))
	f.Add(bytes.Repeat([]byte{1}, 48), uint16(2), uint16(20))
	f.Add([]byte{}, uint16(3), uint16(2))
	f.Fuzz(func(t *testing.T, written []byte, count, room uint16) {
		b := bytes.Repeat([]byte{untouched}, int(room)*32)
		copy(b, written)
		list, ok := parseProcesses(b, int(room), int(count))
		if ok && len(list) != min(int(count), int(room)) || !ok && list != nil {
			t.Errorf("%d entries, %v", len(list), ok)
		}
	})
}

// TestMIG: a slice is told by its own numbers or by none, never by those of the
// GPU that it is cut from.
func TestMIG(t *testing.T) {
	setup := func() (*fake, *nvmlGPU) {
		f := newFake(t)
		g := f.gpus[0]
		g.name = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
		g.uuid = [16]byte{1: 0x99}
		parent := f.nv.devices[0]
		parent.mig, parent.free = 1, 39<<30
		parent.compute = []nvmlProcess{{pid: 66, used: 1}}
		slice := f.nv.add(g)
		slice.uuid, slice.free, slice.used = uuidText("MIG", g.uuid), 700<<20, 100<<20
		slice.compute = []nvmlProcess{{pid: 5, used: 100 << 20}}
		return f, slice
	}
	f, slice := setup()
	s := f.statusOf()
	if s.MIG != "1g.5gb" || s.UUID != slice.uuid || s.Free != 700<<20 || s.Used != 100<<20 || s.Total != 1<<30 ||
		len(s.Processes) != 1 || s.Processes[0].PID != 5 {
		t.Errorf("%+v", s)
	}
	noted(t, s)
	if f.called["nvmlDeviceGetDisplayActive"]+f.called["nvmlDeviceGetDisplayMode"] != 0 {
		t.Error("a slice was asked for its display")
	}
	if d := f.open(); d.Info().MIG != "1g.5gb" || d.Info().UUID != slice.uuid {
		t.Errorf("%+v", d.Info())
	}

	// A driver that knows no UUID of the slice gives that of the GPU.
	f, _ = setup()
	f.lacks["cuDeviceGetUuid_v2"] = true
	s = f.statusOf()
	if s.Free != 0 || s.Processes != nil || s.MIG != "1g.5gb" {
		t.Errorf("the whole GPU's: %+v", s)
	}
	noted(t, s, "NVML_ERROR_NOT_FOUND", "without NVML")

	// And one that does not say that it is a slice.
	f, _ = setup()
	f.lacks["cuDeviceGetUuid_v2"] = true
	f.gpus[0].name = "NVIDIA A100"
	s = f.statusOf()
	if s.Free != 0 || s.Processes != nil {
		t.Errorf("the whole GPU's: %+v", s)
	}
	noted(t, s, "cut into MIG slices", "without NVML")
}

func TestListUnified(t *testing.T) {
	f := newFake(t)
	f.gpus[0].attributes[attributeIntegrated] = 1
	f.nv.devices[0].compute = []nvmlProcess{{pid: 5, used: 5}}
	f.fail["nvmlDeviceGetMemoryInfo_v2"] = 3
	f.tempProc("meminfo", "MemAvailable: 1024 kB\n")
	s := f.statusOf()
	if s.Free != 1<<20 || s.Used != 1<<30-1<<20 || len(s.Processes) != 1 {
		t.Errorf("%+v", s)
	}
	noted(t, s, "the memory is the host's")
}
