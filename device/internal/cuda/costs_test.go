//go:build linux && (amd64 || arm64) && !nodriver

// What the driver's calls cost, measured through this package, and what they
// wait for. It runs over the fake driver too, so that it is known to work when
// there is a GPU to measure.

package cuda

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"gpumem/device"
)

const mib = 1 << 20

// bench measures a device and writes rows of a table.
type bench struct {
	t testing.TB
	d *Device
	w io.Writer
	// n is how often a call is measured; those that take long a tenth of it.
	n int
	// most is the largest amount of memory to take at once, in bytes.
	most uint64
	// waiting: what waits for work under way, too, of which there must be much.
	waiting bool
}

// must ends the test on an error.
func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// times are how long each of several calls took.
type times []time.Duration

// add times one call.
func (ts *times) add(b *bench, call func() error) {
	start := time.Now()
	err := call()
	*ts = append(*ts, time.Since(start))
	b.must(err)
}

// row writes the times as a row.
func (b *bench) row(what string, ts times) {
	slices.Sort(ts)
	us := func(p float64) float64 { return float64(ts[int(p*float64(len(ts)-1))].Nanoseconds()) / 1e3 }
	fmt.Fprintf(b.w, "| %s | %d | %.2f | %.2f | %.2f | %.2f |\n", what, len(ts), us(0), us(0.5), us(0.99), us(1))
}

// heading begins a table of times.
func (b *bench) heading(title string) {
	fmt.Fprintf(b.w, "\n## %s\n\n| call | n | least us | median us | p99 us | most us |\n|---|---|---|---|---|---|\n", title)
}

// fact writes one line that is no time.
func (b *bench) fact(format string, args ...any) { fmt.Fprintf(b.w, "* "+format+"\n", args...) }

// sized tells a number of bytes.
func sized(n uint64) string {
	switch {
	case n >= 1<<30 && n%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= mib && n%mib == 0:
		return fmt.Sprintf("%d MiB", n/mib)
	}
	return fmt.Sprintf("%d B", n)
}

// upTo are those sizes that may be taken, and how often to measure each.
func (b *bench) upTo(sizes ...uint64) iter.Seq2[uint64, int] {
	return func(yield func(uint64, int) bool) {
		for _, n := range sizes {
			rounds := b.n
			if n >= 256*mib {
				rounds = max(b.n/10, 1)
			}
			if n <= b.most && !yield(n, rounds) {
				return
			}
		}
	}
}

// all writes the whole report.
func (b *bench) all() {
	info := b.d.Info()
	fmt.Fprintf(b.w, "# Driver call costs: %s, driver %s\n", info.Name, info.Driver)
	b.amounts()
	b.small()
	b.copies()
	b.grants()
	if info.HasManaged {
		b.managed()
	}
	if info.HasPages {
		b.pages()
		b.accesses()
		b.drift()
		b.threads()
	}
	if info.HasPools {
		b.pools()
	}
	if b.waiting {
		b.waits()
	}
}

// amounts are bytes: totals, what a context takes, granularities.
func (b *bench) amounts() {
	fmt.Fprintf(b.w, "\n## Amounts\n\n")
	free, total, err := b.d.MemInfo()
	b.must(err)
	b.fact("total %d, free after Open %d, so %d in use", total, free, total-free)
	s := b.d.m.status(b.d.info.Ordinal)
	b.fact("NVML: free %d, used %d, reserved %d; notes %q", s.Free, s.Used, s.Reserved, s.Notes)
	for _, which := range []int{0, recommended} {
		for rdma := range uint8(2) {
			page, props := new(uint64), new(memProps)
			*props = pinned(b.d.id)
			props.rdma = rdma
			code := Code(b.d.m.cuda.ask(cuMemGetAllocationGranularity, uintptr(unsafe.Pointer(page)), uintptr(unsafe.Pointer(props)), uintptr(which)))
			b.fact("granularity (recommended %d, RDMA %d): %d, code %d", which, rdma, *page, code)
		}
	}
}

