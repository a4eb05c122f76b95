// Package sim is a simulated GPU: it grants and counts memory as a device
// does, refuses when it has none left, keeps what is written to it, and models
// the time of its driver's calls.
//
// It is private to the process ([New]) or shared by all processes that name one file
// ([Join]). Its rules are few, so that results can be predicted and repeated
// anywhere:
//
//   - a grant is rounded up to the granularity and refused if it does not fit
//     in what is free, where free is the total less what others and the
//     display hold and less what was granted; managed grants take nothing of
//     it and have a separate bound (managed.go);
//   - the first grant lies at 0x7f0000000000 and each next one at the first
//     2 MiB boundary at or after the end of the last; an address is never used
//     twice. So the device itself never fragments: what fragments is the pool
//     above it. Reservations of addresses begin at 2^48 and go on likewise;
//   - every call, refused ones included, is counted, and adds to a modelled
//     time that depends on the calls before it alone ([Costs]).
//
// A call that fails takes nothing and releases nothing.
//
// One request, on sim:80GiB. Alloc of 3 MiB locks the device and passes the gate
// that every driver call passes (call, faults.go): it is call 1, may fail by a fault that
// a test has set, and takes the context's bytes as the first call. Then 3 MiB are rounded
// up to 4, which the ledger holds (ledger.go), the grant lies at 0x7f0000000000, and the
// space records it (space.go). The call took BlockAlloc of modelled time, for a grant
// that needs a new block of the driver, and AllocPerMiB for each MiB after the first two
// (costs.txt). A Write there passes the same gate, asks
// the space which pieces of physical memory lie behind its addresses
// (memory.go), checks that no work under way touches them (hazard.go) and
// stores the bytes. MemMap (pages.go) makes such pieces appear at other
// addresses.
//
// # Lock order
//
//	Device.mu        all state of one program's device
//	shared.File.mu   the mapping of a shared file
//	the file's lock  between processes, an open file description's
//
// A [Hook] is called with none of them held.
package sim

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"

	"gpumem/device"
	"gpumem/size"
)

const (
	// Base is the address of the first grant. Linux places CUDA's ranges near
	// here, and the recorded placements of the original allocator (testdata/bfc) are
	// relative to it.
	Base = 0x7f0000000000
	// addrStep: every grant begins at a multiple of it.
	addrStep = 2 << 20
	// DefaultGranularity is what NVIDIA's GPUs since Pascal use for large
	// allocations.
	DefaultGranularity = 2 << 20
	// DefaultHost is the host's memory that managed grants may use. An
	// assumption: a DGX H100 has 2 TB for its 8 GPUs (NVIDIA's data sheet).
	DefaultHost = 256 << 30
	// UsualContext is the memory that a program is taken to have beside its pool on a real GPU:
	// the most of a context, its modules and library handles in an ordinary program, without
	// NCCL. Contexts alone take 0.3 to 0.6 GiB.
	UsualContext = 1536 << 20
)

