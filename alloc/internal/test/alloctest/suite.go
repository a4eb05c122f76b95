// Package alloctest is the one suite that every allocator must pass: the
// contract of package alloc, written as tests. A new allocator is added to the
// table in all_test.go and has no suite of its own.
package alloctest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/internal/ref"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/internal/invariants"
)

// Maker makes an allocator on a device.
type Maker struct {
	Name string
	// New makes it. The suite gives it a device of Device bytes.
	New func(dev device.GPU) (alloc.Allocator, error)
	// Device is the size of the device, in bytes; the suite wants to fill it, so
	// it should be tens of MiB.
	Device uint64
	// Granularity of the device; 0 means its default.
	Granularity uint64
	// Open makes a device of this description; nil means sim.New.
	Open func(testing.TB, sim.Config) (*sim.Device, error)
	// Virtual: what is free is not in pieces that Walk shows, so that the largest
	// hole is the allocator's own to tell.
	Virtual bool
	// Asks: what is held only the driver knows, and is asked for the statistics;
	// while it fails it is unknown.
	Asks bool
	// Garbage: the simulated device's calls, of which an operation makes some in
	// the steady state, allocate on the Go heap.
	Garbage bool
	// Third: of the driver's calls each fails in one of the three ways, in turn, not in all
	// of them, and the random program runs with one seed of three.
	Third bool
}

// checker is an allocator that can check itself.
type checker interface{ Check() error }

// world is an allocator, its device, and the suite's own account of both.
type world struct {
	t   testing.TB
	dev *sim.Device
	rec *grants
	a   alloc.Allocator
	m   Maker

	live  []liveBlock
	bytes uint64 // sizes of live blocks
	peak  uint64
	num   int64
}

type liveBlock struct {
	b         alloc.Block
	requested uint64
	mark      byte // what all its bytes hold
}

// grants is the device with a record of what it granted.
type grants struct {
	device.GPU
	live map[uint64]uint64
}

func (g *grants) Alloc(n uint64) (device.Range, error) {
	r, err := g.GPU.Alloc(n)
	if err == nil {
		g.live[r.Addr] = r.Bytes
	}
	return r, err
}

func (g *grants) Free(addr uint64) error {
	err := g.GPU.Free(addr)
	if err == nil {
		delete(g.live, addr)
	}
	return err
}

// cut is [addr, addr+n) in pieces that each lie in one grant, since a range may
// not run from one into another; nil where some of it lies in none. An allocator
// that asks for no plain grants has memory of another kind, and one piece.
func (g *grants) cut(addr, n uint64) []device.Range {
	if len(g.live) == 0 {
		return []device.Range{{Addr: addr, Bytes: n}}
	}
	var out []device.Range
	for n > 0 {
		have := uint64(0)
		for at, size := range g.live {
			if addr >= at && addr-at < size {
				have = min(n, size-(addr-at))
			}
		}
		if have == 0 {
			return nil
		}
		out = append(out, device.Range{Addr: addr, Bytes: have})
		addr, n = addr+have, n-have
	}
	return out
}