// small are the calls that take no memory.
func (b *bench) small() {
	d := b.d
	b.heading("Calls that take no memory")
	var info, query, wait, sync, create, record, equery, esync, destroy, screate, sdestroy times
	for range b.n {
		info.add(b, func() error { _, _, err := d.MemInfo(); return err })
		query.add(b, func() error { _, err := d.StreamQuery(0); return err })
		wait.add(b, func() error { return d.StreamSynchronize(0) })
		sync.add(b, d.Synchronize)
		var e device.Event
		var s device.Stream
		create.add(b, func() (err error) { e, err = d.EventCreate(); return err })
		record.add(b, func() error { return d.EventRecord(e, 0) })
		equery.add(b, func() error { _, err := d.EventQuery(e); return err })
		esync.add(b, func() error { return d.EventSynchronize(e) })
		destroy.add(b, func() error { return d.EventDestroy(e) })
		screate.add(b, func() (err error) { s, err = d.StreamCreate(); return err })
		sdestroy.add(b, func() error { return d.StreamDestroy(s) })
	}
	b.row("cuMemGetInfo", info)
	b.row("cuStreamQuery, idle", query)
	b.row("cuStreamSynchronize, idle", wait)
	b.row("cuCtxSynchronize, idle", sync)
	b.row("cuEventCreate", create)
	b.row("cuEventRecord", record)
	b.row("cuEventQuery", equery)
	b.row("cuEventSynchronize", esync)
	b.row("cuEventDestroy", destroy)
	b.row("cuStreamCreate", screate)
	b.row("cuStreamDestroy", sdestroy)
}

// copies move and fill bytes: between the host and the device, which the host waits for, and on
// the device, queued and then waited for.
func (b *bench) copies() {
	d := b.d
	b.heading("Copies and fills")
	const few = 4096
	many := min(256*mib, b.most/4)
	from, err := d.Alloc(many)
	b.must(err)
	to, err := d.Alloc(many)
	b.must(err)
	host := make([]byte, min(many, 64*mib))
	var e device.Event
	e, err = d.EventCreate()
	b.must(err)
	b.must(d.EventRecord(e, 0))
	write, large, fill, largeFill, launch, wait, queuedCopy, queuedFill := times{}, times{}, times{}, times{}, times{}, times{}, times{}, times{}
	queued := func(ts *times, queue func() error) {
		b.must(d.Synchronize())
		ts.add(b, func() error { return errors.Join(queue(), d.Synchronize()) })
	}
	for i := range b.n {
		write.add(b, func() error { return d.Write(from.Addr, host[:few]) })
		fill.add(b, func() error { return d.Fill(from.Addr, few, 1) })
		launch.add(b, func() error { return d.FillAsync(from.Addr, few, 1, 0) })
		wait.add(b, func() error { return d.StreamWaitEvent(0, e) })
		b.must(d.Synchronize()) // writes do not wait for streams
		if i >= max(b.n/10, 1) {
			continue
		}
		large.add(b, func() error { return d.Write(from.Addr, host) })
		largeFill.add(b, func() error { return d.Fill(from.Addr, many, 1) })
		queued(&queuedCopy, func() error { return d.CopyAsync(to.Addr, from.Addr, many, 0) })
		queued(&queuedFill, func() error { return d.FillAsync(from.Addr, many, 1, 0) })
	}
	b.must(errors.Join(d.EventDestroy(e), d.Free(from.Addr), d.Free(to.Addr)))
	b.row("write 4096 B", write)
	b.row(fmt.Sprintf("write %d B", len(host)), large)
	b.row("fill 4096 B", fill)
	b.row(fmt.Sprintf("fill %d B", many), largeFill)
	b.row("queue a fill of 4096 B", launch)
	b.row("cuStreamWaitEvent", wait)
	b.row(fmt.Sprintf("queue a copy of %d B, and wait", many), queuedCopy)
	b.row(fmt.Sprintf("queue a fill of %d B, and wait", many), queuedFill)
}

