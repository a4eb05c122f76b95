// Package sim is a simulated GPU: it grants and counts memory as a device
// does, refuses when it has none left, and says what its driver's calls would
// have cost. Nothing is stored in its memory.
//
// This one is private to the process. Its rules are few, so that results can
// be foretold and repeated anywhere:
//
//   - a grant is rounded up to the granularity and refused if it does not fit
//     in what is free, where free is the total less what others and the
//     display hold and less what was granted;
//   - the first grant lies at 0x7f0000000000 and each next one at the first
//     2 MiB boundary at or after the end of the last; an address is never used
//     twice. So the device itself never fragments: what fragments is the pool
//     above it;
//   - every call, refused ones included, is counted, and adds to a modelled
//     time that depends on the calls before it alone ([Costs]).
//
// A call that fails takes nothing and gives nothing back.
package sim

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"gpumem/device"
	"gpumem/size"
)

const (
	// Base is the address of the first grant. Linux places CUDA's ranges near
	// here, and the recorded placements of the original allocator count from
	// it.
	Base = 0x7f0000000000
	// addrStep: every grant begins at a multiple of it.
	addrStep = 2 << 20
	// DefaultGranularity is what NVIDIA's GPUs since Pascal use for large
	// allocations.
	DefaultGranularity = 2 << 20
)

// Config describes a simulated GPU. The zero value but for Total is a plain
// one: 2 MiB granularity, nobody else on it, compute capability 9.0.
type Config struct {
	Total       uint64 // bytes, at least 1
	Granularity uint64 // bytes; 0 means DefaultGranularity
	Used        uint64 // bytes that another program holds
	Display     uint64 // bytes that the desktop holds; more than 0 means a display is on
	CCMajor     int    // compute capability; 0.0 means 9.0
	CCMinor     int
	Name        string // "" means "sim:SIZE"
	Costs       Costs  // zero means DefaultCosts
}

// Device is a simulated GPU. It is safe for use by several goroutines.
type Device struct {
	cfg   Config // never changes
	info  device.Info
	costs Costs

	mu     sync.Mutex // guards everything below
	ledger ledger     // counts the bytes; shared with other programs or not
	closed bool
	next   uint64 // where the next grant goes
	held   uint64 // bytes granted and not given back
	peak   uint64 // most that held ever was
	grants map[uint64]grant
	count  device.Counters
	blocks blocks // that small grants share; only what a call costs depends on it
	faults faults
}

// grant is one range as the device remembers it.
type grant struct {
	bytes uint64
	block uint64 // of the shared block that it lies in; 0: it has blocks of its own
}

var _ device.Device = (*Device)(nil)

// New makes a simulated GPU. What others hold may not exceed the total.
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
	if cfg.CCMajor == 0 && cfg.CCMinor == 0 {
		cfg.CCMajor = 9
	}
	if cfg.Name == "" {
		cfg.Name = "sim:" + strings.ReplaceAll(size.Format(cfg.Total), " ", "")
	}
	d := &Device{
		ledger: &private{total: cfg.Total - cfg.Display, used: cfg.Used},
		cfg:    cfg,
		info: device.Info{
			Name:        cfg.Name,
			Total:       cfg.Total,
			Granularity: cfg.Granularity,
			CCMajor:     cfg.CCMajor,
			CCMinor:     cfg.CCMinor,
			Display:     cfg.Display > 0,
			Simulated:   true,
			Base:        Base,
		},
		costs:  cfg.Costs,
		next:   Base,
		grants: make(map[uint64]grant),
		blocks: blocks{left: make(map[uint64]uint64)},
	}
	if d.costs == (Costs{}) {
		d.costs = DefaultCosts
	}
	return d, nil
}

// Info describes the device.
func (d *Device) Info() device.Info { return d.info }

// Held is how many bytes are granted now, and the most that ever were.
func (d *Device) Held() (now, peak uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.held, d.peak
}

// Counters are the calls so far and their modelled time.
func (d *Device) Counters() device.Counters {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.count
}

