//go:build linux && (amd64 || arm64) && !nodriver

// NVML, the library behind nvidia-smi: who uses a GPU, without using it.

package cuda

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"gpumem/device"
	"gpumem/internal/cudacode"
)

// nvmlFunctions are NVML's functions by number. The variables below fill it.
var nvmlFunctions []function

// management enters a function of NVML and returns its number.
func management(symbol string) int {
	nvmlFunctions = append(nvmlFunctions, function{symbol: symbol})
	return len(nvmlFunctions) - 1
}

// NVML's functions: their symbols and C arguments. A device is a pointer. Of the lists of
// processes there is one for drivers from 510 on and two for older ones, which follow
// it, the newest first.
var (
	nvmlInit                                = management("nvmlInit_v2")                                // void
	nvmlSystemGetDriverVersion              = management("nvmlSystemGetDriverVersion")                 // char *, unsigned length
	nvmlDeviceGetCount                      = management("nvmlDeviceGetCount_v2")                      // unsigned *
	nvmlDeviceGetHandleByIndex              = management("nvmlDeviceGetHandleByIndex_v2")              // unsigned, device *
	nvmlDeviceGetHandleByUUID               = management("nvmlDeviceGetHandleByUUID")                  // const char *, device *
	nvmlDeviceGetName                       = management("nvmlDeviceGetName")                          // device, char *, unsigned length
	nvmlDeviceGetMemoryInfo                 = management("nvmlDeviceGetMemoryInfo")                    // device, nvmlMemory_t *
	nvmlDeviceGetMemoryInfo_v2              = management("nvmlDeviceGetMemoryInfo_v2")                 // device, nvmlMemory_v2_t *
	nvmlDeviceGetComputeRunningProcesses    = management("nvmlDeviceGetComputeRunningProcesses_v3")    // device, unsigned *, array of processes
	_                                       = management("nvmlDeviceGetComputeRunningProcesses_v2")    // the same
	_                                       = management("nvmlDeviceGetComputeRunningProcesses")       // the same
	nvmlDeviceGetGraphicsRunningProcesses   = management("nvmlDeviceGetGraphicsRunningProcesses_v3")   // device, unsigned *, array of processes
	_                                       = management("nvmlDeviceGetGraphicsRunningProcesses_v2")   // the same
	_                                       = management("nvmlDeviceGetGraphicsRunningProcesses")      // the same
	nvmlDeviceGetMPSComputeRunningProcesses = management("nvmlDeviceGetMPSComputeRunningProcesses_v3") // device, unsigned *, array of processes
	_                                       = management("nvmlDeviceGetMPSComputeRunningProcesses_v2") // the same
	_                                       = management("nvmlDeviceGetMPSComputeRunningProcesses")    // the same
	nvmlDeviceGetDisplayActive              = management("nvmlDeviceGetDisplayActive")                 // device, nvmlEnableState_t *
	nvmlDeviceGetDisplayMode                = management("nvmlDeviceGetDisplayMode")                   // device, nvmlEnableState_t *
	nvmlDeviceGetMigMode                    = management("nvmlDeviceGetMigMode")                       // device, unsigned *now, unsigned *pending
)

// nvmlCode is a result of NVML other than success (nvmlReturn_t).
type nvmlCode int32

const (
	nvmlNotSupported     nvmlCode = 3
	nvmlNotFound         nvmlCode = 6
	nvmlInsufficientSize nvmlCode = 7
)

// nvmlCodes names the usual ones, with what to do.
var nvmlCodes = func() map[nvmlCode]string {
	m := map[nvmlCode]string{}
	for _, c := range cudacode.NVML() {
		m[nvmlCode(c.Number)] = strings.TrimSuffix(c.Name+": "+c.Advice, ": ")
	}
	return m
}()

func (c nvmlCode) Error() string {
	if s, ok := nvmlCodes[c]; ok {
		return s
	}
	return fmt.Sprintf("nvmlReturn(%d)", int32(c))
}

// nvmlNotAvailable is a number of bytes that NVML does not know.
const nvmlNotAvailable = ^uint64(0)

// nvmlMemory is nvmlMemory_t: 24 bytes. used has in it what the driver keeps
// for itself.
type nvmlMemory struct {
	total, free, used uint64
}

// nvmlMemory2 is nvmlMemory_v2_t: 40 bytes; total = reserved + used + free.
type nvmlMemory2 struct {
	version                     uint32 // nvmlMemory2Version
	total, reserved, free, used uint64
}

