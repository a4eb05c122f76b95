package elastic_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/alloc"
	"gpumem/alloc/internal/elastic"
	"gpumem/device/sim"
)

// The model is as plain as can be: a list of live blocks, and a count of live
// bytes for each page. What the allocator says and what it refuses is compared
// with that, and every block's contents with what was written to it.

// tb is what testing and rapid have in common.
type tb interface {
	Helper()
	Fatalf(string, ...any)
	Logf(string, ...any)
}

type modelBlock struct {
	b    alloc.Block
	mark uint64
	one  bool
}

type world struct {
	t     tb
	dev   *sim.Device
	a     *elastic.Allocator
	limit uint64 // pages
	few   bool   // addresses; a refusal may be for want of them
	live  []modelBlock
	count map[uint64]uint64 // live bytes by page
	used  uint64
	next  uint64
}

func newWorld(t tb, devicePages uint64, cfg elastic.Config) *world {
	t.Helper()
	dev, err := sim.New(sim.Config{Total: devicePages * page})
	if err != nil {
		t.Fatalf("%v", err)
	}
	a, err := elastic.New(dev, cfg)
	if err != nil {
		t.Fatalf("%v", err)
	}
	w := &world{t: t, dev: dev, a: a, limit: devicePages, count: map[uint64]uint64{}}
	if cfg.Limit != 0 {
		w.limit = min(w.limit, cfg.Limit/page)
	}
	return w
}

// touch changes the count of the pages of a block.
func (w *world) touch(b alloc.Block, live bool) {
	sign := uint64(1)
	if !live {
		sign = 1<<64 - 1
	}
	for at := b.Addr; at < b.Addr+b.Size; {
		p := at / page
		to := min((p+1)*page, b.Addr+b.Size)
		if w.count[p] += sign * (to - at); w.count[p] == 0 {
			delete(w.count, p)
		}
		at = to
	}
	w.used += sign * b.Size
}

// marks are the places of a block where its number is written: both ends, and
// where pages begin.
func marks(b alloc.Block) []uint64 {
	at := []uint64{b.Addr, b.Addr + b.Size - 8}
	for p := (b.Addr/page + 1) * page; p+8 <= b.Addr+b.Size; p += page {
		at = append(at, p)
	}
	return at
}

// alloc asks, and checks the answer.
func (w *world) alloc(r alloc.Request) bool {
	w.t.Helper()
	before := w.a.Stats()
	b, err := w.a.Alloc(r)
	if err != nil {
		if !errors.Is(err, alloc.ErrNoMemory) {
			w.t.Fatalf("Alloc(%+v): %v", r, err)
		}
		if w.few && strings.Contains(err.Error(), "no addresses in one piece") {
			return false
		}
		// It means what it says: fewer pages than needed are free or freeable.
		need := (r.Bytes-1)/page + 1
		free, _, _ := w.dev.MemInfo()
		able := min(w.limit, w.a.Owned()+free/page)
		if able >= uint64(len(w.count))+need {
			w.t.Fatalf("Alloc(%+v) is refused; %d pages are held of %d, it needs %d", r, len(w.count), able, need)
		}
		if s := w.a.Stats(); s.BytesInUse != before.BytesInUse || s.NumAllocs != before.NumAllocs || s.PeakBytesInUse != before.PeakBytesInUse {
			w.t.Fatalf("a refusal changed the statistics from %+v to %+v", before, s)
		}
		return false
	}
	align := max(r.Align, 256)
	if b.Addr%align != 0 || b.Size < r.Bytes {
		w.t.Fatalf("Alloc(%+v) = %v", r, b)
	}
	touched := (b.Addr+b.Size-1)/page - b.Addr/page + 1
	if b.Size >= page && touched != (b.Size-1)/page+1 {
		w.t.Fatalf("%v touches %d pages", b, touched)
	}
	for _, l := range w.live {
		if b.Addr < l.b.Addr+l.b.Size && l.b.Addr < b.Addr+b.Size {
			w.t.Fatalf("%v overlaps %v", b, l.b)
		}
	}
	if r.OneHandle && (b.Addr%page != 0 || b.Size%page != 0) {
		w.t.Fatalf("%v has not a handle of its own", b)
	}
	w.touch(b, true)
	w.next++
	m := modelBlock{b, w.next, r.OneHandle}
	w.live = append(w.live, m)
	for _, at := range marks(b) {
		if err := w.dev.Write(at, binary.LittleEndian.AppendUint64(nil, m.mark)); err != nil {
			w.t.Fatalf("%v at %#x: %v", b, at, err)
		}
	}
	return true
}

// contents reads what was written to every block.
func (w *world) contents() {
	w.t.Helper()
	for _, l := range w.live {
		want := binary.LittleEndian.AppendUint64(nil, l.mark)
		got := make([]byte, 8)
		for _, at := range marks(l.b) {
			if err := w.dev.Read(at, got); err != nil || !bytes.Equal(got, want) {
				w.t.Fatalf("%v at %#x holds %x, %v; %x was written", l.b, at, got, err, want)
			}
		}
	}
}

func (w *world) free(i int, byAddr bool) {
	w.t.Helper()
	b := w.live[i].b
	w.live = slices.Delete(w.live, i, i+1)
	err := w.a.Free(b)
	if byAddr && err == nil {
		if err = w.a.FreeAddr(b.Addr); !errors.Is(err, alloc.ErrDoubleFree) && !errors.Is(err, alloc.ErrNotAllocated) {
			w.t.Fatalf("double free of %v: %v", b, err)
		}
		err = nil
	}
	if err != nil {
		w.t.Fatalf("free of %v: %v", b, err)
	}
	w.touch(b, false)
}

