//go:build libgpumem

package main

// #include "front.h"
import "C"

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/preload/internal/timeline"
)

// Time. With kernelVar or linkVar work takes real time: each stream is a queue (package timeline), in which kernels,
// copies, functions of the program and waits for values run one after the other, in order with the legacy stream. A
// query answers CUDA_ERROR_NOT_READY before the end, and calls that wait do so. What copies move is moved at their
// end. device/sim is asked and told as without: what it lets the host know, as by a synchronise, it is told when
// that has ended.
//
// A kernel fills the GPU, and copies have an engine each way; programs that share the device share these (device/sim).
//
// A call that waits unlocks the driver meanwhile (await), and looks up anew what it needs after.

// The variables that have work take time. Of the second the default is what a plain copy from pinned memory reaches
// over PCIe 4.0 with 16 lanes.
const (
	kernelVar   = "GPUMEM_SIM_KERNEL"
	linkVar     = "GPUMEM_SIM_LINK"
	defaultLink = 25e9
)

// pace is how long work takes.
type pace struct {
	kernel time.Duration // each
	link   float64       // bytes a second between host and device
}

// readKernel and readLink read the variables; set is false for one that is not.
func readKernel() (t time.Duration, set bool, err error) {
	v, _ := environment(kernelVar)
	if v == "" {
		return 0, false, nil
	}
	if t, err = time.ParseDuration(v); err != nil || t < 0 {
		err = fmt.Errorf("got %q, want what a kernel takes, such as 2ms", v)
	}
	return t, true, err
}

func readLink() (rate float64, set bool, err error) {
	v, _ := environment(linkVar)
	if v == "" {
		return defaultLink, false, nil
	}
	rate, err = parseRate(v)
	return rate, true, err
}

// parseRate reads bytes a second, with units as those of links are.
func parseRate(s string) (float64, error) {
	end := strings.LastIndexAny(s, "0123456789.") + 1
	units := map[string]float64{"MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12, "MiB/s": 1 << 20, "GiB/s": 1 << 30, "TiB/s": 1 << 40}
	unit := units[s[end:]]
	n, err := strconv.ParseFloat(s[:end], 64)
	if err != nil || !(n*unit >= 1) {
		return 0, fmt.Errorf("got %q, want bytes a second, such as 25GB/s", s)
	}
	return n * unit, nil
}

// monotonic is the time of CLOCK_MONOTONIC, which all processes read.
func monotonic() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // it cannot fail
	return time.Duration(t.Nano())
}

// busy is the time of the work that this program gave an engine.
type busy [sim.Engines]atomic.Int64

// takes is time on engines.
type takes [sim.Engines]time.Duration

func (t *takes) add(more takes) {
	for i := range t {
		t[i] += more[i]
	}
}

// kernel is the time of one kernel.
func (d *driver) kernel() takes { return takes{sim.Kernels: d.pace.kernel} }

// overLink is the time of a copy between host and device.
func (d *driver) overLink(e sim.Engine, bytes uint64) (t takes) {
	t[e] = time.Duration(float64(bytes) / d.pace.link * float64(time.Second))
	return t
}

// submit puts an operation into a stream, in order with the legacy stream, and behind others. The driver has a
// timeline.
func (d *driver) submit(s *stream, op timeline.Op, after ...*timeline.Op) *timeline.Op {
	switch g := s.gpu; {
	case s == g.legacy:
		_ = d.blockingStreams(g, func(b *stream) error {
			after = append(after, d.line.Last(&b.queue))
			return nil
		})
	case s.blocking:
		after = append(after, d.line.Last(&g.legacy.queue))
	}
	return d.line.Add(&s.queue, &op, after...)
}

// submitWork puts work on engines into a stream, and what others see of it at its end. It returns the last operation.
func (d *driver) submitWork(s *stream, t takes, finish func()) (last *timeline.Op) {
	of, g := s.gpu.sim, s.gpu
	for e := range sim.Engine(sim.Engines) {
		if t[e] == 0 {
			continue
		}
		last = d.submit(s, timeline.Op{Takes: t[e], Occupy: func(now, ready, takes time.Duration) time.Duration {
			g.busy[e].Add(int64(takes))
			return of.Occupy(e, now, ready, takes)
		}})
	}
	if finish != nil || last == nil {
		last = d.submit(s, timeline.Op{Finish: finish})
	}
	return last
}

