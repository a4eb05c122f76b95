//go:build libgpumem

package main

// #include "front.h"
// #include <stdlib.h>
import "C"

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"unsafe"

	"gpumem/device"
	"gpumem/device/open"
	"gpumem/device/sim"
	"gpumem/preload/internal/contents"
	"gpumem/preload/internal/timeline"
	"gpumem/size"
)

// defaultDevice is the simulated GPU where GPUMEM_DEVICE names none.
const defaultDevice = "sim:24GiB"

// defaultContents is the room for the contents of device memory.
const defaultContents = 256 << 20

// driver is all state of the library. The zero driver has not been initialised.
type driver struct {
	mu          sync.Mutex
	initialised bool
	machine     []*gpu // by number, as NVML counts; nil before find
	gpus        []*gpu // of those, what CUDA_VISIBLE_DEVICES lets through, by ordinal; set when initialised

	last      uint64 // newest handle
	lastID    uint64 // newest identity of a context, stream, capture or buffer
	lastJob   uint64 // newest host function
	notices   []notice
	contexts  map[uint64]*context
	streams   map[uint64]*stream
	events    map[uint64]*event
	pools     map[uint64]*pool
	handles   map[uint64]*physical // of cuMemCreate
	graphs    map[uint64]*graph
	execs     map[uint64][]*block // of graphs: their allocations
	arrays    map[uint64]*array
	captures  []*capture // under way
	blocks    blocks
	host      map[uint64]*hostBlock // memory of the host that the driver knows, by address
	contents  *contents.Memory
	launches  uint64        // of kernels so far
	nextPlace uint64        // of contents of physical memory
	past      []*sim.Hazard // of devices that were closed

	// Of time.go.
	line       *timeline.Timeline // nil: work takes no time
	pace       pace
	persistent map[uint64]bool  // kernels
	execTakes  map[uint64]takes // of executables of graphs
	freed      []freedBlock     // of pools
	notes      int              // lines about memory that was unmapped under work
}

// gpu is one device.
type gpu struct {
	number  int // in the machine
	ordinal int // as the program counts; 0 of one that is hidden
	spec    open.Spec
	past    peaks // before the last reset
	opened  bool  // a context was made on it
	noted   bool  // peaks were written, see notePeaks
	last    peaks // those
	info    device.Info
	uuid    open.UUID
	sim     *sim.Device // nil while no context is there

	primary      *context
	retained     int // the primary context: retains less releases
	primaryFlags uint32
	contexts     int // alive
	legacy       *stream
	perThread    map[uint64]*stream // by the thread's number
	defaultPool  *pool
	pool         *pool          // current: of cuDeviceSetMemPool
	reservations int            // of addresses
	legacyWork   uint64         // counts work in the legacy stream
	left         []*timeline.Op // the newest operations of streams that were destroyed
	busy         busy

	graphGrants []device.Range // memory that graphs have reserved
	graphBytes  uint64         // of them
	graphMost   uint64         // that it was before the last trim
}

// apart keeps the addresses of two devices apart, which are the same in device/sim, and aloft
// those of all devices from the host's: a grant of device/sim lies where Linux maps libraries
// and large buffers, and a copy goes by the address alone.
const apart, aloft = 52, 1 << 51

func (g *gpu) out(addr uint64) uint64 { return addr + aloft + uint64(g.ordinal)<<apart }
func (g *gpu) in(addr uint64) uint64  { return addr - aloft - uint64(g.ordinal)<<apart }