// MemInfo is what is free and the total, in bytes. It fails only by a fault.
func (d *Device) MemInfo() (free, total uint64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("cuMemGetInfo", 0, d.costs.MemInfo); err != nil {
		return 0, 0, err
	}
	free, err = d.ledger.free()
	if err != nil {
		return 0, 0, d.refuse("cuMemGetInfo", 0, err)
	}
	return free, d.cfg.Total, nil
}

// take holds n bytes of the device. Caller holds d.mu.
func (d *Device) take(n uint64) error {
	if err := d.ledger.take(n); err != nil {
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

// Close gives back everything. Later calls fail with device.ErrClosed.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	d.held = 0
	clear(d.grants)
	return d.ledger.close()
}

// Alloc grants bytes, rounded up to the granularity. It refuses with
// device.ErrOutOfMemory what does not fit, and 0 bytes with
// device.ErrInvalidValue.
func (d *Device) Alloc(bytes uint64) (device.Range, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("cuMemAlloc", bytes, d.costs.SmallAlloc); err != nil {
		return device.Range{}, err
	}
	if bytes == 0 {
		return device.Range{}, d.refuse("cuMemAlloc", bytes, device.ErrInvalidValue)
	}
	n, ok := roundUp(bytes, d.cfg.Granularity)
	if !ok {
		return device.Range{}, d.refuse("cuMemAlloc", bytes, device.ErrOutOfMemory)
	}
	addr := d.next
	next, ok := roundUp(addr+n, addrStep)
	if addr+n < addr || !ok {
		// The addresses below 2^64 are used up: a device of 80 GiB has by then
		// granted 200 million times its memory, one of exabytes a few times.
		return device.Range{}, d.refuse("cuMemAlloc", bytes, device.ErrOutOfMemory)
	}
	if err := d.take(n); err != nil {
		return device.Range{}, d.refuse("cuMemAlloc", bytes, err)
	}
	d.next = next
	d.grants[addr] = d.place(n)
	return device.Range{Addr: addr, Bytes: n}, nil
}

// Free gives the grant that starts at addr back. Where none does it fails with
// device.ErrInvalidValue.
func (d *Device) Free(addr uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("cuMemFree", 0, d.costs.SmallFree); err != nil {
		return err
	}
	g, ok := d.grants[addr]
	if !ok {
		return d.refuse("cuMemFree", 0, device.ErrInvalidValue)
	}
	if err := d.give(g.bytes); err != nil {
		return d.refuse("cuMemFree", 0, err)
	}
	delete(d.grants, addr)
	d.chargeFree(g)
	return nil
}

// call counts one driver call of the given cost and lets the faults have their
// say. Caller holds d.mu.
func (d *Device) call(name string, bytes uint64, cost time.Duration) error {
	if d.closed {
		return d.refuse(name, bytes, device.ErrClosed)
	}
	d.count.Calls++
	d.count.Time += cost
	if err := d.faults.check(d.count.Calls, bytes); err != nil {
		return d.refuse(name, bytes, err)
	}
	return nil
}

// refuse says what was refused and why.
func (d *Device) refuse(call string, bytes uint64, err error) error {
	return &device.CallError{Call: call, Device: d.cfg.Name, Bytes: bytes, Err: err}
}

// place charges a grant of n bytes what it costs beyond a small one, and says
// in which shared block it lies. Caller holds d.mu.
func (d *Device) place(n uint64) grant {
	if n >= driverBlock {
		d.count.Time += ofSize(d.costs.BlockAlloc, d.costs.AllocPerMiB, n) - d.costs.SmallAlloc
		return grant{bytes: n}
	}
	id, opened := d.blocks.take(inBlock(n))
	if opened {
		d.count.Time += d.costs.BlockAlloc - d.costs.SmallAlloc
	}
	return grant{bytes: n, block: id}
}

// chargeFree is the counterpart: the last grant of a block closes it. Caller
// holds d.mu.
func (d *Device) chargeFree(g grant) {
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