// locked returns f with the driver locked.
func (d *driver) locked(f func()) func() {
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		f()
	}
}

// await waits for operations. The driver, which is locked, is unlocked meanwhile.
func (d *driver) await(ops ...*timeline.Op) {
	d.mu.Unlock()
	defer d.mu.Lock()
	d.line.Wait(ops...)
}

// unfinished returns the newest operations of each stream of a device, those that were destroyed among them.
func (d *driver) unfinished(g *gpu) (ops []*timeline.Op) {
	add := func(s *stream) {
		if s != nil {
			if op := d.line.Last(&s.queue); op != nil {
				ops = append(ops, op)
			}
		}
	}
	add(g.legacy)
	for _, s := range d.streams {
		if s.gpu == g {
			add(s)
		}
	}
	for _, s := range g.perThread {
		add(s)
	}
	left := g.left[:0]
	for _, op := range g.left {
		if !d.line.Ended(op) {
			left = append(left, op)
		}
	}
	g.left = left
	return append(ops, left...)
}

// drain waits for all that is queued on a device, if work takes time: calls that wait for the device do so before
// they ask device/sim, which knows nothing of that time.
func (d *driver) drain(g *gpu) {
	if d.line != nil && g.sim != nil {
		d.await(d.unfinished(g)...)
	}
}

// drainAll is drain of all devices.
func (d *driver) drainAll() {
	for _, g := range d.gpus {
		d.drain(g)
	}
}

// finished reports whether a stream's work has ended; of the legacy stream that of all blocking streams, too.
func (d *driver) finished(s *stream) bool {
	done := d.line.Last(&s.queue) == nil
	if s == s.gpu.legacy {
		_ = d.blockingStreams(s.gpu, func(b *stream) error {
			done = done && d.line.Last(&b.queue) == nil
			return nil
		})
	}
	return done
}

// synchronize waits for what is in these streams of a device now. Then the host knows in device/sim what was in them
// at the beginning.
func (d *driver) synchronize(g *gpu, streams ...*stream) {
	var ops []*timeline.Op
	var marks []device.Event
	for _, s := range streams {
		mark, err := g.sim.EventCreate()
		must(err)
		must(g.sim.EventRecord(mark, s.sim))
		marks, ops = append(marks, mark), append(ops, d.submit(s, timeline.Op{}))
	}
	of := g.sim
	d.await(append(ops, g.left...)...)
	for _, mark := range marks {
		must(of.EventSynchronize(mark))
		must(of.EventDestroy(mark))
	}
}

// streamsOf are those of a device.
func (d *driver) streamsOf(g *gpu) []*stream {
	all := []*stream{g.legacy}
	for _, s := range d.streams {
		if s.gpu == g {
			all = append(all, s)
		}
	}
	for _, s := range g.perThread {
		all = append(all, s)
	}
	return all
}

// --- copies

// timeOf is how long a transfer takes.
func (d *driver) timeOf(m movement, g *gpu) takes {
	bytes := m.width * m.rows
	switch {
	case m.pattern != nil && m.to.host == nil:
		return takes{sim.Kernels: g.sim.FillTime(bytes)}
	case m.pattern != nil:
		return d.overLink(sim.ToHost, bytes)
	case m.to.host == nil && m.from.host == nil:
		return takes{sim.Kernels: g.sim.CopyTime(bytes)}
	case m.to.host == nil:
		return d.overLink(sim.ToDevice, bytes)
	case m.from.host == nil:
		return d.overLink(sim.ToHost, bytes)
	}
	return takes{} // within the host's memory
}

// staged is the most bytes of the host's own memory, which is not pinned, that a copy has taken to a place of the
// driver's when the call returns. NVIDIA's manual has it for cuMemcpy; drivers wait with more.
const staged = 64 << 10

