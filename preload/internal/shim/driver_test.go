package shim_test

import (
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/policy/frameworks"
	"gpumem/preload/internal/shim"
)

// driver is a simulated GPU as a program's driver. The program's streams are the
// device's. In those of captured a graph is being captured: nothing may be recorded there,
// and nothing may wait. A stream waits for the legacy stream unless it is in nonBlocking.
type driver struct {
	*sim.Device
	captured    map[device.Stream]bool
	nonBlocking map[device.Stream]bool
	lost        error               // what Capturing says of every stream; nil: the context is well
	waits       atomic.Int64        // calls of SynchronizeContext that went well
	waited      func()              // called at the end of each, before it returns; nil: nothing is
	access      []device.Range      // that peers got
	asked       func(device.Stream) // is called when it is asked whether a stream is captured

	hook   sim.Hook             // that of OnCall
	pinned [][]byte             // of HostAlloc
	copies []func() error       // that are queued
	events sync.Mutex           // guards before: all threads record events
	before map[device.Event]int // how many were queued, or made, before an event
	made   int                  // copies so far
	most   int                  // the most that were queued at once
}

func (d *driver) OnCall(hook sim.Hook) {
	d.hook = hook
	d.Device.OnCall(hook)
}

// called is the beginning of a call that the device does not have.
func (d *driver) called(name string, bytes uint64) error {
	if d.hook == nil {
		return nil
	}
	return d.hook(0, name, bytes)
}

// copyUntil makes the first n copies of all.
func (d *driver) copyUntil(n int) (err error) {
	for ; d.made < n; d.made++ {
		f := d.copies[0]
		d.copies = d.copies[1:]
		err = errors.Join(err, f())
	}
	return err
}

func (d *driver) EventSynchronize(e device.Event) error {
	if err := d.Device.EventSynchronize(e); err != nil {
		return err
	}
	d.events.Lock()
	n := d.before[e]
	d.events.Unlock()
	return d.copyUntil(n)
}

var errSpoilt = errors.New("the call spoils a capture")

func (d *driver) EventRecord(e device.Event, s device.Stream) error {
	if d.captured[s] {
		return errSpoilt
	}
	d.events.Lock()
	if d.before == nil {
		d.before = map[device.Event]int{}
	}
	d.before[e] = d.made + len(d.copies)
	d.events.Unlock()
	return d.Device.EventRecord(e, s)
}

func (d *driver) StreamWaitEvent(s device.Stream, e device.Event) error {
	if d.captured[s] {
		return errSpoilt
	}
	return d.Device.StreamWaitEvent(s, e)
}

func (d *driver) StreamSynchronize(s device.Stream) error {
	if d.captured[s] {
		return errSpoilt
	}
	if err := d.Device.StreamSynchronize(s); err != nil {
		return err
	}
	return d.copyUntil(d.made + len(d.copies))
}

func (d *driver) Context() uint64                   { return 1 }
func (d *driver) Adopt(handle uint64) device.Stream { return device.Stream(handle) }
func (d *driver) Disown(device.Stream) error        { return nil }

func (d *driver) SynchronizeContext() error {
	if len(d.captured) > 0 {
		return errSpoilt
	}
	err := d.Device.Synchronize()
	if err == nil {
		d.waits.Add(1)
		if d.waited != nil {
			d.waited()
		}
	}
	return err
}

// Capturing refuses the question about a stream that has ended. The legacy stream counts as
// captured while a stream that waits for it is.
func (d *driver) Capturing(handle uint64) (bool, error) {
	if d.lost != nil {
		return false, d.lost
	}
	if d.asked != nil {
		d.asked(device.Stream(handle))
	}
	if _, err := d.StreamID(device.Stream(handle)); err != nil {
		return false, err
	}
	if handle == 1 {
		for s := range d.captured {
			if !d.nonBlocking[s] {
				return true, nil
			}
		}
	}
	return d.captured[device.Stream(handle)], nil
}

func (d *driver) MemSetAccessFrom(_ int, addr, bytes uint64) error {
	d.access = append(d.access, device.Range{Addr: addr, Bytes: bytes})
	return nil
}

// HostAlloc is refused where hook, that of OnCall, says so, as all calls about the host's memory are.
func (d *driver) HostAlloc(bytes uint64) ([]byte, error) {
	if err := d.called("cuMemHostAlloc", bytes); err != nil {
		return nil, err
	}
	b := make([]byte, bytes)
	d.pinned = append(d.pinned, b)
	return b, nil
}

func (d *driver) HostFree(p []byte) error {
	if err := d.called("cuMemFreeHost", uint64(len(p))); err != nil {
		return err
	}
	i := slices.IndexFunc(d.pinned, func(b []byte) bool { return &b[0] == &p[0] })
	if i < 0 {
		return device.ErrInvalidValue
	}
	clear(p)
	d.pinned = slices.Delete(d.pinned, i, i+1)
	return nil
}

// Copies of pinned memory are made at the next wait for their stream or event, or for the context.
func (d *driver) ReadAsync(p []byte, addr uint64, s device.Stream) error {
	return d.later(p, func() error { return d.Device.Read(addr, p) })
}

func (d *driver) WriteAsync(addr uint64, p []byte, s device.Stream) error {
	return d.later(p, func() error { return d.Device.Write(addr, p) })
}

func (d *driver) later(p []byte, f func() error) error {
	if err := d.called("copy", uint64(len(p))); err != nil {
		return err
	}
	if !slices.ContainsFunc(d.pinned, func(b []byte) bool { return inside(b, p) }) {
		return device.ErrInvalidValue
	}
	d.copies = append(d.copies, f)
	d.most = max(d.most, len(d.copies))
	return nil
}