// find reads which devices there are, once.
func (d *driver) find() code {
	if d.machine != nil {
		return success
	}
	words, ok := environment(open.EnvVar)
	if !ok || words == "" {
		words = defaultDevice
	}
	bad := func(name string, err error) code {
		line := C.CString(fmt.Sprintf("libcudasim: %s: %v\n", name, err))
		defer C.free(unsafe.Pointer(line))
		C.simWarn(line)
		return noDevice
	}
	spec, err := open.Parse(words)
	if err != nil {
		return bad(open.EnvVar, err)
	}
	if spec.Kind == open.CUDA {
		return bad(open.EnvVar, fmt.Errorf("device %q: this is the simulated driver, which has sim:SIZE and sim@FILE", words))
	}
	list, err := spec.Status()
	if err != nil {
		return bad(open.EnvVar, err)
	}
	room := uint64(defaultContents)
	if v, ok := environment(contentsVar); ok && v != "" {
		if room, err = size.ParseFlag(v); err != nil {
			return bad(contentsVar, err)
		}
	}
	report, err := reportsHazards()
	if err != nil {
		return bad(hazardsVar, err)
	}
	kernel, timed, err := readKernel()
	if err != nil {
		return bad(kernelVar, err)
	}
	link, linked, err := readLink()
	if err != nil {
		return bad(linkVar, err)
	}
	spec.Create = nil // Status has made the file
	if list = granted(list); len(list) == 0 {
		return bad(open.EnvVar, fmt.Errorf("device %q: it has none of the devices that %sN names", words, grantedVar))
	}
	for i, s := range list {
		g := &gpu{number: i, spec: spec, info: s.Info, perThread: map[uint64]*stream{}}
		if spec.Kind == open.Shared {
			g.spec.Index, g.spec.All = s.Ordinal, false
		}
		// As a real driver does.
		g.spec.Sim.ReuseStreams, g.spec.Sim.PromptAllocs = true, true
		if report {
			g.spec.Sim.Report = g.logHazard
		}
		g.spec.Sim.Exceed = mayExceed
		g.uuid = spec.UUID(s.Ordinal)
		d.machine = append(d.machine, g)
	}
	d.last = 0x5000000000
	d.contexts, d.streams, d.events = map[uint64]*context{}, map[uint64]*stream{}, map[uint64]*event{}
	d.pools, d.handles, d.graphs = map[uint64]*pool{}, map[uint64]*physical{}, map[uint64]*graph{}
	d.execs = map[uint64][]*block{}
	d.arrays, d.host = map[uint64]*array{}, map[uint64]*hostBlock{}
	d.contents, d.nextPlace = contents.New(room), placesOfPhysical
	if d.pace = (pace{kernel, link}); timed || linked {
		d.line = timeline.New(monotonic)
		d.persistent, d.execTakes = map[uint64]bool{}, map[uint64]takes{}
	}
	return success
}

// see fills in the devices that the program sees. It returns noDevice if that is none.
func (d *driver) see() code {
	d.gpus = d.machine
	if value, ok := environment(open.VisibleVar); ok {
		uuids := make([]string, len(d.machine))
		for i, g := range d.machine {
			uuids[i] = g.uuid.String()
		}
		d.gpus = nil
		for _, n := range open.Visible(value, uuids) {
			d.gpus = append(d.gpus, d.machine[n])
		}
	}
	if len(d.gpus) == 0 {
		return noDevice
	}
	for i, g := range d.gpus {
		g.ordinal = i
	}
	return success
}

// The variables beside open.EnvVar, open.VisibleVar and grantedVar.
const (
	contentsVar = "GPUMEM_SIM_CONTENTS"
	hazardsVar  = "GPUMEM_SIM_HAZARDS"
	beyondVar   = "GPUMEM_SIM_BEYOND"
)

// mayExceed reports whether a request is granted that is not free.
func mayExceed(uint64) bool {
	v, _ := environment(beyondVar)
	return v == "1" && C.simMayExceed() != 0
}

// reportsHazards reports whether a hazard only gets a line in the log, and refuses nothing.
func reportsHazards() (bool, error) {
	switch v, _ := environment(hazardsVar); v {
	case "", "refuse":
		return false, nil
	case "report":
		return true, nil
	default:
		return false, fmt.Errorf("got %q, want refuse or report", v)
	}
}

// logHazard logs a hazard of this device with the address that the program knows.
func (g *gpu) logHazard(h *sim.Hazard) {
	shown := *h
	if h.Addr != 0 {
		shown.Addr = g.out(h.Addr)
	}
	logf("hazard: %v", &shown)
}

// logHazard logs the hazard of a refused call.
func (d *driver) logHazard(h *sim.Hazard) {
	for _, g := range d.gpus {
		if g.sim != nil && slices.Contains(g.sim.Hazards(), h) {
			g.logHazard(h)
			return
		}
	}
	logf("hazard: %v", h) // one of too many
}

// grantedVar and the number of a device, from 0 and below 100, is a variable that puts it into
// the machine. What grants devices one by one, and does not know of each other, sets one each:
// a container gets the devices of all its requests so.
const grantedVar = "GPUMEM_SIM_VISIBLE_"

// granted returns the devices that have their variable, in order; all if none is set.
func granted(list []open.Listed) (some []open.Listed) {
	chosen := false
	for n := range 100 {
		if v, ok := environment(fmt.Sprint(grantedVar, n)); !ok || v == "" {
			continue
		}
		chosen = true
		for _, l := range list {
			if l.Ordinal == n {
				some = append(some, l)
			}
		}
	}
	if !chosen {
		return list
	}
	return some
}

// handle makes a new one. It looks like an address, at which nothing lies.
func (d *driver) handle() uint64 {
	d.last += 0x100
	return d.last
}

func (d *driver) id() uint64 {
	d.lastID++
	return d.lastID
}