// Config describes a simulated GPU. With Total alone it is a plain one: 2 MiB
// granularity, no other program on it, compute capability 9.0, pages, pools and managed
// memory, no faults.
type Config struct {
	Total       uint64 // bytes, at least 1
	Granularity uint64 // bytes; 0 means DefaultGranularity
	Used        uint64 // bytes that another program holds
	Display     uint64 // bytes that the desktop holds; more than 0 means a display is on
	// Context is the bytes that a program's first driver call takes in addition to
	// what it requests, as a CUDA context does. A call that finds them not
	// free is refused with device.ErrOutOfMemory, and the next one tries again.
	Context   uint64
	Host      uint64 // bytes of the host's memory, for managed grants; 0 means DefaultHost
	CCMajor   int    // compute capability; 0.0 means 9.0
	CCMinor   int
	NoPages   bool // without virtual memory, as some virtual GPUs are
	NoPools   bool // without stream-ordered pools
	NoManaged bool // without managed memory
	// ReuseStreams gives the handle of a destroyed stream to the next one that is
	// created, as real drivers do. Without it no handle is used twice.
	ReuseStreams bool
	// PromptAllocs makes an allocation from a pool usable in every stream when the call
	// returns, if there is nothing that it would wait for: the host knows all kernels, copies
	// and fills in its stream, and before them, to be done. Real drivers map the memory within
	// the call, so programs get away with it. NVIDIA's manual promises less, and without
	// PromptAllocs a use in another stream must be ordered after the allocation.
	PromptAllocs bool
	// Report is called with each hazard that Hazards keeps, if it is set, and no call is
	// refused for a hazard then. The device is locked during the call, so Report must not
	// use it.
	Report func(*Hazard)
	// Exceed is called with the bytes of each request that are not free, if it is set. They are
	// granted where it returns true, as long as no more than Beyond bytes are held that are not
	// there. The device is locked during the call, so Exceed must not use it.
	Exceed  func(bytes uint64) bool
	Beyond  uint64 // bytes
	Unified bool   // its memory is the host's
	MIG     string // the slice's name, such as "1g.10gb"; "" means a whole GPU
	Name    string // "" means "sim:SIZE"
	Costs   Costs  // zero means those of costs.txt
	Faults  Faults // that it has from the beginning
}

// Device is a simulated GPU. It is safe for use by several goroutines.
type Device struct {
	cfg   Config // never changes
	info  device.Info
	costs Costs

	mu      sync.Mutex // guards everything below
	ledger  ledger     // counts the bytes; shared with other programs or not
	closed  bool
	context bool   // the context's bytes are taken
	next    uint64 // where the next grant goes
	high    uint64 // where the next reservation or pool's chunk goes, at the earliest
	held    uint64 // bytes granted and not released
	peak    uint64 // most that held ever was
	managed uint64 // bytes of managed grants, if they take nothing of the device
	space   space  // what has memory behind it
	count   device.Counters
	blocks  blocks // that small grants share; only what a call costs depends on it
	faults  Faults
	hook    Hook  // nil: none
	work    work  // clock.go, stream.go
	pools   pools // pool.go

	// Of pages.go.
	handles     map[device.Handle]*memory
	lastHandle  device.Handle
	reserved    space  // the reservations
	reservedSum uint64 // bytes of them
	accessible  uint64 // units of pageUnit in mappings with access
}

var _ device.GPU = (*Device)(nil)

// New makes a simulated GPU. It is an error if Total is 0, or if Used and Display are
// more than Total together.
func New(cfg Config) (*Device, error) {
	if cfg.Total == 0 {
		return nil, fmt.Errorf("sim: a device of 0 bytes; give it a size, such as sim:80GiB")
	}
	if cfg.Granularity == 0 {
		cfg.Granularity = DefaultGranularity
	}
	if cfg.Used > cfg.Total || cfg.Display > cfg.Total-cfg.Used {
		return nil, fmt.Errorf("sim: used %s and display %s are more than the device's %s",
			size.Format(cfg.Used), size.Format(cfg.Display), size.Format(cfg.Total))
	}
	if cfg.Host == 0 {
		cfg.Host = DefaultHost
	}
	cfg.Host = min(cfg.Host, math.MaxUint64-cfg.Total) // managed memory is counted in 64 bits
	if cfg.CCMajor == 0 && cfg.CCMinor == 0 {
		cfg.CCMajor = 9
	}
	if cfg.Name == "" {
		cfg.Name = "sim:" + strings.ReplaceAll(size.Format(cfg.Total), " ", "")
	}
	d := &Device{
		ledger: &private{&holdings{total: cfg.Total - cfg.Display, more: cfg.Beyond, used: cfg.Used}, 0},
		cfg:    cfg,
		info: device.Info{
			Name:           cfg.Name,
			Total:          cfg.Total,
			Granularity:    cfg.Granularity,
			CCMajor:        cfg.CCMajor,
			CCMinor:        cfg.CCMinor,
			Display:        cfg.Display > 0,
			MIG:            cfg.MIG,
			Unified:        cfg.Unified,
			HasPages:       !cfg.NoPages,
			HasPools:       !cfg.NoPools,
			HasManaged:     !cfg.NoManaged,
			Oversubscribes: !cfg.NoManaged && !cfg.Unified && cfg.CCMajor >= 6,
			Simulated:      true,
			Context:        cfg.Context,
			Base:           Base,
		},
		costs:   cfg.Costs,
		next:    Base,
		high:    highBase,
		blocks:  blocks{left: make(map[uint64]uint64)},
		handles: make(map[device.Handle]*memory),
		work:    newWork(),
		pools:   newPools(),
		faults:  cfg.Faults,
	}
	if d.info.HasPages {
		d.info.Page = pageUnit
		if cfg.Granularity%pageUnit == 0 {
			d.info.Page = cfg.Granularity
		}
	}
	if d.costs == (Costs{}) {
		d.costs = defaultCosts()
	}
	return d, nil
}

