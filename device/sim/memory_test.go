package sim

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpumem/device"
)

// TestMemoryModel: contents against plain bytes.
func TestMemoryModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 9*pageSize + 77
		type both struct {
			m    *memory
			want []byte
		}
		var all []both
		for range 2 {
			n := rapid.Uint64Range(1, most).Draw(t, "bytes")
			all = append(all, both{&memory{bytes: n}, make([]byte, n)})
		}
		pick := func(t *rapid.T) (b both, off, n uint64) {
			b = rapid.SampledFrom(all).Draw(t, "memory")
			off = rapid.OneOf(rapid.Uint64Range(0, b.m.bytes), rapid.Map(rapid.Uint64Range(0, b.m.bytes/pageSize), func(i uint64) uint64 { return i * pageSize })).Draw(t, "off")
			n = rapid.OneOf(rapid.Uint64Range(0, b.m.bytes-off), rapid.Map(rapid.Uint64Range(0, (b.m.bytes-off)/pageSize), func(i uint64) uint64 { return i * pageSize })).Draw(t, "n")
			return b, off, n
		}
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				b, off, n := pick(t)
				p := bytes.Repeat([]byte{rapid.Byte().Draw(t, "byte"), 1, 2, 3, 4}, int(n+4)/5)[:n]
				b.m.write(off, p)
				copy(b.want[off:], p)
			},
			"fill": func(t *rapid.T) {
				b, off, n := pick(t)
				v := rapid.SampledFrom([]byte{0, 0, 1, 255}).Draw(t, "byte")
				b.m.fill(off, n, v)
				for i := range n {
					b.want[off+i] = v
				}
			},
			"read": func(t *rapid.T) {
				b, off, n := pick(t)
				p := bytes.Repeat([]byte{9}, int(n))
				b.m.read(off, p)
				if !bytes.Equal(p, b.want[off:off+n]) {
					t.Errorf("read(%d, %d bytes) differs", off, n)
				}
			},
			"copy": func(t *rapid.T) {
				// Cut at random: what is left of a range is in a second piece.
				cut := func(b both, off, n uint64) []piece {
					at := rapid.Uint64Range(0, n).Draw(t, "cut")
					return []piece{{b.m, off, at, 0}, {b.m, off + at, n - at, 0}}
				}
				dst, to, n := pick(t)
				src, from, k := pick(t)
				n = min(n, k)
				if dst.m == src.m && to < from+n && from < to+n {
					return
				}
				copyPieces(cut(dst, to, n), cut(src, from, n))
				copy(dst.want[to:to+n], src.want[from:])
			},
			"": func(t *rapid.T) {
				for _, b := range all {
					p := make([]byte, b.m.bytes)
					b.m.read(0, p)
					if !bytes.Equal(p, b.want) {
						t.Errorf("the memory of %d bytes differs", b.m.bytes)
					}
				}
			},
		})
	})
}

