//go:build linux && (amd64 || arm64) && !nodriver

// A device: how it is opened, described and closed, and grants.

package cuda

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"gpumem/device"
)

// Device is a GPU of the NVIDIA driver, or a MIG slice of one. It is safe for
// use by several goroutines, but a handle must not be destroyed while another
// goroutine's call is using it, as with the driver itself.
//
// Lock order: alive, destroying, mu. No driver call is made with mu held.
type Device struct {
	m          *machine
	id         int32   // the driver's CUdevice
	ctx        uintptr // the primary context
	generation uint64  // its id, where the driver has ids; another one after a reset
	info       device.Info
	// Streams of the device's own. zero is what stands for Stream 0: the
	// driver's null stream would wait for the streams that other libraries in
	// this process made without CU_STREAM_NON_BLOCKING, and they for it. side is
	// for copies from and to the host. ended waits for destroyed streams.
	zero, side, ended uint64

	calls   atomic.Uint64
	nanos   atomic.Int64
	fatal   atomic.Int32 // the Code that ended this process's use of the GPU; 0: none
	earlier atomic.Int32 // the Code of earlier work, for the next wait; 0: none

	blocked chan struct{} // holds one for each thread that waits in the driver
	// Of Close. begun is closed by the first, done when all is released.
	closing  sync.Once
	begun    chan struct{}
	done     chan struct{}
	result   error         // of closing; written before done is closed
	patience time.Duration // how long Close waits

	alive  sync.RWMutex // held for reading during a call, for writing by Close
	closed bool         // guarded by alive
	// destroying is held for reading while streams are used that the caller did
	// not name, for writing while one is destroyed.
	destroying sync.RWMutex

	mu sync.Mutex // guards all below
	// What this program holds, so that Close can release it and no handle
	// gets to the driver that it did not give.
	grants   map[uint64]origin // by address
	streams  map[uint64]bool   // false: adopted, which is not ours to destroy
	ids      map[uint64]uint64 // of the streams; see StreamID
	lastID   uint64            // streams created so far
	events   map[uint64]bool   // keys only
	pools    map[uint64]bool   // false: the default pool, which is not ours to destroy
	handles  map[uint64]uint64 // bytes of each
	reserved map[uint64]uint64 // bytes at each address
	mapped   map[uint64]uint64 // bytes at each address
	spares   map[uint64]bool   // events to wait by that are not in use; keys only
}

var _ device.GPU = (*Device)(nil)

// origin is where a grant is from, which says what may free it.
type origin uint8

const (
	byAlloc        origin = iota // Free or FreeAsync
	byAllocAsync                 // FreeAsync
	byAllocManaged               // Free
)

// open opens a device.
func (m *machine) open(ordinal int) (*Device, error) {
	who := fmt.Sprintf("cuda:%d", ordinal)
	n, err := m.count()
	if err != nil {
		return nil, asCall(err, "cuInit", who)
	}
	if ordinal < 0 || ordinal >= n {
		return nil, &device.CallError{Call: "cuDeviceGet", Device: who, Err: fmt.Errorf("%w: there are %d devices, counted from 0", Code(101), n)}
	}
	id, info, err := m.describe(ordinal)
	if err != nil {
		return nil, err
	}
	m.identify(&info) // what NVML does not know stays as the driver reported it
	d := newDevice(m, id, info)
	ctx := new(uintptr)
	if code := Code(m.cuda.ask(cuDevicePrimaryCtxRetain, uintptr(unsafe.Pointer(ctx)), uintptr(id))); code != success {
		return nil, m.refused(cuDevicePrimaryCtxRetain, info.Name, code)
	}
	d.ctx = *ctx
	if m.cuda.at[cuCtxGetId] != 0 {
		n := new(uint64)
		if code := Code(m.cuda.ask(cuCtxGetId, d.ctx, uintptr(unsafe.Pointer(n)))); code != success {
			m.cuda.ask(cuDevicePrimaryCtxRelease, uintptr(id))
			return nil, m.refused(cuCtxGetId, info.Name, code)
		}
		d.generation = *n
	}
	for _, own := range []*uint64{&d.zero, &d.side, &d.ended} {
		s, err := d.StreamCreate()
		if err != nil {
			_ = d.Close()
			return nil, err
		}
		*own = uint64(s)
		delete(d.streams, *own) // not the caller's
	}
	return d, nil
}

// newDevice makes a device that holds nothing.
func newDevice(m *machine, id int32, info device.Info) *Device {
	return &Device{
		m: m, id: id, info: info,
		blocked: make(chan struct{}, maxBlocked), begun: make(chan struct{}), done: make(chan struct{}), patience: patience,
		grants: map[uint64]origin{}, streams: map[uint64]bool{}, ids: map[uint64]uint64{}, events: map[uint64]bool{}, pools: map[uint64]bool{},
		handles: map[uint64]uint64{}, reserved: map[uint64]uint64{}, mapped: map[uint64]uint64{}, spares: map[uint64]bool{},
	}
}