const nvmlMemory2Version = 2<<24 | 40 // the size is part of it

// nvmlProcess is what all forms of nvmlProcessInfo_t begin with: 16 bytes.
type nvmlProcess struct {
	pid  uint32
	used uint64
}

// nvmlProcessSizes are the sizes of those forms, in bytes: without the ids of
// the MIG slice, with them, and with the protected memory as well.
var nvmlProcessSizes = []int{16, 24, 32}

// nvml is the library. The handle of a device is a uintptr, 0 for none.
type nvml struct {
	lib *library
	err error // why the library could not be loaded

	mu      sync.Mutex
	started bool // guarded by mu
}

func newNVML(find lookup, err error) *nvml {
	if err != nil {
		return &nvml{err: fmt.Errorf("NVML cannot be loaded: %w; it comes with the NVIDIA driver, and in a container with NVIDIA_DRIVER_CAPABILITIES=utility", err)}
	}
	return &nvml{lib: bind(nvmlFunctions, find)}
}

// start starts NVML unless it is. It stays so: stopping and starting it takes
// seconds where no other program keeps the driver awake.
func (n *nvml) start() error {
	if n.err != nil {
		return n.err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.started {
		return nil
	}
	if err := n.result(nvmlInit, n.lib.ask(nvmlInit)); err != nil {
		return err
	}
	n.started = true
	return nil
}

// result makes what function f answered an error, which names f and has the
// nvmlCode in it.
func (n *nvml) result(f int, r int32) error {
	switch r {
	case 0:
		return nil
	case missing:
		return fmt.Errorf("NVML has no %s; update the NVIDIA driver", nvmlFunctions[f].symbol)
	}
	return fmt.Errorf("%s: %w", nvmlFunctions[f].name(), nvmlCode(r))
}

// driverVersion is such as "580.82.07".
func (n *nvml) driverVersion() (string, error) {
	b := make([]byte, 80) // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
	err := n.result(nvmlSystemGetDriverVersion, n.lib.ask(nvmlSystemGetDriverVersion, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b))))
	return text(b), err
}

// find finds a device by its UUID. A GPU that is cut into slices is never the
// answer: what NVML tells of it is of all slices together.
func (n *nvml) find(uuid string) (uintptr, error) {
	if uuid == "" {
		return 0, errors.New("the driver does not tell the device's UUID, so NVML cannot find it")
	}
	b := append([]byte(uuid), 0)
	h := new(uintptr)
	r := n.lib.ask(nvmlDeviceGetHandleByUUID, uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(h)))
	if err := n.result(nvmlDeviceGetHandleByUUID, r); err != nil {
		return 0, fmt.Errorf("%s: %w", uuid, err)
	}
	if strings.HasPrefix(uuid, "GPU-") {
		now, pending := new(uint32), new(uint32)
		r := n.lib.ask(nvmlDeviceGetMigMode, *h, uintptr(unsafe.Pointer(now)), uintptr(unsafe.Pointer(pending)))
		if r == 0 && *now == 1 {
			return 0, fmt.Errorf("%s is cut into MIG slices and this driver does not say which one this is; update it to one for CUDA 11.4 or newer", uuid)
		}
	}
	return *h, nil
}

// flag asks a question that is answered by on or off.
func (n *nvml) flag(f int, h uintptr) (bool, error) {
	on := new(int32)
	r := n.lib.ask(f, h, uintptr(unsafe.Pointer(on)))
	return *on == 1, n.result(f, r)
}

// lacks reports whether a result says that there is no such function, or none
// with such arguments. An older one may do.
func lacks(r int32) bool { return r == missing || nvmlCode(r) == 13 || nvmlCode(r) == 25 }

// memory is what a device has. On drivers before 510 reserved is 0 and part of
// used.
func (n *nvml) memory(h uintptr) (free, used, reserved uint64, err error) {
	m := &nvmlMemory2{version: nvmlMemory2Version}
	r := n.lib.ask(nvmlDeviceGetMemoryInfo_v2, h, uintptr(unsafe.Pointer(m)))
	if !lacks(r) {
		return m.free, m.used, m.reserved, n.result(nvmlDeviceGetMemoryInfo_v2, r)
	}
	old := new(nvmlMemory)
	r = n.lib.ask(nvmlDeviceGetMemoryInfo, h, uintptr(unsafe.Pointer(old)))
	return old.free, old.used, 0, n.result(nvmlDeviceGetMemoryInfo, r)
}

// maxProcesses bounds a list: more than any machine runs on one GPU.
const maxProcesses = 1 << 16