func (w *world) freeAddr(i int) {
	w.t.Helper()
	b := w.live[i].b
	if at, err := w.a.BlockAt(b.Addr); at != b || err != nil {
		w.t.Fatalf("BlockAt(%#x) = %v, %v; want %v", b.Addr, at, err, b)
	}
	w.live = slices.Delete(w.live, i, i+1)
	if err := w.a.FreeAddr(b.Addr); err != nil {
		w.t.Fatalf("free of %v by address: %v", b, err)
	}
	w.touch(b, false)
}

func (w *world) trim(keep, reserve uint64) {
	w.t.Helper()
	before := w.a.Owned()
	got, err := w.a.Trim(keep)
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	after := w.a.Owned()
	want := max(keep/page, uint64(len(w.count))+reserve/page)
	if got != (before-after)*page || after > want || after != min(before, want) {
		w.t.Fatalf("Trim(%d) gave %d back, from %d pages to %d; %d are held", keep, got, before, after, len(w.count))
	}
	w.contents()
}

func (w *world) check() {
	w.t.Helper()
	if err := w.a.Check(); err != nil {
		w.t.Fatalf("%v", err)
	}
	s := w.a.Stats()
	held, _ := w.dev.Held()
	if w.a.Held() != uint64(len(w.count)) || s.BytesInUse != w.used || s.PoolBytes != held || held > w.limit*page {
		w.t.Fatalf("held %d pages, in use %d, pool %d; counted %d, %d, the device says %d of %d", w.a.Held(), s.BytesInUse, s.PoolBytes, len(w.count), w.used, held, w.limit*page)
	}
	if f := s.Fragmentation(); f < 0 || f > 1 || math.IsNaN(f) {
		w.t.Fatalf("fragmentation %v of %+v", f, s)
	}
}

func (w *world) close() {
	w.t.Helper()
	w.contents()
	if err := w.a.Close(); err != nil {
		w.t.Fatalf("%v", err)
	}
	if held, _ := w.dev.Held(); held != 0 {
		w.t.Fatalf("%d bytes are held after Close", held)
	}
}

// step does one operation as a few numbers say.
func (w *world) step(op, size, extra uint64, reserve uint64) {
	w.t.Helper()
	switch {
	case op < 9:
		r := alloc.Request{Stream: uint32(extra & 3)}
		switch op {
		case 0, 1, 2: // small
			r.Bytes = 1 + size*size%(page/2)
		case 3: // whole pages
			r.Bytes = page * (1 + size%5)
		case 4: // a page and a little, or less
			r.Bytes = page*(1+size%3) + 256*(extra%5) - 512
		case 5:
			r.Bytes, r.Align = 1+size*97, 1<<(extra%26)
		case 6:
			r.Bytes, r.OneHandle = 1+size*151, true
		default: // odd ends
			r.Bytes = page/2 + size*331%(6*page)
		}
		w.alloc(r)
	case op < 14:
		if len(w.live) > 0 {
			if i := int(size % uint64(len(w.live))); extra&1 == 0 {
				w.free(i, extra&2 == 0)
			} else {
				w.freeAddr(i)
			}
		}
	case op == 14:
		w.trim(size%(w.limit+1)*page, reserve)
	default:
		// Another program takes some of the device, or gives it back.
		w.dev.SetUsed(size % (w.limit/2 + 1) * page)
	}
	w.check()
}

// TestModel does random operations.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := elastic.Config{
			Eager:         rapid.IntRange(0, 4).Draw(t, "eager") == 0,
			Deterministic: rapid.Bool().Draw(t, "deterministic"),
			Reserve:       page * rapid.Uint64Range(0, 3).Draw(t, "reserve"),
		}
		pages := rapid.Uint64Range(1, 40).Draw(t, "pages")
		if rapid.Bool().Draw(t, "limited") {
			cfg.Limit = pages*page + 12345
			pages += 3
		}
		w := newWorld(t, pages, cfg)
		n := rapid.IntRange(1, 120).Draw(t, "operations")
		for range n {
			w.step(rapid.Uint64Range(0, 15).Draw(t, "op"), rapid.Uint64Range(0, 1<<16).Draw(t, "size"), rapid.Uint64Range(0, 63).Draw(t, "extra"), cfg.Reserve)
		}
		w.contents()
		w.close()
	})
}

// FuzzOperations does the operations that bytes say, four for each.
func FuzzOperations(f *testing.F) {
	f.Add([]byte{20, 7, 9, 1, 0, 7, 200, 3, 1, 9, 0, 0, 2, 6, 9, 9, 1, 14, 0, 0, 0, 3, 3, 0, 0})
	f.Add([]byte{3, 3, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0, 9, 1, 0, 0, 15, 2, 0, 0, 7, 1, 1, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 {
			return
		}
		w := newWorld(t, 1+uint64(data[0])%48, elastic.Config{Eager: data[0] >= 240})
		for data = data[1:]; len(data) >= 4 && len(data) < 4096; data = data[4:] {
			w.step(uint64(data[0])%16, uint64(data[1])<<8|uint64(data[2]), uint64(data[3]), 0)
		}
		w.close()
	})
}