// describe asks the driver about a device, which makes no context. After an
// error, what was found out until then is in info.
func (m *machine) describe(ordinal int) (id int32, info device.Info, err error) {
	who := fmt.Sprintf("cuda:%d", ordinal)
	info = device.Info{Name: who, Ordinal: ordinal, Granularity: granularity}
	if m.version != 0 {
		info.Driver = "CUDA " + version(m.version) // identify knows better
	}
	// try keeps the first error; what comes after it is not asked.
	try := func(f int, ask func() int32) {
		if err == nil {
			if code := Code(ask()); code != success {
				err = m.refused(f, who, code)
			}
		}
	}
	dev, name, total, uuid := new(int32), make([]byte, 256), new(uint64), new([16]byte)
	try(cuDeviceGet, func() int32 {
		return m.cuda.ask(cuDeviceGet, uintptr(unsafe.Pointer(dev)), uintptr(ordinal))
	})
	try(cuDeviceGetName, func() int32 {
		return m.cuda.ask(cuDeviceGetName, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)), uintptr(*dev))
	})
	try(cuDeviceTotalMem, func() int32 {
		return m.cuda.ask(cuDeviceTotalMem, uintptr(unsafe.Pointer(total)), uintptr(*dev))
	})
	if err != nil {
		return 0, info, err
	}
	info.Name, info.Total = text(name), *total
	who = info.Name

	// The newer call names the slice, the older one always the whole GPU.
	f := cuDeviceGetUuid_v2
	if m.cuda.at[f] == 0 {
		f = cuDeviceGetUuid
	}
	if m.cuda.ask(f, uintptr(unsafe.Pointer(uuid)), uintptr(*dev)) == 0 {
		info.UUID = fmt.Sprintf("GPU-%x-%x-%x-%x-%x", uuid[:4], uuid[4:6], uuid[6:8], uuid[8:10], uuid[10:])
	}
	// A slice is called "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
	if _, slice, ok := strings.Cut(info.Name, " MIG "); ok {
		info.MIG = slice
		info.UUID = strings.Replace(info.UUID, "GPU-", "MIG-", 1)
	}

	attribute := func(a int) (v int) {
		n := new(int32)
		try(cuDeviceGetAttribute, func() int32 {
			code := m.cuda.ask(cuDeviceGetAttribute, uintptr(unsafe.Pointer(n)), uintptr(a), uintptr(*dev))
			if code == 1 { // older than the attribute: it has not what that asks for
				*n, code = 0, 0
			}
			return code
		})
		return int(*n)
	}
	info.CCMajor, info.CCMinor = attribute(attributeCCMajor), attribute(attributeCCMinor)
	info.Unified = attribute(attributeIntegrated) != 0
	info.Display = attribute(attributeKernelTimeout) != 0 // NVML knows better (identify)
	info.HasManaged = attribute(attributeManaged) != 0 && m.cuda.has(cuMemAllocManaged, cuMemAllocManaged)
	info.Oversubscribes = info.HasManaged && attribute(attributeOversubscribe) != 0
	info.HasPools = attribute(attributePools) != 0 && m.cuda.has(firstPoolFunction, lastPoolFunction)
	if attribute(attributePages) != 0 && m.cuda.has(firstPageFunction, lastPageFunction) {
		page, props := new(uint64), new(memProps)
		*props = pinned(*dev)
		try(cuMemGetAllocationGranularity, func() int32 {
			return m.cuda.ask(cuMemGetAllocationGranularity, uintptr(unsafe.Pointer(page)), uintptr(unsafe.Pointer(props)), recommended)
		})
		info.HasPages, info.Page = *page != 0, *page
	}
	return *dev, info, err
}

// identify fills in what NVML knows and the driver does not, and returns NVML's
// handle of the device, or why there is none.
func (m *machine) identify(info *device.Info) (uintptr, error) {
	if err := m.nvml.start(); err != nil {
		return 0, err
	}
	if v, err := m.nvml.driverVersion(); err == nil {
		info.Driver = v
	}
	h, err := m.nvml.find(info.UUID)
	if err == nil && info.MIG == "" { // nothing is drawn by a slice
		if on, err := m.nvml.flag(nvmlDeviceGetDisplayActive, h); err == nil {
			info.Display = on
		}
	}
	return h, err
}