// list is one of the three lists of processes, from function f or the newest
// older one that there is. Programs come and go between the question how many
// and the question which, so it leaves room for more and asks again while that
// is too little.
func (n *nvml) list(f int, h uintptr) ([]nvmlProcess, error) {
	const largest = 32
	var b []byte
	room, oldest := 0, f+2
	for range 12 {
		count := new(uint32)
		*count = uint32(room)
		r := n.lib.ask(f, h, uintptr(unsafe.Pointer(count)), uintptr(unsafe.Pointer(unsafe.SliceData(b))))
		switch {
		case lacks(r) && f < oldest:
			f++
			continue
		case r == 0:
			list, ok := parseProcesses(b, room, int(*count))
			if !ok {
				return nil, fmt.Errorf("%s: it fills its list in an unknown way", nvmlFunctions[f].name())
			}
			return list, nil
		case nvmlCode(r) != nvmlInsufficientSize:
			return nil, n.result(f, r)
		case *count > maxProcesses:
			return nil, fmt.Errorf("%s: it speaks of %d processes", nvmlFunctions[f].name(), *count)
		}
		room = max(2*room, int(*count)+16)
		b = bytes.Repeat([]byte{untouched}, room*largest)
	}
	return nil, fmt.Errorf("%s: the list grows faster than it can be read", nvmlFunctions[f].name())
}

// untouched is what a list is filled with before NVML writes to it.
const untouched = 0xa5

// parseProcesses reads count entries from a list that has room for more, of the
// largest form there is. How large the entries are is not a matter of the
// function alone: early drivers of 535 wrote 32 bytes for each where others
// write 24, and some 16 (github.com/XuehaiPan/nvitop, pulls 79 and 226). So it is
// told from how far NVML wrote, be it the entries or all that there was room
// for. ok is false where neither fits.
func parseProcesses(b []byte, room, count int) (list []nvmlProcess, ok bool) {
	count = min(count, room)
	if count <= 0 {
		return nil, true
	}
	end := len(b)
	for end > 0 && b[end-1] == untouched {
		end--
	}
	for _, size := range nvmlProcessSizes {
		if end > count*size && end != room*size {
			continue
		}
		for e := range slices.Chunk(b[:count*size], size) {
			list = append(list, nvmlProcess{binary.NativeEndian.Uint32(e), binary.NativeEndian.Uint64(e[8:])})
		}
		return list, true
	}
	return nil, false
}

// kinds are the lists, the kind that says most of a process first: a client of
// MPS is in the list of compute processes as well.
var kinds = []struct {
	f    int
	name string
}{
	{nvmlDeviceGetMPSComputeRunningProcesses, "mps"},
	{nvmlDeviceGetComputeRunningProcesses, "compute"},
	{nvmlDeviceGetGraphicsRunningProcesses, "graphics"},
}

// processes are those in any of the lists, by PID, without their names. notes
// say which lists could not be had.
func (n *nvml) processes(h uintptr) (all []device.Process, notes []error) {
	seen := map[uint32]int{} // where in all
	for _, kind := range kinds {
		list, err := n.list(kind.f, h)
		if err != nil {
			notes = append(notes, err)
		}
		for _, p := range list {
			i, ok := seen[p.pid]
			if !ok {
				i = len(all)
				seen[p.pid] = i
				all = append(all, device.Process{PID: int(p.pid), Kind: kind.name})
			}
			if p.used != nvmlNotAvailable {
				all[i].Used, all[i].Known = max(all[i].Used, p.used), true
			}
		}
	}
	slices.SortFunc(all, func(a, b device.Process) int { return a.PID - b.PID })
	return all, notes
}

// names are what NVML calls the GPUs that it sees, all of the machine or of the
// container; nil where it cannot be asked.
func (n *nvml) names() []string {
	if n.start() != nil {
		return nil
	}
	count := new(uint32)
	if n.lib.ask(nvmlDeviceGetCount, uintptr(unsafe.Pointer(count))) != 0 {
		return nil
	}
	var names []string
	for i := range min(*count, 1024) {
		h, b := new(uintptr), make([]byte, 96) // NVML_DEVICE_NAME_V2_BUFFER_SIZE
		if n.lib.ask(nvmlDeviceGetHandleByIndex, uintptr(i), uintptr(unsafe.Pointer(h))) == 0 &&
			n.lib.ask(nvmlDeviceGetName, *h, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b))) == 0 {
			names = append(names, text(b))
		} else {
			names = append(names, "one without a name")
		}
	}
	return names
}