// grants are cuMemAlloc and cuMemFree, alone and while a small grant holds a
// block open.
func (b *bench) grants() {
	b.heading("Plain grants")
	for _, held := range []bool{false, true} {
		name := "alone"
		if held {
			name = "a block held open"
			r, err := b.d.Alloc(512)
			b.must(err)
			defer func() { b.must(b.d.Free(r.Addr)) }()
		}
		for n, rounds := range b.upTo(512, 4096, 65536, mib, 2*mib, 16*mib, 128*mib, 1<<30, 4<<30, 16<<30, 64<<30) {
			if held && n > mib {
				break
			}
			var alloc, free times
			for range rounds {
				var r device.Range
				alloc.add(b, func() (err error) { r, err = b.d.Alloc(n); return err })
				free.add(b, func() error { return b.d.Free(r.Addr) })
			}
			b.row("cuMemAlloc "+sized(n)+", "+name, alloc)
			b.row("cuMemFree "+sized(n)+", "+name, free)
		}
	}
}

// managed are cuMemAllocManaged and cuMemFree of what nobody touched.
func (b *bench) managed() {
	b.heading("Managed grants, untouched")
	for n, rounds := range b.upTo(512, mib, 2*mib, 16*mib, 128*mib, 1<<30, 16<<30, 64<<30) {
		var alloc, free times
		for range rounds {
			var r device.Range
			alloc.add(b, func() (err error) { r, err = b.d.AllocManaged(n); return err })
			free.add(b, func() error { return b.d.Free(r.Addr) })
		}
		b.row("cuMemAllocManaged "+sized(n), alloc)
		b.row("cuMemFree "+sized(n), free)
	}
}

// pages are the calls of virtual memory, one handle at a time.
func (b *bench) pages() {
	d := b.d
	b.heading("Virtual memory, one handle")
	for n, rounds := range b.upTo(2*mib, 20*mib, 64*mib, 512*mib, 1<<30, 16<<30) {
		var reserve, create, mapped, access, unmap, release, free times
		for range rounds {
			var va uint64
			var h device.Handle
			reserve.add(b, func() (err error) { va, err = d.AddressReserve(n, 0); return err })
			create.add(b, func() (err error) { h, err = d.MemCreate(n); return err })
			mapped.add(b, func() error { return d.MemMap(va, n, h) })
			access.add(b, func() error { return d.MemSetAccess(va, n) })
			unmap.add(b, func() error { return d.MemUnmap(va, n) })
			release.add(b, func() error { return d.MemRelease(h) })
			free.add(b, func() error { return d.AddressFree(va, n) })
		}
		for _, r := range []struct {
			call string
			times
		}{{"cuMemAddressReserve", reserve}, {"cuMemCreate", create}, {"cuMemMap", mapped}, {"cuMemSetAccess", access}, {"cuMemUnmap", unmap}, {"cuMemRelease", release}, {"cuMemAddressFree", free}} {
			b.row(r.call+" "+sized(n), r.times)
		}
	}
}

// handles maps count handles of a page each side by side, and returns where.
func (b *bench) handles(count uint64, create *times) (va uint64, hs []device.Handle) {
	page := b.d.info.Page
	va, err := b.d.AddressReserve(count*page, 0)
	b.must(err)
	for i := range count {
		var h device.Handle
		create.add(b, func() (err error) { h, err = b.d.MemCreate(page); return err })
		b.must(b.d.MemMap(va+i*page, page, h))
		hs = append(hs, h)
	}
	return va, hs
}

// drop undoes handles.
func (b *bench) drop(va uint64, hs []device.Handle) {
	n := uint64(len(hs)) * b.d.info.Page
	b.must(b.d.MemUnmap(va, n))
	for _, h := range hs {
		b.must(b.d.MemRelease(h))
	}
	b.must(b.d.AddressFree(va, n))
}