// gpu is the device of that ordinal.
func (d *driver) gpu(ordinal int) *gpu {
	check(0 <= ordinal && ordinal < len(d.gpus), invalidDevice)
	return d.gpus[ordinal]
}

// device is the one that argument i is the ordinal of.
func (c *call) device(i int) *gpu { return c.gpu(c.int(i)) }

// status is the device as it is now, without a driver call.
func (g *gpu) status() (device.Status, error) {
	if g.sim != nil {
		return g.sim.Status()
	}
	list, err := g.spec.Status()
	if err != nil {
		return device.Status{}, err
	}
	return list[0].Status, nil
}

// start opens the device for its first context.
func (d *driver) start(g *gpu) {
	if g.sim != nil {
		return
	}
	opened, err := g.spec.Device()
	must(err)
	s := opened.(*sim.Device) // find let nothing else pass
	if wantsPeaks() {
		s.CountAll()
	}
	if _, _, err := s.MemInfo(); err != nil {
		// The first call takes the context's bytes.
		must(errors.Join(err, s.Close()))
	}
	g.sim, g.opened = s, true
	g.legacy = &stream{gpu: g, id: d.id()}
	h, err := s.DefaultPool()
	if err == nil {
		g.defaultPool = d.newPool(g, h)
		g.pool = g.defaultPool
	}
}

// stop closes the device when its last context is gone, unless physical memory
// or addresses are held, which belong to no context.
func (d *driver) stop(g *gpu) {
	if g.contexts > 0 || g.sim == nil || g.reservations > 0 {
		return
	}
	for _, p := range d.handles {
		if p.gpu == g {
			return
		}
	}

	d.past = append(d.past, g.sim.Hazards()...)
	if err := g.sim.Close(); err != nil {
		logf("%v", err)
	}
	maps.DeleteFunc(d.pools, func(_ uint64, p *pool) bool { return p.gpu == g })
	maps.DeleteFunc(d.streams, func(_ uint64, s *stream) bool { return s.gpu == g })
	maps.DeleteFunc(d.events, func(_ uint64, e *event) bool { return e.gpu == g })
	d.blocks.drop(func(b *block) bool { return b.gpu == g })
	g.graphGrants, g.graphBytes = nil, 0
	g.past = g.peaks()
	g.sim, g.legacy, g.defaultPool, g.pool, g.perThread = nil, nil, nil, nil, map[uint64]*stream{}
}

// peaks are the most bytes that were held of a device: by this program, with its context, and by all
// together.
type peaks struct{ own, all uint64 }

// peaks returns those of the device, before a reset, too.
func (g *gpu) peaks() peaks {
	p := g.past
	if g.sim != nil {
		_, own := g.sim.Held()
		p.own = max(p.own, own+g.info.Context)
		p.all = max(p.all, p.own, g.sim.HeldByAll())
	}
	return p
}

// hazards are those of all devices so far.
func (d *driver) hazards() []*sim.Hazard {
	all := d.past
	for _, g := range d.gpus {
		if g.sim != nil {
			all = append(all[:len(all):len(all)], g.sim.Hazards()...)
		}
	}
	return all
}

// noPeer answers that one device has no access to another.
func noPeer(i int) handler {
	return func(c *call) {
		c.device(i)
		give(c, 0, int32(0))
	}
}

func uuid(c *call) { give(c, 0, c.device(1).uuid) }

var deviceCalls = map[string]handler{
	"cuInit": func(c *call) {
		check(c.u32(0) == 0, invalidValue)
		if c.initialised {
			return
		}
		e := c.find()
		check(e == success, e)
		e = c.see()
		check(e == success, e)
		c.initialised = true
		if wantsPeaks() && C.simUnprepared() != 0 {
			writePeak("%d python", os.Getpid())
		}
	},
	// 13.0: the newest interface that the list of names was made for.
	"cuDriverGetVersion": answer(0, int32(13000)),
	"cuGetErrorName":     errorText(0),
	"cuGetErrorString":   errorText(1),
	"cuDeviceGetCount":   func(c *call) { give(c, 0, int32(len(c.gpus))) },
	"cuDeviceGet":        func(c *call) { give(c, 0, int32(c.device(1).ordinal)) },
	"cuDeviceGetName":    func(c *call) { giveText(c, c.device(2).info.Name) },
	"cuDeviceGetPCIBusId": func(c *call) {
		giveText(c, fmt.Sprintf("0000:%02X:00.0", c.device(2).number+1))
	},
	"cuDeviceGetByPCIBusId": func(c *call) {
		var domain, bus, slot int
		n, _ := fmt.Sscanf(c.text(1), "%x:%x:%x", &domain, &bus, &slot)
		check(n >= 2 && domain == 0, invalidValue)
		i := slices.IndexFunc(c.gpus, func(g *gpu) bool { return g.number == bus-1 })
		give(c, 0, int32(c.gpu(i).ordinal))
	},
	"cuDeviceGetUuid":     uuid,
	"cuDeviceGetUuid_v2":  uuid,
	"cuDeviceTotalMem_v2": func(c *call) { give(c, 0, c.device(1).info.Total) },
	"cuDeviceComputeCapability": func(c *call) {
		g := c.device(2)
		put(c, 0, int32(g.info.CCMajor))
		give(c, 1, int32(g.info.CCMinor))
	},
	"cuDeviceGetAttribute": func(c *call) { give(c, 0, c.device(2).attribute(c.int(1))) },
	"cuDeviceGetProperties": func(c *call) {
		c.device(1)
		// Threads of a block, a block's and a grid's sizes, shared and constant
		// memory, warp, pitch, registers, clock, texture alignment.
		give(c, 0, [12]int32{1024, 1024, 1024, 64, 2147483647, 65535, 65535, 49152, 65536, 32, 2147483647, 65536})
	},
	"cuDeviceCanAccessPeer":   noPeer(1),
	"cuDeviceGetP2PAttribute": noPeer(2),
}