// submitTransfer puts a transfer into a stream, and waits if the call does: always where memory of the host's that is
// not pinned is written, for NVIDIA's manual has it so, and where more of it is read than the driver has a place for.
func (c *call) submitTransfer(s *stream, wait bool, m movement) {
	d, waits := c.driver, wait || c.pageable(m.to)
	if c.pageable(m.from) && !waits {
		if waits = m.width*m.rows > staged; !waits {
			m.from = m.from.staged(m.width, m.rows)
		}
	}
	mapped := [2]bool{c.isMapped(m.to), c.isMapped(m.from)}
	op := c.submitWork(s, c.timeOf(m, s.gpu), d.locked(func() {
		if mapped[0] && !d.isMapped(m.to) || mapped[1] && !d.isMapped(m.from) {
			return // it was unmapped before, which was a hazard
		}
		d.move(m)
	}))
	switch {
	case wait:
		c.synchronize(s.gpu, s)
	case waits:
		c.await(op)
	}
}

// pageable reports whether one end of a copy is memory of the host that the driver does not know.
func (d *driver) pageable(one side) bool {
	if one.host == nil {
		return false
	}
	_, h := d.hostAround(uint64(uintptr(one.host)))
	return h == nil
}

// isMapped reports whether one end of a copy is in mapped memory.
func (d *driver) isMapped(one side) bool {
	if one.host != nil {
		return false
	}
	b := d.blocks.around(one.addr)
	return b != nil && b.kind == mapped
}

// staged is a copy of rows of the host's memory.
func (one side) staged(width, rows uint64) side {
	all := make([]byte, 0, width*rows)
	for row := range rows {
		all = append(all, one.row(row, width)...)
	}
	return side{host: unsafe.Pointer(unsafe.SliceData(all)), pitch: width}
}

// --- values that streams wait for and write

// word is a number in memory of the device, or of the host that the driver knows.
type word struct {
	side
	bytes uint64 // 4 or 8
}

// wordAt is the word at an address. Others may use it at the same time, for that is what it is for: so device/sim
// is told nothing of its use.
func (d *driver) wordAt(addr, bytes uint64) word {
	one := d.sideAt(addr, *(*unsafe.Pointer)(unsafe.Pointer(&addr)), false)
	there := one.room >= bytes
	if one.host == nil {
		there = d.blocks.usable(addr, bytes) != nil
	}
	check(addr%bytes == 0 && there, invalidValue)
	return word{one, bytes}
}

// load reads it, as the host may write it at the time.
func (d *driver) load(w word) uint64 {
	switch {
	case w.host == nil:
		var b [8]byte
		d.read(w.addr, b[:w.bytes])
		return *(*uint64)(unsafe.Pointer(&b))
	case w.bytes == 4:
		return uint64(atomic.LoadUint32((*uint32)(w.host)))
	}
	return atomic.LoadUint64((*uint64)(w.host))
}

func (d *driver) store(launches uint64, w word, v uint64) {
	switch {
	case w.host == nil:
		b := *(*[8]byte)(unsafe.Pointer(&v))
		d.write(launches, w.addr, b[:w.bytes])
	case w.bytes == 4:
		atomic.StoreUint32((*uint32)(w.host), uint32(v))
	default:
		atomic.StoreUint64((*uint64)(w.host), v)
	}
}

// meets reports whether a value is what CUstreamWaitValue_flags waits for.
func meets(flags uint32, have, want, bytes uint64) bool {
	mask := uint64(1)<<(8*bytes-1)<<1 - 1
	switch flags & 3 {
	case 0: // CU_STREAM_WAIT_VALUE_GEQ: cyclic
		return (have-want)&mask>>(8*bytes-1) == 0
	case 1:
		return have&mask == want&mask
	case 2:
		return have&want&mask != 0
	}
	return ^(have|want)&mask != 0
}

// ask returns what is asked until a word is as wanted.
func (d *driver) ask(w word, ok func(v uint64) bool) func() bool {
	return func() (is bool) {
		d.locked(func() { is = ok(d.load(w)) })()
		return is
	}
}

// waitValue and writeValue are operations of a stream.
func (c *call) waitValue(s *stream, addr, value, bytes uint64, flags uint32) {
	w := c.wordAt(addr, bytes)
	c.submit(s, timeline.Op{Ready: c.driver.ask(w, func(v uint64) bool { return meets(flags, v, value, bytes) })})
}

func (c *call) writeValue(s *stream, addr, value, bytes uint64) {
	w, d, launches := c.wordAt(addr, bytes), c.driver, c.launches
	c.submit(s, timeline.Op{Finish: d.locked(func() { d.store(launches, w, value) })})
}