// device makes a device for the allocator.
func (m Maker) device(t testing.TB) *sim.Device {
	t.Helper()
	cfg := sim.Config{Total: m.Device, Granularity: m.Granularity}
	dev, err := sim.New(cfg)
	if m.Open != nil {
		dev, err = m.Open(t, cfg)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

func (m Maker) open(t testing.TB) *world {
	t.Helper()
	dev := m.device(t)
	w := &world{t: t, dev: dev, rec: &grants{dev, map[uint64]uint64{}}, m: m}
	var err error
	if w.a, err = m.New(w.rec); err != nil {
		t.Fatal(err)
	}
	return w
}

// alloc asks for bytes and checks what it gets. ok is false on a refusal.
func (w *world) alloc(r alloc.Request) (liveBlock, bool) {
	w.t.Helper()
	before := w.a.Stats()
	b, err := w.a.Alloc(r)
	if err != nil {
		if !errors.Is(err, alloc.ErrNoMemory) {
			w.t.Fatalf("Alloc(%+v): %v, want ErrNoMemory", r, err)
		}
		after := w.a.Stats()
		// The pool itself may grow in vain; what is handed out may not change.
		if after.NumAllocs != before.NumAllocs || after.BytesInUse != before.BytesInUse || after.PeakBytesInUse != before.PeakBytesInUse {
			w.t.Fatalf("a refusal changed the statistics from %+v to %+v", before, after)
		}
		return liveBlock{}, false
	}
	if b.Size < r.Bytes {
		w.t.Fatalf("Alloc(%d): block of %d bytes", r.Bytes, b.Size)
	}
	if align := max(r.Align, 256); b.Addr%align != 0 {
		w.t.Fatalf("Alloc(%+v): address %#x is not aligned", r, b.Addr)
	}
	l := liveBlock{b, r.Bytes, byte(w.num%255 + 1)}
	pieces := w.rec.cut(b.Addr, b.Size)
	if pieces == nil {
		w.t.Fatalf("Alloc(%+v): %v lies outside what the device granted", r, b)
	}
	for _, p := range pieces {
		if err := w.dev.FillAsync(p.Addr, p.Bytes, l.mark, 0); err != nil {
			w.t.Fatalf("Alloc(%+v): %v cannot be written: %v", r, b, err)
		}
	}
	w.live = append(w.live, l)
	w.bytes += b.Size
	w.peak = max(w.peak, w.bytes)
	w.num++
	return l, true
}

// intact asserts that a block holds what was written into it. It looks at both
// ends and the middle.
func (w *world) intact(l liveBlock) {
	w.t.Helper()
	if err := w.dev.StreamSynchronize(0); err != nil {
		w.t.Fatal(err)
	}
	var got [1]byte
	for _, off := range []uint64{0, l.b.Size / 2, l.b.Size - 1} {
		if err := w.dev.Read(l.b.Addr+off, got[:]); err != nil || got[0] != l.mark {
			w.t.Fatalf("%v holds %#x at byte %d, and not the %#x that was written: %v", l.b, got[0], off, l.mark, err)
		}
	}
}

// free frees the i-th live block.
func (w *world) free(i int, byAddr bool) {
	w.t.Helper()
	l := w.live[i]
	w.intact(l)
	w.live = slices.Delete(w.live, i, i+1)
	var err error
	if byAddr {
		if b, err := w.a.BlockAt(l.b.Addr); b != l.b || err != nil {
			w.t.Fatalf("at %#x there is %v, %v, want %v", l.b.Addr, b, err, l.b)
		}
		err = w.a.FreeAddr(l.b.Addr)
	} else {
		err = w.a.Free(l.b)
	}
	if err != nil {
		w.t.Fatalf("free of %v: %v", l.b, err)
	}
	w.bytes -= l.b.Size
}

// check compares the allocator with the suite's account.
func (w *world) check() {
	w.t.Helper()
	if c, ok := w.a.(checker); ok {
		if err := c.Check(); err != nil {
			w.t.Fatal(err)
		}
	}
	s := w.a.Stats()
	held, _ := w.dev.Held()
	if s.BytesInUse != w.bytes || s.PeakBytesInUse != w.peak || s.NumAllocs != w.num {
		w.t.Fatalf("statistics %+v; want %d in use, peak %d, %d allocations", s, w.bytes, w.peak, w.num)
	}
	if s.PoolBytes != held {
		w.t.Fatalf("statistics say %d bytes in the pool, the device says %d", s.PoolBytes, held)
	}
	blocks := slices.Clone(w.live)
	slices.SortFunc(blocks, func(a, b liveBlock) int {
		if a.b.Addr < b.b.Addr {
			return -1
		}
		return 1
	})
	i, end, largest := 0, uint64(0), uint64(0)
	w.a.Walk(func(c alloc.Chunk) bool {
		if c.Addr < end {
			w.t.Fatalf("walk: the piece at %#x begins before the last one ends", c.Addr)
		}
		end = c.Addr + c.Size
		if !c.Live {
			largest = max(largest, c.Size)
			return true
		}
		if i == len(blocks) || blocks[i].b.Addr != c.Addr || blocks[i].b.Size != c.Size || blocks[i].requested != c.Requested {
			w.t.Fatalf("walk: live piece %+v is not the %d-th live block", c, i)
		}
		i++
		return true
	})
	if i != len(blocks) {
		w.t.Fatalf("walk: %d live pieces, %d live blocks", i, len(blocks))
	}
	if s.LargestFreeBlock != largest && !w.m.Virtual {
		w.t.Fatalf("statistics say the largest hole is %d, a walk finds %d", s.LargestFreeBlock, largest)
	}
}

// close closes the allocator; nothing may stay with it.
func (w *world) close() {
	w.t.Helper()
	for _, l := range w.live {
		w.intact(l)
	}
	if err := w.a.Close(); err != nil {
		w.t.Fatal(err)
	}
	if found := w.dev.Hazards(); len(found) > 0 {
		w.t.Fatalf("hazards: %v", found)
	}
	if held, _ := w.dev.Held(); held != 0 {
		w.t.Fatalf("%d bytes are held after Close", held)
	}
}

// Run runs the whole suite on one allocator.
func Run(t *testing.T, m Maker) {
	t.Run("empty request", m.emptyRequest)
	t.Run("lazy", m.lazy)
	t.Run("refusal", m.refusal)
	t.Run("absurd sizes", m.absurdSizes)
	t.Run("bad frees", m.badFrees)
	t.Run("another's block", m.anothersBlock)
	t.Run("after close", m.afterClose)
	t.Run("alignment", m.alignment)
	t.Run("stress", m.stress)
	t.Run("trim", m.trim)
	t.Run("faults", m.faults)
	t.Run("no garbage", m.noGarbage)
}

func (m Maker) emptyRequest(t *testing.T) {
	w := m.open(t)
	before := w.dev.Counters().Calls
	b, err := w.a.Alloc(alloc.Request{})
	if err != nil || !b.IsZero() {
		t.Fatalf("Alloc(0) = %v, %v; want the zero block", b, err)
	}
	if err := w.a.Free(b); err != nil {
		t.Fatal(err)
	}
	if err := w.a.FreeAddr(0); err != nil {
		t.Fatal(err)
	}
	if calls := w.dev.Counters().Calls - before; calls != 0 {
		t.Fatalf("an empty request made %d driver calls", calls)
	}
	w.check()
	w.close()
}

func (m Maker) lazy(t *testing.T) {
	w := m.open(t)
	if held, _ := w.dev.Held(); held != 0 {
		t.Fatalf("%d bytes are held before the first request", held)
	}
	w.alloc(alloc.Request{Bytes: 1})
	if held, _ := w.dev.Held(); held == 0 {
		t.Fatal("nothing is held after the first request")
	}
	w.check()
	w.close()
}

// refusal fills the device, sees that what does not fit is refused and that
// the memory is there again once freed.
func (m Maker) refusal(t *testing.T) {
	w := m.open(t)
	piece := m.Device / 8
	for {
		if _, ok := w.alloc(alloc.Request{Bytes: piece}); !ok {
			break
		}
		if len(w.live) > 8 {
			t.Fatal("more was handed out than the device has")
		}
	}
	if len(w.live) < 2 {
		t.Fatalf("only %d pieces of an eighth of the device fitted", len(w.live))
	}
	w.check()
	n := len(w.live)
	w.free(n/2, false)
	if _, ok := w.alloc(alloc.Request{Bytes: piece}); !ok {
		t.Fatal("refused although as much was freed just before")
	}
	for len(w.live) > 0 {
		w.free(0, true)
	}
	for i := range n {
		if _, ok := w.alloc(alloc.Request{Bytes: piece}); !ok {
			t.Fatalf("piece %d of %d is refused the second time", i+1, n)
		}
	}
	w.check()
	w.close()
}

func (m Maker) absurdSizes(t *testing.T) {
	w := m.open(t)
	for _, n := range []uint64{
		math.MaxUint64, math.MaxUint64 - 254, math.MaxUint64 - 255, math.MaxUint64 - 256, 1 << 63, 1<<63 + 1, 1<<63 - 1, 1 << 62, m.Device + 1, m.Device * 2,
	} {
		if b, ok := w.alloc(alloc.Request{Bytes: n}); ok {
			t.Fatalf("%d bytes gave %v", n, b)
		}
	}
	w.check()
	if _, ok := w.alloc(alloc.Request{Bytes: 1000}); !ok {
		t.Fatal("1000 bytes are refused after absurd requests")
	}
	if _, err := w.a.Alloc(alloc.Request{Bytes: math.MaxUint64}); !errors.Is(err, alloc.ErrNever) {
		t.Fatalf("2^64-1 bytes: %v, want ErrNever", err)
	}
	w.check()
	w.close()
}

func (m Maker) badFrees(t *testing.T) {
	w := m.open(t)
	first, _ := w.alloc(alloc.Request{Bytes: 5000})
	second, _ := w.alloc(alloc.Request{Bytes: 700})
	want := func(what string, err error, is ...error) {
		t.Helper()
		if !slices.ContainsFunc(is, func(e error) bool { return errors.Is(err, e) }) {
			t.Errorf("%s: %v, want %v", what, err, is)
		}
		w.check()
	}
	want("an address inside a block", w.a.FreeAddr(first.b.Addr+256), alloc.ErrNotAllocated)
	want("an odd address", w.a.FreeAddr(first.b.Addr+1), alloc.ErrNotAllocated)
	want("an address that was never allocated", w.a.FreeAddr(4096), alloc.ErrNotAllocated)
	for _, addr := range []uint64{first.b.Addr + 256, first.b.Addr + 1, 4096} {
		b, err := w.a.BlockAt(addr)
		if want("the block at no block's start", err, alloc.ErrNotAllocated); !b.IsZero() {
			t.Errorf("there is %v", b)
		}
	}
	want("a made-up block", w.a.Free(alloc.Block{Addr: first.b.Addr, Size: 5000, Ref: ref.Make(1<<30, 1)}), alloc.ErrNotAllocated)
	want("a block with a wrong number", w.a.Free(alloc.Block{Addr: first.b.Addr, Size: 5000, Ref: ref.Make(-4, 1)}), alloc.ErrNotAllocated)
	w.free(0, false)
	want("a double free by block", w.a.Free(first.b), alloc.ErrDoubleFree)
	want("a double free by address", w.a.FreeAddr(first.b.Addr), alloc.ErrDoubleFree, alloc.ErrNotAllocated)
	// The same place again: the old block must not free the new one.
	again, _ := w.alloc(alloc.Request{Bytes: 5000})
	want("a stale block", w.a.Free(first.b), alloc.ErrDoubleFree)
	if err := w.a.Free(again.b); err != nil {
		t.Error(err)
	}
	if err := w.a.Free(second.b); err != nil {
		t.Error(err)
	}
}

// anothersBlock: two allocators on two devices hand out the same address first.
// The block of one is not the other's.
func (m Maker) anothersBlock(t *testing.T) {
	w, other := m.open(t), m.open(t)
	mine, _ := w.alloc(alloc.Request{Bytes: 5000})
	foreign, _ := other.alloc(alloc.Request{Bytes: 5000})
	if mine.b.Addr != foreign.b.Addr {
		t.Fatalf("at %#x and %#x: the case is not the one meant", mine.b.Addr, foreign.b.Addr)
	}
	if err := w.a.Free(foreign.b); !errors.Is(err, alloc.ErrDoubleFree) && !errors.Is(err, alloc.ErrNotAllocated) {
		t.Errorf("free of another allocator's block: %v", err)
	}
	w.check()
	w.close()
	other.close()
}

func (m Maker) afterClose(t *testing.T) {
	w := m.open(t)
	l, _ := w.alloc(alloc.Request{Bytes: 5000})
	w.close()
	_, err := w.a.Alloc(alloc.Request{Bytes: 1})
	_, trimErr := w.a.Trim(0)
	_, atErr := w.a.BlockAt(l.b.Addr)
	for what, err := range map[string]error{
		"Alloc": err, "Free": w.a.Free(l.b), "FreeAddr": w.a.FreeAddr(l.b.Addr), "BlockAt": atErr, "Trim": trimErr, "Close": w.a.Close(),
	} {
		if !errors.Is(err, alloc.ErrClosed) {
			t.Errorf("%s after Close: %v, want ErrClosed", what, err)
		}
	}
	if s := w.a.Stats(); s.BytesInUse != 0 || s.PoolBytes != 0 {
		t.Errorf("statistics after Close: %+v", s)
	}
	w.a.Walk(func(c alloc.Chunk) bool {
		t.Errorf("walk after Close: %+v", c)
		return true
	})
}

func (m Maker) alignment(t *testing.T) {
	w := m.open(t)
	for shift := range 21 {
		for range 3 {
			w.alloc(alloc.Request{Bytes: 300, Align: 1 << shift})
		}
	}
	if len(w.live) < 20 {
		t.Fatalf("only %d aligned requests were served", len(w.live))
	}
	if _, err := w.a.Alloc(alloc.Request{Bytes: 300, Align: 768}); !errors.Is(err, alloc.ErrBadRequest) {
		t.Errorf("alignment 768: %v, want ErrBadRequest", err)
	}
	w.check()
	w.close()
}

// stress imitates what programs do: a training step that allocates in a stack
// and frees in reverse, a server whose blocks live for random times, runs of
// one size, and phases that fill the device and empty it.
func (m Maker) stress(t *testing.T) {
	for _, seed := range []uint64{1, 2, 3} {
		if m.Third && seed > 1 {
			return
		}
		r := rand.New(rand.NewPCG(seed, 11))
		w := m.open(t)
		size := func() uint64 {
			return uint64(math.Exp(r.Float64() * math.Log(float64(m.Device)/6)))
		}
		for phase := range 24 {
			equal := size()
			for range 150 {
				switch phase % 4 {
				case 0: // a step: up and down in a stack
					n := 1 + r.IntN(12)
					for range n {
						w.alloc(alloc.Request{Bytes: size(), Stream: 1})
					}
					for range min(n, len(w.live)) {
						w.free(len(w.live)-1, false)
					}
				case 1: // a server
					if len(w.live) > 0 && r.IntN(2) == 0 {
						w.free(r.IntN(len(w.live)), r.IntN(2) == 0)
					} else {
						w.alloc(alloc.Request{Bytes: size(), End: alloc.End(r.IntN(2))})
					}
				case 2: // one size, until it is full
					w.alloc(alloc.Request{Bytes: equal})
				case 3: // empty
					if len(w.live) > 0 {
						w.free(r.IntN(len(w.live)), false)
					}
				}
			}
			w.check()
		}
		w.close()
	}
}

func (m Maker) trim(t *testing.T) {
	w := m.open(t)
	for range 40 {
		w.alloc(alloc.Request{Bytes: m.Device / 64})
	}
	for len(w.live) > 3 {
		w.free(len(w.live)/2, false)
	}
	before, _ := w.dev.Held()
	released, err := w.a.Trim(0)
	if err != nil {
		t.Fatal(err)
	}
	after, _ := w.dev.Held()
	if before-after != released {
		t.Fatalf("Trim says it released %d bytes, the device got %d", released, before-after)
	}
	w.check()
	for _, l := range w.live {
		w.intact(l)
	}
	if _, ok := w.alloc(alloc.Request{Bytes: m.Device / 64}); !ok {
		t.Fatal("refused after Trim")
	}
	w.check()
	w.close()
}

// program is a fixed sequence that makes an allocator call the driver in every
// way it knows. It goes on after errors.
func (w *world) program(r *rand.Rand) {
	var live []alloc.Block
	for i := range 60 {
		if i%3 == 2 && len(live) > 0 {
			k := r.IntN(len(live))
			if w.a.Free(live[k]) != nil {
				continue // still live
			}
			live = slices.Delete(live, k, k+1)
			continue
		}
		b, err := w.a.Alloc(alloc.Request{Bytes: w.m.Device / 40 * uint64(1+i%7)})
		if err == nil {
			live = append(live, b)
		}
		if i%20 == 19 {
			_, _ = w.a.Trim(0)
		}
	}
}

// faults makes the device fail at every call in turn, once by refusing, once
// by being lost from then on. Whatever happens, the allocator stays whole and
// its account of what it holds is the device's.
func (m Maker) faults(t *testing.T) {
	w := m.open(t)
	w.program(rand.New(rand.NewPCG(5, 5)))
	if err := w.a.Close(); err != nil {
		t.Fatal(err)
	}
	calls := w.dev.Counters().Calls
	if calls == 0 {
		t.Fatal("the program made no driver call")
	}
	step := uint64(1)
	if testing.Short() {
		step = 5 // the race detector's run, which is about locks
	}
	for n := uint64(1); n <= calls; n += step {
		for k, fault := range []struct {
			name string
			set  func(*sim.Device)
		}{
			{"refused", func(d *sim.Device) { d.SetFaults(sim.Faults{FailAt: n, Err: device.ErrOutOfMemory}) }},
			{"invalid", func(d *sim.Device) { d.SetFaults(sim.Faults{FailAt: n, Err: device.ErrInvalidValue}) }},
			{"lost", func(d *sim.Device) { d.SetFaults(sim.Faults{LoseAt: n}) }},
		} {
			if m.Third && n%3 != uint64(k) {
				continue
			}
			w := m.open(t)
			fault.set(w.dev)
			w.program(rand.New(rand.NewPCG(5, 5)))
			name := fmt.Sprintf("call %d of %d %s", n, calls, fault.name)
			if c, ok := w.a.(checker); ok {
				if err := c.Check(); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
			held, _ := w.dev.Held()
			if s := w.a.Stats(); s.PoolBytes != held && !m.Asks {
				t.Fatalf("%s: statistics say %d bytes in the pool, the device says %d", name, s.PoolBytes, held)
			}
			// The fault is gone: everything can be released but for the one
			// call that fails while closing.
			err := w.a.Close()
			held, _ = w.dev.Held()
			if err == nil && held != 0 {
				t.Fatalf("%s: Close says nothing, %d bytes are held", name, held)
			}
			if s := w.a.Stats(); s.PoolBytes != held && !m.Asks {
				t.Fatalf("%s: after Close statistics say %d bytes, the device says %d", name, s.PoolBytes, held)
			}
		}
	}
}

// noGarbage: an operation in the steady state allocates nothing on the Go heap.
func (m Maker) noGarbage(t *testing.T) {
	if invariants.Enabled {
		t.Skip("the checks of an invariants build allocate")
	}
	if m.Garbage {
		t.Skip("the simulated device allocates")
	}
	a, err := m.New(m.device(t)) // without the suite's record, which allocates
	if err != nil {
		t.Fatal(err)
	}
	var blocks [64]alloc.Block
	turn := func() {
		for i := range blocks {
			blocks[i], _ = a.Alloc(alloc.Request{Bytes: uint64(i*i*50 + 1)})
		}
		for i := range blocks {
			k := i * 37 % len(blocks)
			if i%2 == 0 {
				_ = a.Free(blocks[k])
			} else {
				_ = a.FreeAddr(blocks[k].Addr)
			}
		}
	}
	turn()
	if n := testing.AllocsPerRun(200, turn); n != 0 {
		t.Errorf("%v allocations on the Go heap for %d operations", n, 2*len(blocks))
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
}