// Another opens the device for another program: what each holds the others do not have, and
// addresses, streams and the context are its own. The error is device.ErrNotSupported for a
// device of a file, which Join opens again.
func (d *Device) Another() (device.GPU, error) {
	common, ok := d.ledger.(*private)
	if !ok {
		return nil, device.ErrNotSupported
	}
	other, err := New(d.cfg)
	if err != nil {
		return nil, err
	}
	other.ledger = &private{common.holdings, 0}
	return other, nil
}

// Info describes the device.
func (d *Device) Info() device.Info { return d.info }

// Held returns how many of the device's bytes are granted now, and the most that ever
// were. What managed grants hold apart from them is [Device.HeldManaged].
func (d *Device) Held() (now, peak uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.held, d.peak
}

// CountAll has [Device.HeldByAll] count from now on, which looks for dead processes whenever that grows.
func (d *Device) CountAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c, ok := d.ledger.(*common); ok && !d.closed {
		c.file.CountAll()
	}
}

// HeldByAll returns the most bytes that all programs ever held together just after this one had taken some, the
// contexts among them. It is 0 without [Device.CountAll], and of a device that is not shared.
func (d *Device) HeldByAll() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c, ok := d.ledger.(*common); ok && !d.closed {
		return c.file.All(c.index)
	}
	return 0
}

// Counters returns the number of calls so far and their modelled time.
func (d *Device) Counters() device.Counters {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.count
}