// accesses: what one call costs that covers several handles.
func (b *bench) accesses() {
	b.heading("One call over several handles of a page")
	for _, count := range []uint64{1, 10, 100} {
		var create, access, unmap times
		for range max(b.n/10, 1) {
			va, hs := b.handles(count, &create)
			n := count * b.d.info.Page
			access.add(b, func() error { return b.d.MemSetAccess(va, n) })
			unmap.add(b, func() error { return b.d.MemUnmap(va, n) })
			for i, h := range hs {
				b.must(b.d.MemMap(va+uint64(i)*b.d.info.Page, b.d.info.Page, h))
			}
			b.drop(va, hs)
		}
		b.row(fmt.Sprintf("cuMemSetAccess over %d", count), access)
		b.row(fmt.Sprintf("cuMemUnmap over %d", count), unmap)
	}
}

// drift: whether cuMemCreate gets slower as handles become many.
func (b *bench) drift() {
	b.heading("cuMemCreate of a page, as handles become many")
	count := min(32768, b.most/b.d.info.Page)
	var create times
	va, hs := b.handles(count, &create)
	b.drop(va, hs)
	part := max(len(create)/8, 1)
	for i := 0; i+part <= len(create); i += part {
		b.row(fmt.Sprintf("handles %d to %d", i, i+part), slices.Clone(create[i:i+part]))
	}
}

// round is what a growing allocator does for a page: create, map, give access,
// and back.
func (b *bench) round(ts *times) error {
	d, n := b.d, b.d.info.Page
	va, err := d.AddressReserve(n, 0)
	if err != nil {
		return err
	}
	for range b.n {
		start := time.Now()
		h, err := d.MemCreate(n)
		if err != nil {
			return err
		}
		for _, call := range []func() error{
			func() error { return d.MemMap(va, n, h) },
			func() error { return d.MemSetAccess(va, n) },
			func() error { return d.MemUnmap(va, n) },
			func() error { return d.MemRelease(h) },
		} {
			if err := call(); err != nil {
				return err
			}
		}
		*ts = append(*ts, time.Since(start))
	}
	return d.AddressFree(va, n)
}

// threads: the same round from several threads at once.
func (b *bench) threads() {
	b.heading("Create, map, access, unmap and release of a page, several threads")
	for _, n := range []int{1, 2, 4, 8} {
		all := make([]times, n)
		var wg sync.WaitGroup
		for i := range all {
			wg.Go(func() {
				if err := b.round(&all[i]); err != nil {
					b.t.Error(err)
				}
			})
		}
		wg.Wait()
		b.row(fmt.Sprintf("%d threads", n), slices.Concat(all...))
	}
}

// pools: what the driver's pools hold, and what growing and giving back costs.
func (b *bench) pools() {
	d := b.d
	b.heading("Pools")
	var facts []string
	for _, threshold := range []uint64{0, 1<<64 - 1} {
		for n, rounds := range b.upTo(1, mib, 32*mib, 1<<30) {
			p, err := d.PoolCreate(0)
			b.must(err)
			b.must(d.PoolSetAttribute(p, device.PoolReleaseThreshold, threshold))
			var alloc, free, wait, trim times
			var grown, left uint64
			for range max(rounds/4, 1) {
				var r device.Range
				alloc.add(b, func() (err error) { r, err = d.AllocAsync(p, n, 0); return err })
				grown, err = d.PoolGetAttribute(p, device.PoolReservedCurrent)
				b.must(err)
				free.add(b, func() error { return d.FreeAsync(r.Addr, 0) })
				wait.add(b, func() error { return d.StreamSynchronize(0) })
				left, err = d.PoolGetAttribute(p, device.PoolReservedCurrent)
				b.must(err)
			}
			trim.add(b, func() error { return d.PoolTrim(p, 0) })
			b.must(d.PoolDestroy(p))
			name := fmt.Sprintf(" %s, threshold %#x", sized(n), threshold)
			b.row("cuMemAllocFromPoolAsync"+name, alloc)
			b.row("cuMemFreeAsync"+name, free)
			b.row("cuStreamSynchronize after it"+name, wait)
			b.row("cuMemPoolTrimTo 0"+name, trim)
			facts = append(facts, fmt.Sprintf("%s: %d reserved, %d after the synchronise", name, grown, left))
		}
	}
	fmt.Fprintln(b.w)
	for _, f := range facts {
		b.fact("%s", f)
	}
}