// inside reports whether p lies in b.
func inside(b, p []byte) bool {
	from, to := uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&p[0]))
	return to >= from && to+uintptr(len(p)) <= from+uintptr(len(b))
}

// newDriver makes a driver of which no stream has the handle of the legacy stream.
func newDriver(t testing.TB, c sim.Config) *driver {
	t.Helper()
	d, err := sim.New(c)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := d.StreamCreate(); err != nil || s != 1 {
		t.Fatalf("the first stream is %d, %v; want the legacy stream's handle", s, err)
	}
	return &driver{Device: d, captured: map[device.Stream]bool{}, nonBlocking: map[device.Stream]bool{}}
}

// count counts the calls of the driver by name, from here on. fail, if set, decides which
// of them fail.
func (d *driver) count(fail func(call string) error) map[string]int {
	calls := map[string]int{}
	d.OnCall(func(_ uint64, call string, _ uint64) error {
		calls[call]++
		if fail != nil {
			return fail(call)
		}
		return nil
	})
	return calls
}

// failing returns a fail for count: calls of that name fail.
func failing(name string, err error) func(string) error {
	return func(call string) error {
		if call == name {
			return err
		}
		return nil
	}
}

// stream creates a stream of the program.
func (d *driver) stream(t testing.TB) device.Stream {
	t.Helper()
	s, err := d.StreamCreate()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// openOn opens a pool under a policy on a driver.
func openOn(t testing.TB, d *driver, spec string, c shim.Config) *shim.Pool {
	t.Helper()
	var err error
	if c.Policy, err = frameworks.Parse(spec); err != nil {
		t.Fatal(err)
	}
	p, err := shim.Open(d, c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func open(t *testing.T, total uint64, c shim.Config) (*shim.Pool, *sim.Device) {
	t.Helper()
	return openPolicy(t, total, "elastic", c)
}

func openPolicy(t *testing.T, total uint64, spec string, c shim.Config) (*shim.Pool, *sim.Device) {
	t.Helper()
	p, d := openDriver(t, total, spec, c)
	return p, d.Device
}

func openDriver(t *testing.T, total uint64, spec string, c shim.Config) (*shim.Pool, *driver) {
	t.Helper()
	d := newDriver(t, sim.Config{Total: total})
	return openOn(t, d, spec, c), d
}

// account is the account of a process in a lease. It fails the test when more is given
// back than was taken.
type account struct {
	t     testing.TB
	limit uint64

	mu        sync.Mutex // guards what follows
	held      [3]uint64  // by part
	others    uint64     // held by other processes of the lease
	takes     int        // calls of Take
	refused   []uint64
	shown     shim.Figures
	shows     int                      // calls of Publish
	uncertain int                      // calls of Uncertain
	broken    error                    // of every Take; nil for none
	full      func()                   // called when Take refuses; nil: nothing is
	want      func(bytes uint64) error // what the others do; nil: there are none
	asked     []uint64                 // arguments of Want but for 0
	looks     int                      // calls of Wanted
	number    uint64                   // announcements so far
	wanted    uint64                   // bytes of the last one
}

func newAccount(t testing.TB, limit uint64) *account { return &account{t: t, limit: limit} }

// total returns the bytes that all processes hold. Caller holds mu.
func (a *account) total() uint64 {
	return a.held[shim.Held] + a.held[shim.Charged] + a.held[shim.Outside] + a.others
}

func (a *account) Take(p shim.Part, bytes uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.takes++
	if a.broken != nil {
		return a.broken
	}
	if bytes > a.limit-min(a.total(), a.limit) {
		if a.full != nil {
			a.full()
		}
		return device.ErrOutOfMemory
	}
	a.held[p] += bytes
	return nil
}

func (a *account) Count(p shim.Part, bytes uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held[p] += bytes
}

func (a *account) Uncertain() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.uncertain++
}

func (a *account) Give(p shim.Part, bytes uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if bytes > a.held[p] {
		a.t.Errorf("%d bytes of part %d are given back, and %d are taken", bytes, p, a.held[p])
	}
	a.held[p] -= min(bytes, a.held[p])
}

func (a *account) Reachable() uint64 {
	limit, _ := a.Limit()
	return limit
}

func (a *account) Beside() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held[shim.Charged] + a.held[shim.Outside]
}

func (a *account) Limit() (limit, left uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.limit, a.limit - min(a.total(), a.limit)
}

func (a *account) Publish(f shim.Figures) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.shown = f
	a.shows++
}

func (a *account) Refused(bytes uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refused = append(a.refused, bytes)
}

func (a *account) Want(bytes uint64) error {
	a.mu.Lock()
	want := a.want
	if bytes > 0 {
		a.asked = append(a.asked, bytes)
	}
	a.mu.Unlock()
	if want == nil {
		return device.ErrNotSupported
	}
	return want(bytes)
}

func (a *account) Wanted() (number, bytes uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.looks++
	return a.number, a.wanted
}

// announce is the announcement of another process.
func (a *account) announce(bytes uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.number++
	a.wanted = bytes
}

// release is what other processes give back. Want may call it.
func (a *account) release(bytes uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.others -= bytes
}

// counts returns what this process holds, by part.
func (a *account) counts() (held, charged, outside uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held[shim.Held], a.held[shim.Charged], a.held[shim.Outside]
}

// published returns the figures that were published last, and how often any were.
func (a *account) published() (shim.Figures, int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.shown, a.shows
}

// looked returns how often it was asked what others want.
func (a *account) looked() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.looks
}

// askedFor returns the arguments of Want so far, but for 0.
func (a *account) askedFor() []uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.asked)
}

const (
	mib       = 1 << 20
	unlimited = math.MaxUint64
)