// MemInfo returns the bytes that are free and the total. It fails only by a fault, or if
// a shared file is damaged or locked.
func (d *Device) MemInfo() (free, total uint64, err error) {
	err = d.do("cuMemGetInfo", 0, d.costs.MemInfo, func() (err error) {
		free, err = d.ledger.free()
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	return free, d.cfg.Total, nil
}

// charge holds n bytes in the ledger. Caller holds d.mu.
func (d *Device) charge(n uint64) error {
	err := d.ledger.take(n)
	if errors.Is(err, device.ErrOutOfMemory) && d.cfg.Beyond > 0 && d.cfg.Exceed != nil && d.cfg.Exceed(n) {
		return d.ledger.exceed(n)
	}
	return err
}

// take holds n bytes of the device. Caller holds d.mu.
func (d *Device) take(n uint64) error {
	if err := d.charge(n); err != nil {
		return err
	}
	d.held += n
	d.peak = max(d.peak, d.held)
	return nil
}

// give ends holding n bytes. Caller holds d.mu.
func (d *Device) give(n uint64) error {
	if err := d.ledger.give(n); err != nil {
		return err
	}
	d.held -= n
	return nil
}

// Close releases everything. Later calls fail with device.ErrClosed, and so
// do those that a [Hook] holds at the time.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	d.held, d.managed, d.reservedSum, d.accessible = 0, 0, 0, 0
	d.space, d.reserved = space{}, space{}
	clear(d.handles)
	found := d.work.hazards // a test asks at the end
	d.work, d.pools = newWork(), newPools()
	d.work.hazards = found
	return d.ledger.close()
}

// Alloc grants bytes, rounded up to the granularity. It refuses with
// device.ErrOutOfMemory what does not fit, and 0 bytes with
// device.ErrInvalidValue.
func (d *Device) Alloc(bytes uint64) (r device.Range, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err = d.call("cuMemAlloc", bytes, d.costs.SmallAlloc); err == nil {
		r, err = d.grant(bytes, granted)
	}
	return r, d.refuse("cuMemAlloc", bytes, err)
}

// grant is a grant of that kind. Caller holds d.mu.
func (d *Device) grant(bytes uint64, k kind) (device.Range, error) {
	if bytes == 0 {
		return device.Range{}, device.ErrInvalidValue
	}
	n, ok := roundUp(bytes, d.cfg.Granularity)
	if !ok {
		return device.Range{}, device.ErrOutOfMemory
	}
	addr := d.next
	if d.high > highBase && addr+n > highBase {
		// Grants have come to where reservations are.
		addr = max(addr, d.high)
	}
	next, ok := roundUp(addr+n, addrStep)
	if addr+n < addr || !ok {
		// The addresses below 2^64 are used up: a device of 80 GiB has by then
		// granted 200 million times its memory, one of exabytes a few times.
		return device.Range{}, device.ErrOutOfMemory
	}
	if err := d.hold(n, k); err != nil {
		return device.Range{}, err
	}
	d.next = next
	d.space.add(segment{addr: addr, bytes: n, block: d.place(n), kind: k})
	return device.Range{Addr: addr, Bytes: n}, nil
}

// Free gives the grant that starts at addr back, plain or managed, once all work
// on the device is done. Where no grant starts it fails with
// device.ErrInvalidValue.
func (d *Device) Free(addr uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.call("cuMemFree", 0, d.costs.SmallFree)
	if err == nil {
		err = d.ungrant(addr)
	}
	return d.refuse("cuMemFree", 0, err)
}

// ungrant releases a grant after all work on the device. Caller holds d.mu.
func (d *Device) ungrant(addr uint64) error {
	at := d.space.starting(addr)
	if at == nil || at.kind != granted && at.kind != managed {
		return device.ErrInvalidValue
	}
	g := *at
	d.drain()
	if err := d.letGo(g.bytes, g.kind); err != nil {
		return err
	}
	d.space.remove(addr)
	d.chargeFree(g)
	return nil
}

// refuse makes the error of a refused call. An error that is one already stays as
// it is, and nil stays nil.
func (d *Device) refuse(call string, bytes uint64, err error) error {
	if err == nil {
		return nil
	}
	if as := (*device.CallError)(nil); errors.As(err, &as) {
		return err
	}
	return &device.CallError{Call: call, Device: d.cfg.Name, Bytes: bytes, Err: err}
}

// place charges a grant of n bytes what it costs beyond a small one, and returns
// the shared block that it lies in, 0 if it has separate blocks. Caller holds d.mu.
func (d *Device) place(n uint64) (block uint64) {
	if n >= driverBlock {
		d.count.Time += ofSize(d.costs.BlockAlloc, d.costs.AllocPerMiB, n) - d.costs.SmallAlloc
		return 0
	}
	id, opened := d.blocks.take(inBlock(n))
	if opened {
		d.count.Time += d.costs.BlockAlloc - d.costs.SmallAlloc
	}
	return id
}

// chargeFree is the counterpart: the last grant of a block closes it. Caller
// holds d.mu.
func (d *Device) chargeFree(g segment) {
	if g.block == 0 {
		d.count.Time += ofSize(d.costs.BlockFree, d.costs.FreePerMiB, g.bytes) - d.costs.SmallFree
	} else if d.blocks.give(g.block, inBlock(g.bytes)) {
		d.count.Time += d.costs.BlockFree - d.costs.SmallFree
	}
}

// inBlock is the room that a grant of n bytes, less than a block, takes in one.
func inBlock(n uint64) uint64 { return (n + smallStep - 1) &^ (smallStep - 1) }

// roundUp rounds n up to a multiple of to (at least 1); false where that does
// not fit into 64 bits.
func roundUp(n, to uint64) (uint64, bool) {
	rest := n % to
	if rest == 0 {
		return n, true
	}
	if n > math.MaxUint64-(to-rest) {
		return 0, false
	}
	return n + (to - rest), true
}