// valueCall serves a wait for a value, or a write of one: stream, address, value, flags. Without time
// both are there at once.
func valueCall(wait bool, bytes uint64) handler {
	return func(c *call) {
		s := c.launched(0)
		if c.line == nil || s.capture != nil {
			return
		}
		value := c.u64(2)
		if bytes == 4 {
			value = uint64(c.u32(2))
		}
		if wait {
			c.waitValue(s, c.u64(1), value, bytes, c.u32(3))
		} else {
			c.writeValue(s, c.u64(1), value, bytes)
		}
	}
}

// valueBatch serves several in order. Each CUstreamBatchMemOpParams takes 48 bytes: its kind, the address at 8, the
// value at 16, flags at 24.
func valueBatch(c *call) {
	const each, waits32, writes32, waits64, writes64 = 48, 1, 2, 4, 5
	s := c.launched(0)
	if c.line == nil || s.capture != nil {
		return
	}
	n := int(c.u32(1))
	check(n <= 256, invalidValue) // as the driver's manual has it
	if n > 0 {
		c.need(2)
	}
	for i := range n {
		kind, addr, value := at[uint32](c, 2, each*i), at[uint64](c, 2, each*i+8), at[uint64](c, 2, each*i+16)
		switch flags := at[uint32](c, 2, each*i+24); kind {
		case waits32:
			c.waitValue(s, addr, uint64(uint32(value)), 4, flags)
		case waits64:
			c.waitValue(s, addr, value, 8, flags)
		case writes32:
			c.writeValue(s, addr, uint64(uint32(value)), 4)
		case writes64:
			c.writeValue(s, addr, value, 8)
		}
	}
}

// --- kernels that never end

// persistentPrefix begins the name of a kernel that ends only when the 4 bytes at the address that is its first
// argument are not 0; never without an argument. It takes no engine's time: others run beside it.
const persistentPrefix = "gpumem_persistent"

// getFunction gives a handle for a kernel, whose name is argument 2.
func getFunction(c *call) {
	h := c.handle()
	if c.line != nil && strings.HasPrefix(c.text(2), persistentPrefix) {
		c.persistent[h] = true
	}
	give(c, 0, h)
}

// submitKernel puts a kernel into a stream, whose arguments are behind argument i of the call.
func (c *call) submitKernel(s *stream, function uint64, i int) {
	if !c.persistent[function] {
		c.submitWork(s, c.kernel(), nil)
		return
	}
	ready := func() bool { return false }
	if i < simArguments && c.words[i] != 0 {
		addr := *at[*uint64](c, i, 0)
		w := c.wordAt(addr, 4)
		ready = c.driver.ask(w, func(v uint64) bool { return v != 0 })
	}
	c.submit(s, timeline.Op{Ready: ready})
}

const simArguments = C.simArgs

// --- what is told

// mostNotes is how many lines noteUnmap writes.
const mostNotes = 100

// noteUnmap logs that memory is unmapped while a device works: what kernels use is not known, so it may be no hazard.
func (c *call) noteUnmap(g *gpu) {
	if c.line == nil || c.notes >= mostNotes {
		return
	}
	if n := len(c.unfinished(g)); n > 0 {
		c.notes++
		logf("cuMemUnmap of %d bytes at %#x while %d streams have work that has not ended", c.u64(1), c.u64(0), n)
	}
}

// noteBusy logs the time of the work that the program gave each engine of a device.
func (g *gpu) noteBusy() {
	var of []string
	for e := range sim.Engine(sim.Engines) {
		of = append(of, fmt.Sprintf("%v %v", e, time.Duration(g.busy[e].Load()).Round(time.Microsecond)))
	}
	logf("gpu %d: %s", g.info.Ordinal, strings.Join(of, ", "))
}

//export simBusy
func simBusy(ordinal, engine C.int) (t C.u64) {
	defer recovered(new(C.int))
	theDriver.mu.Lock()
	defer theDriver.mu.Unlock()
	if g := known(ordinal); g != nil && g.sim != nil && engine >= 0 && engine < C.int(sim.Engines) {
		t = C.u64(g.sim.Busy(sim.Engine(engine)))
	}
	return t
}