// Info describes the device. Granularity is 512 bytes, which an Alloc is
// rounded up to before the driver sees it, so that all bytes of a Range are the
// caller's; what the driver takes from the GPU beneath is in blocks of 2 MiB,
// which small grants share.
func (d *Device) Info() device.Info { return d.info }

// Counters are the calls that were made for the caller, each with the making
// current of its context, and the time spent in them as measured.
func (d *Device) Counters() device.Counters {
	return device.Counters{Calls: d.calls.Load(), Time: time.Duration(d.nanos.Load())}
}

// MemInfo is what is free and the total, in bytes. On a MIG slice both are the
// slice's. Where the GPU's memory is the host's, free is at most what the
// kernel says is available: the driver counts all that is not in use, and
// who takes that drives the host into its swap, where no error tells of it.
func (d *Device) MemInfo() (free, total uint64, err error) {
	c := d.begin(cuMemGetInfo, 0)
	defer c.end()
	if err := c.returns(0).returns(1).do(); err != nil {
		return 0, 0, err
	}
	free, total = c.out[0], c.out[1]
	if d.info.Unified {
		available, err := d.m.host.memAvailable()
		if err != nil {
			c.refuse(err)
			return 0, 0, c.err
		}
		free = min(free, available)
	}
	return free, total, nil
}

// fits refuses 0 bytes, and at once what is more than there can be: of such
// sizes the driver complains in several ways.
func (c *call) fits(bytes, most uint64) *call {
	if c.check(bytes != 0); bytes > most {
		c.refuse(outOfMemory)
	}
	return c
}

// roundUp makes bytes, which fit, a multiple of the granularity.
func roundUp(bytes uint64) uint64 { return (bytes + granularity - 1) &^ (granularity - 1) }

// Alloc grants bytes, rounded up to a multiple of 512 (cuMemAlloc).
func (d *Device) Alloc(bytes uint64) (device.Range, error) {
	c := d.begin(cuMemAlloc, bytes)
	defer c.end()
	n := roundUp(bytes)
	return c.returns(0).arg(n).fits(bytes, d.info.Total).grant(n, byAlloc)
}

// grant makes a call that grants n bytes.
func (c *call) grant(n uint64, from origin) (device.Range, error) {
	addr, err := create[uint64](c, c.d.grants, from)
	if err != nil {
		return device.Range{}, err
	}
	return device.Range{Addr: addr, Bytes: n}, nil
}

// maxManaged is more than any managed grant, in bytes: it lies among the
// addresses of the program, which have 47 bits on Linux.
const maxManaged = 1 << 47

// AllocManaged grants bytes of managed memory, rounded up to a multiple of 512,
// for every stream (cuMemAllocManaged). The driver counts addresses more than
// memory: it may grant more than the GPU and the host have.
func (d *Device) AllocManaged(bytes uint64) (device.Range, error) {
	c := d.begin(cuMemAllocManaged, bytes)
	defer c.end()
	c.requires(d.info.HasManaged)
	n, most := roundUp(bytes), d.info.Total
	if d.info.Oversubscribes {
		most = maxManaged
	}
	return c.returns(0).arg(n, attachGlobal).fits(bytes, most).grant(n, byAllocManaged)
}

// Free gives a range of Alloc or AllocManaged back, after all work on the device
// (cuMemFree).
func (d *Device) Free(addr uint64) error {
	c := d.begin(cuMemFree, 0)
	defer c.end()
	from, ok := known(d, d.grants, addr)
	c.check(ok && from != byAllocAsync)
	if c.block() {
		defer c.unblock()
	}
	c.arg(addr)
	return forget(c, d.grants, addr)
}

// keep, known, create and forget are for the tables of what this program holds.

func keep[V any](d *Device, table map[uint64]V, key uint64, v V) {
	d.mu.Lock()
	defer d.mu.Unlock()
	table[key] = v
}

func known[V any](d *Device, table map[uint64]V, key uint64) (V, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, ok := table[key]
	return v, ok
}

// create makes a call whose first result is a new key of a table.
func create[K ~uint64, V any](c *call, table map[uint64]V, v V) (K, error) {
	if err := c.do(); err != nil {
		return 0, err
	}
	keep(c.d, table, c.out[0], v)
	return K(c.out[0]), nil
}