// TestTouched: what the contents take.
func TestTouched(t *testing.T) {
	const mib = 1 << 20
	d, err := New(Config{Total: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.Alloc(1 << 39)
	if err != nil {
		t.Fatal(err)
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	for _, tc := range []struct {
		name string
		do   func()
		want uint64 // pages
	}{
		{"nothing", func() {}, 0},
		{"read much", func() { ok(d.Read(r.Addr+5, make([]byte, 10*mib))) }, 0},
		{"fill all with 0", func() { ok(d.Fill(r.Addr, r.Bytes, 0)) }, 0},
		{"write a byte", func() { ok(d.Write(r.Addr+1<<38, []byte{1})) }, 1},
		{"and its neighbour", func() { ok(d.Write(r.Addr+1<<38+1, []byte{1})) }, 1},
		{"write over the end of a page", func() { ok(d.Write(r.Addr+pageSize-1, []byte{1, 2})) }, 3},
		{"fill a page and a byte with 0", func() { ok(d.Fill(r.Addr, pageSize+1, 0)) }, 2},
		{"fill half a page with 0", func() { ok(d.Fill(r.Addr+2*pageSize, pageSize/2, 0)) }, 2},
		{"fill many pages with one byte", func() { ok(d.Fill(r.Addr, 1<<30, 7)) }, 1},
		{"write into one of them", func() { ok(d.Write(r.Addr+10*pageSize, []byte{1})) }, 2},
		{"fill all with 0 again", func() { ok(d.Fill(r.Addr, r.Bytes, 0)) }, 0},
		{"copy little in much", func() {
			ok(d.Write(r.Addr+100*pageSize, []byte{1, 2, 3}))
			dst, _ := d.pieces(r.Addr+1<<38, 1<<38)
			src, _ := d.pieces(r.Addr, 1<<38)
			copyPieces(dst, src)
		}, 2},
		{"the copy", func() {
			var p [3]byte
			ok(d.Read(r.Addr+1<<38+100*pageSize, p[:]))
			if p != [3]byte{1, 2, 3} {
				t.Errorf("copied %v", p)
			}
		}, 2},
		{"freed", func() { ok(d.Free(r.Addr)) }, 0},
	} {
		if tc.do(); d.Touched() != tc.want*pageSize {
			t.Errorf("%s: %d bytes, want %d pages", tc.name, d.Touched(), tc.want)
		}
	}
	// What is granted next holds nothing of it.
	again, err := d.Alloc(mib)
	ok(err)
	p := []byte{1}
	if ok(d.Read(again.Addr, p)); p[0] != 0 {
		t.Errorf("a new grant reads %d", p[0])
	}
}

// TestReach: which ranges can be read, written and filled, and how many calls
// and how much time that takes.
func TestReach(t *testing.T) {
	const mib = 1 << 20
	d, err := New(Config{Total: 1 << 30, Granularity: 512, Name: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	small, _ := d.Alloc(512)                   // ends before the next grant
	large, _ := d.Alloc(2 * mib)               // ends where it begins
	gone, _ := d.Alloc(2 * mib)                //
	base, _ := d.AddressReserve(12*mib, 0)     // two mappings with access, one without, room, one with access
	h, _ := d.MemCreate(2 * mib)               // mapped everywhere
	for _, off := range []uint64{0, 2, 4, 8} { //
		if err := d.MemMap(base+off*mib, 2*mib, h); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{d.Free(gone.Addr), d.MemSetAccess(base, 4*mib), d.MemSetAccess(base+8*mib, 2*mib)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	const us = time.Microsecond
	for _, tc := range []struct {
		name        string
		addr, bytes uint64
		want        error
	}{
		{"a small grant", small.Addr, 512, nil},
		{"a part of it", small.Addr + 500, 12, nil},
		{"past its end", small.Addr + 500, 13, device.ErrInvalidValue},
		{"before it", small.Addr - 1, 2, device.ErrInvalidValue},
		{"nothing", small.Addr, 0, nil},
		{"nothing, nowhere", 5, 0, nil},
		{"nowhere", 5, 1, device.ErrInvalidValue},
		{"a large grant", large.Addr, 2 * mib, nil},
		{"into what was freed", large.Addr, 2*mib + 1, device.ErrInvalidValue},
		{"what was freed", gone.Addr, 1, device.ErrInvalidValue},
		{"past the last address", 1<<64 - 1, 1, device.ErrInvalidValue},
		{"over the last address", 1<<64 - 1, 2, device.ErrInvalidValue},
		{"two mappings", base, 4 * mib, nil},
		{"over the seam", base + 2*mib - 3, 7, nil},
		{"into one without access", base + 2*mib, 2*mib + 1, device.ErrInvalidValue},
		{"one without access", base + 4*mib, 1, device.ErrInvalidValue},
		{"reserved only", base + 6*mib, 1, device.ErrInvalidValue},
		{"the last mapping", base + 8*mib, 2 * mib, nil},
		{"past the last mapping", base + 8*mib, 2*mib + 1, device.ErrInvalidValue},
	} {
		for _, call := range []struct {
			name         string
			base, perMiB time.Duration
			do           func() error
		}{
			{"cuMemcpyHtoD", 10 * us, 100 * us, func() error { return d.Write(tc.addr, make([]byte, tc.bytes)) }},
			{"cuMemcpyDtoH", 10 * us, 100 * us, func() error { return d.Read(tc.addr, make([]byte, tc.bytes)) }},
			{"cuMemsetD8", 5 * us, us / 2, func() error { return d.Fill(tc.addr, tc.bytes, 1) }},
		} {
			t.Run(tc.name+"/"+call.name, func(t *testing.T) {
				before := d.Counters()
				err := call.do()
				want := call.base
				if tc.want == nil {
					want += time.Duration(float64(tc.bytes) / mib * float64(call.perMiB))
				}
				var refused *device.CallError
				if !errors.Is(err, tc.want) ||
					err != nil && (!errors.As(err, &refused) || refused.Call != call.name || refused.Device != "mine" || refused.Bytes != tc.bytes) {
					t.Errorf("%v, want %v", err, tc.want)
				}
				after := d.Counters()
				if got := after.Time - before.Time; after.Calls != before.Calls+1 || got != want {
					t.Errorf("%d calls, %v; want %v", after.Calls-before.Calls, got, want)
				}
			})
		}
	}
}

// TestContentsBelongToMemory: two mappings of one handle show the same, at the
// same time or one after the other, and so does one that comes after the
// handle's release.
func TestContentsBelongToMemory(t *testing.T) {
	const page = pageUnit
	d, err := New(Config{Total: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	reads := func(addr uint64, want byte) {
		t.Helper()
		p := make([]byte, 3)
		ok(d.Read(addr, p))
		if !bytes.Equal(p, []byte{want, want, want}) {
			t.Errorf("%#x reads %v, want %d", addr, p, want)
		}
	}
	base, err := d.AddressReserve(8*page, 0)
	ok(err)
	h, err := d.MemCreate(page)
	ok(err)
	other, err := d.MemCreate(page)
	ok(err)
	for i := range uint64(2) {
		ok(d.MemMap(base+i*page, page, h))
	}
	ok(d.MemMap(base+2*page, page, other))
	ok(d.MemSetAccess(base, 3*page))

	ok(d.Fill(base+5, page-5, 1))
	reads(base+5, 1)
	reads(base+page+5, 1)   // the same bytes
	reads(base+2*page+5, 0) // others
	ok(d.Write(base+2*page-2, []byte{2, 2, 3, 3, 3}))
	p := make([]byte, 2)
	if ok(d.Read(base+page-2, p)); p[0] != 2 || p[1] != 2 {
		t.Errorf("what was written through the second mapping reads %v in the first", p)
	}
	reads(base+2*page, 3)

	ok(d.MemUnmap(base, 3*page))
	ok(d.MemMap(base+7*page, page, h))
	ok(d.MemSetAccess(base+7*page, page))
	reads(base+7*page+5, 1)
	ok(d.MemRelease(h))
	reads(base+7*page+5, 1)
	if d.Touched() == 0 {
		t.Error("nothing is kept")
	}
	ok(d.MemUnmap(base+7*page, page))
	ok(d.MemRelease(other))
	if d.Touched() != 0 {
		t.Errorf("%d bytes are kept of memory that is gone", d.Touched())
	}
}

// BenchmarkWriteRead is 256 bytes written and read again.
func BenchmarkWriteRead(b *testing.B) {
	d, _ := New(Config{Total: 1 << 30})
	r, _ := d.Alloc(1 << 30)
	p := make([]byte, 256)
	var x uint64
	for b.Loop() {
		x = (x*6364136223846793005 + 1442695040888963407)
		at := r.Addr + x>>40 // of 16 MiB
		if d.Write(at, p) != nil || d.Read(at, p) != nil {
			b.Fatal("refused")
		}
	}
}