// giveText fills the buffer that argument 0 points to and argument 1 is the size of.
func giveText(c *call, s string) {
	check(c.words[0] != 0 && c.int(1) > 0, invalidValue)
	toC((*C.char)(c.pointers[0]), uint64(c.int(1)), s)
}

// attribute is a property of the device by the number of CUdevice_attribute. What
// depends on the device is its own; the rest is an A100's, from NVIDIA's
// programming guide, as are the kinds of things that XLA asks for.
func (g *gpu) attribute(number int) int32 {
	yes := func(b bool) int32 {
		if b {
			return 1
		}
		return 0
	}
	switch number {
	case 33: // PCI bus
		return int32(g.number) + 1
	case 18: // integrated
		return yes(g.info.Unified)
	case 75:
		return int32(g.info.CCMajor)
	case 76:
		return int32(g.info.CCMinor)
	case 81: // shared memory of a multiprocessor
		return sharedMemory(g.info.CCMajor, g.info.CCMinor).multiprocessor << 10
	case 97: // the most that a block may have of it
		return sharedMemory(g.info.CCMajor, g.info.CCMinor).block << 10
	case 83, 89: // managed memory, and touched by both at a time
		return yes(g.info.HasManaged && (number == 83 || g.info.Oversubscribes))
	case 102, 103, 110: // virtual memory, its file descriptors, and direct access from other devices to it
		return yes(g.info.HasPages)
	case 115: // stream-ordered pools
		return yes(g.info.HasPools)
	}
	return attributes[number]
}

// shared is memory that the threads of a block share, in KiB.
type shared struct{ multiprocessor, block int32 }

// sharedMemory returns what cards of a compute capability have: NVIDIA's programming guide, technical
// specifications by compute capability. Triton refuses a kernel that wants more, and programs choose kernels by it.
func sharedMemory(major, minor int) shared {
	switch {
	case major < 7:
		return shared{64, 48} // and up to 112 of a multiprocessor
	case major == 7 && minor < 5:
		return shared{96, 96}
	case major == 7:
		return shared{64, 64}
	case major == 8 && (minor == 0 || minor == 7):
		return shared{164, 163}
	case major == 8, major == 12:
		return shared{100, 99}
	}
	return shared{228, 227}
}

var attributes = map[int]int32{
	1: 1024, 2: 1024, 3: 1024, 4: 64, // threads of a block, and its sizes
	5: 2147483647, 6: 65535, 7: 65535, // a grid's sizes
	8: 49152, 9: 65536, 10: 32, 11: 2147483647, // a block's shared memory, constant memory, warp, pitch
	12: 65536, 13: 1410000, 14: 512, 16: 108, // registers of a block, kHz, texture alignment, multiprocessors
	15: 1, 19: 1, 31: 1, 40: 3, 41: 1, // copies beside kernels, host memory mapped, several kernels, engines, unified addressing
	36: 1215000, 37: 5120, 38: 41943040, 39: 2048, // memory's kHz and width, L2, threads of a multiprocessor
	78: 1, 79: 1, 80: 1, // priorities, caching in L1
	82: 65536, 106: 32, // of a multiprocessor: registers, blocks
	90: 1, 92: 1, 93: 1, 94: 1, 95: 1, 99: 1, // preemption, stream memory operations, cooperative launch, host memory registered
	122: 1, 123: 1, // stream memory operations, by their newer numbers
}