// forget makes the call that ends key. The key leaves the table before, since
// the driver may give it to someone else at once; if the call fails it is back,
// unless it has ended all the same. Of two that want to end it, one is refused.
func forget[V any](c *call, table map[uint64]V, key uint64) error {
	d := c.d
	if c.err != nil {
		return c.err
	}
	d.mu.Lock()
	v, ok := table[key]
	delete(table, key)
	d.mu.Unlock()
	c.check(ok)
	if c.do() == nil || !ok || c.over(key) {
		return c.err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, again := table[key]; !again {
		table[key] = v
	}
	return c.err
}

// over reports whether a call that failed to end key finds it ended. A stream or
// event that the driver does not know is. cuMemFree may return an error of
// earlier work, and does not say what that means for the memory: so the driver
// is asked whether the memory is still granted. If not, the error is kept for
// the next wait, and the call has done what it was for. After an error that is
// fatal nothing is asked: the memory ended with the context.
func (c *call) over(key uint64) bool {
	d := c.d
	switch {
	case c.f == cuStreamDestroy || c.f == cuEventDestroy:
		return errors.Is(c.err, invalidHandle)
	case c.f != cuMemFree || d.fatal.Load() != 0:
		return false
	}
	err := c.err
	c.err, c.f, c.n = nil, cuMemGetAddressRange, 0
	code := c.returns(0).returns(1).arg(key).run()
	c.err = err
	if code != notFound && code != invalidValue {
		d.remember(code)
		return false
	}
	var earlier Code
	if errors.As(err, &earlier) && earlier != invalidValue {
		d.earlier.Store(int32(earlier))
		c.err = nil
	}
	return true
}

// patience is how long Close waits for the GPU. An assumption: longer than the
// work that a program leaves behind in good order takes.
const patience = 30 * time.Second

// Close releases all that this program still holds on the device, after the
// work under way, and releases the primary context. Calls that wait for the GPU
// end at once with ErrClosed.
//
// If the work under way does not end within 30 seconds, Close returns
// [ErrRunning] and goes on behind: all is released when the work ends. Close
// called again waits again. On a device that is lost, or whose context was
// reset, there is nothing to release.
func (d *Device) Close() error {
	d.closing.Do(func() {
		close(d.begun)
		go func() {
			d.result = d.giveBack()
			close(d.done)
		}()
	})
	timeout := time.NewTimer(d.patience)
	defer timeout.Stop()
	select {
	case <-d.done:
		d.mu.Lock()
		defer d.mu.Unlock()
		err := d.result
		d.result = nil // said once
		return err
	case <-timeout.C:
		return &device.CallError{Call: "cuCtxSynchronize", Device: d.info.Name, Err: fmt.Errorf(
			"%w after %v; its memory is released when the work ends, at the latest with the process", ErrRunning, d.patience)}
	}
}

// giveBack is what Close does, however long it takes.
func (d *Device) giveBack() error {
	d.alive.Lock()
	defer d.alive.Unlock()
	d.closed = true
	var first error
	note := func(err error) {
		if first == nil {
			first = err
		}
	}
	ask := func(f int, args ...uint64) {
		if d.fatal.Load() != 0 {
			return
		}
		note((&call{d: d, f: f}).arg(args...).do())
	}
	wait := func(await func(*call) error) {
		if d.fatal.Load() == 0 {
			note(await(&call{d: d, f: cuCtxSynchronize, closing: true}))
		}
	}
	wait((*call).awaitAll)
	for _, addr := range keys(d.mapped) {
		ask(cuMemUnmap, addr, d.mapped[addr])
	}
	for _, h := range keys(d.handles) {
		ask(cuMemRelease, h)
	}
	for _, addr := range keys(d.reserved) {
		ask(cuMemAddressFree, addr, d.reserved[addr])
	}
	for _, addr := range keys(d.grants) {
		if d.grants[addr] == byAllocAsync {
			ask(cuMemFreeAsync, addr, d.zero)
		} else {
			ask(cuMemFree, addr)
		}
	}
	wait(func(c *call) error { return c.awaitStreams([]uint64{d.zero}, nil) })
	for _, e := range append(keys(d.events), keys(d.spares)...) {
		ask(cuEventDestroy, e)
	}
	for _, s := range append(keys(d.streams), d.zero, d.side, d.ended) {
		if own, ok := d.streams[s]; s != 0 && (own || !ok) { // 0: not created, for Open failed
			ask(cuStreamDestroy, s)
		}
	}
	for _, p := range keys(d.pools) {
		if d.pools[p] {
			ask(cuMemPoolDestroy, p)
		} else {
			ask(cuMemPoolTrimTo, p, 0) // it lives on, with what it may keep
		}
	}
	code := Code(d.m.cuda.ask(cuDevicePrimaryCtxRelease, uintptr(d.id)))
	if d.fatal.Load() != 0 {
		return nil
	}
	if code != success {
		note(d.m.refused(cuDevicePrimaryCtxRelease, d.info.Name, code))
	}
	return first
}

// keys are in order, so that closing is the same each time.
func keys[V any](m map[uint64]V) []uint64 { return slices.Sorted(maps.Keys(m)) }