// waits: which calls wait for work under way. Fills of a large range, queued
// one after the other, are the work.
func (b *bench) waits() {
	d := b.d
	b.heading("While fills are queued")
	big, err := d.Alloc(min(b.most/16, 4<<30))
	b.must(err)
	busy := func() {
		for range 64 {
			b.must(d.FillAsync(big.Addr, big.Bytes, 1, 0))
		}
	}
	var facts []string
	during := func(call string, do func() error) {
		busy()
		var ts times
		ts.add(b, do)
		done, err := d.StreamQuery(0)
		b.must(err)
		b.row(call, ts)
		facts = append(facts, fmt.Sprintf("%s: all fills done after it: %v", call, done))
		b.must(d.StreamSynchronize(0))
	}
	var r device.Range
	during("cuMemAlloc 64 MiB", func() (err error) { r, err = d.Alloc(64 * mib); return err })
	during("cuMemFree 64 MiB", func() error { return d.Free(r.Addr) })
	if n := d.info.Page; n != 0 {
		va, err := d.AddressReserve(n, 0)
		b.must(err)
		var h device.Handle
		during("cuMemCreate of a page", func() (err error) { h, err = d.MemCreate(n); return err })
		during("cuMemMap of a page", func() error { return d.MemMap(va, n, h) })
		during("cuMemSetAccess of a page", func() error { return d.MemSetAccess(va, n) })
		during("cuMemUnmap of a page", func() error { return d.MemUnmap(va, n) })
		during("cuMemRelease of a page", func() error { return d.MemRelease(h) })
		b.must(d.AddressFree(va, n))
	}
	var wait times
	busy()
	wait.add(b, func() error { return d.StreamSynchronize(0) })
	b.row("the 64 fills themselves", wait)
	fmt.Fprintln(b.w)
	for _, f := range facts {
		b.fact("%s", f)
	}
	b.must(d.Free(big.Addr))
}

// tableFile is the file of -costs. Each row is in it as soon as it is measured: a driver that hangs later
// takes none of them with it.
type tableFile struct {
	t testing.TB
	f *os.File
}

// newTableBench returns a bench that writes into a file, which the test's end closes, and into out.
func newTableBench(t testing.TB, d *Device, path string) (b *bench, out *strings.Builder) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	out = new(strings.Builder)
	return &bench{t: t, d: d, w: io.MultiWriter(tableFile{t, f}, out)}, out
}

// Write ends the test on an error: those who write rows do not look at it.
func (w tableFile) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	if err != nil {
		w.t.Fatal(err)
	}
	return n, err
}

// TestCostsAreInTheFileAtOnce: what was measured before a call that never returns can be read.
func TestCostsAreInTheFileAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "costs.md")
	f := newFake(t)
	d := f.open()
	var before []string // what the file has at each write
	look := writerFunc(func(p []byte) (int, error) {
		text, err := os.ReadFile(path)
		before = append(before, string(text))
		return len(p), err
	})
	b, out := newTableBench(t, d, path)
	b.w, b.n, b.most = io.MultiWriter(b.w, look), 1, mib
	b.amounts()
	b.small()
	checkClosed(t, f, d)
	for i, text := range before {
		if !strings.HasSuffix(text, "\n") || i > 0 && (!strings.HasPrefix(text, before[i-1]) || len(text) == len(before[i-1])) {
			t.Fatalf("after row %d the file has\n%s", i, text)
		}
	}
	if len(before) < 5 || out.String() != before[len(before)-1] {
		t.Errorf("%d rows were written; the last, of\n%s", len(before), out)
	}
}

// writerFunc is a function as an io.Writer.
type writerFunc func([]byte) (int, error)

func (w writerFunc) Write(p []byte) (int, error) { return w(p) }

// TestCostsOverFake: the measurement works, and leaves nothing behind.
func TestCostsOverFake(t *testing.T) {
	f := newFake(t)
	d := f.open()
	b := &bench{t: t, d: d, w: io.Discard, n: 4, most: 512 * mib, waiting: true}
	b.all()
	checkClosed(t, f, d)
}
