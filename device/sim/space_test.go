package sim

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestSpaceModel: a space against a list that is searched from its start.
func TestSpaceModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s space
		var model []segment
		// Few addresses at times, so that segments touch; many at others, so that
		// there are several leaves.
		top := rapid.SampledFrom([]uint64{40, 2000}).Draw(t, "top")
		draw := func() (addr, bytes uint64) {
			return rapid.Uint64Range(0, top).Draw(t, "addr"), rapid.Uint64Range(1, 5).Draw(t, "bytes")
		}
		meets := func(g segment, addr, bytes uint64) bool { return g.addr < addr+bytes && addr < g.end() }
		add := func(addr, bytes uint64) {
			if slices.ContainsFunc(model, func(g segment) bool { return meets(g, addr, bytes) }) {
				return
			}
			g := segment{addr: addr, bytes: bytes, off: addr * 7}
			s.add(g)
			model = append(model, g)
			slices.SortFunc(model, func(a, b segment) int { return int(a.addr) - int(b.addr) })
		}
		remove := func(i int) {
			s.remove(model[i].addr)
			model = slices.Delete(model, i, i+1)
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(*rapid.T) { add(draw()) },
			"add many": func(t *rapid.T) {
				at, bytes := draw()
				for range rapid.IntRange(0, 200).Draw(t, "number") {
					add(at, bytes)
					at += bytes + rapid.SampledFrom([]uint64{0, 0, 0, 1}).Draw(t, "gap")
				}
			},
			"add many, downwards": func(t *rapid.T) {
				at, bytes := draw()
				for range rapid.IntRange(0, 200).Draw(t, "number") {
					if add(at, bytes); at < bytes {
						return
					}
					at -= bytes
				}
			},
			"remove": func(t *rapid.T) {
				if len(model) > 0 {
					remove(rapid.IntRange(0, len(model)-1).Draw(t, "which"))
				}
			},
			"remove many": func(t *rapid.T) {
				if len(model) > 0 {
					i := rapid.IntRange(0, len(model)-1).Draw(t, "which")
					for range min(len(model)-i, rapid.IntRange(0, 200).Draw(t, "number")) {
						remove(i)
					}
				}
			},
			"look": func(t *rapid.T) {
				addr, bytes := draw()
				var start, hold *segment
				empty := true
				rest := []segment{}
				for i, g := range model {
					if g.addr == addr {
						start = &model[i]
					}
					if g.addr <= addr && addr+bytes <= g.end() {
						hold = &model[i]
					}
					if meets(g, addr, bytes) {
						empty = false
					}
					if g.end() > addr {
						rest = append(rest, g)
					}
				}
				same := func(a, b *segment) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }
				if got := s.starting(addr); !same(got, start) {
					t.Errorf("starting(%d) = %+v, want %+v", addr, got, start)
				}
				if got := s.holding(addr, bytes); !same(got, hold) {
					t.Errorf("holding(%d, %d) = %+v, want %+v", addr, bytes, got, hold)
				}
				if got := s.empty(addr, bytes); got != empty {
					t.Errorf("empty(%d, %d) = %v", addr, bytes, got)
				}
				got := []segment{}
				for g := range s.from(addr) {
					got = append(got, *g)
				}
				if !slices.Equal(got, rest) {
					t.Errorf("from(%d) = %v, want %v", addr, got, rest)
				}
			},
			"": func(t *rapid.T) {
				var all []segment
				for _, leaf := range s.leaves {
					if len(leaf) == 0 || len(leaf) > leafMax {
						t.Errorf("a leaf of %d", len(leaf))
					}
					all = append(all, leaf...)
				}
				if !slices.Equal(all, model) {
					t.Errorf("the space is %v, want %v", all, model)
				}
			},
		})
	})
}

// TestSpaceAtTheEnd: a segment that takes the last address there is.
func TestSpaceAtTheEnd(t *testing.T) {
	var s space
	s.add(segment{addr: 1, bytes: 1<<64 - 2})
	if s.holding(1<<63, 1<<63-1) == nil || s.holding(1<<63, 1<<63) != nil || s.holding(0, 1) != nil {
		t.Error("what lies in the segment and what does not")
	}
}

// TestAddresses: reservations and grants never get the same address, wherever
// either has come to.
func TestAddresses(t *testing.T) {
	d, err := New(Config{Total: 1 << 62})
	if err != nil {
		t.Fatal(err)
	}
	type use struct {
		what        string
		addr, bytes uint64
	}
	var uses []use
	at := func(what string, addr, bytes uint64) {
		t.Helper()
		for _, u := range uses {
			if u.addr < addr+bytes && addr < u.addr+u.bytes {
				t.Errorf("%s at %#x, %#x bytes, lies on %s at %#x, %#x bytes", what, addr, bytes, u.what, u.addr, u.bytes)
			}
		}
		uses = append(uses, use{what, addr, bytes})
	}
	alloc := func(bytes uint64) uint64 {
		t.Helper()
		r, err := d.Alloc(bytes)
		if err != nil {
			t.Fatal(err)
		}
		at("a grant", r.Addr, r.Bytes)
		return r.Addr
	}
	reserve := func(bytes, align uint64) uint64 {
		t.Helper()
		addr, err := d.AddressReserve(bytes, align)
		if err != nil {
			t.Fatal(err)
		}
		at("a reservation", addr, bytes)
		return addr
	}
	for _, step := range []struct {
		name      string
		got, want uint64
	}{
		{"first grant", alloc(1), Base},
		{"first reservation", reserve(6<<20, 0), highBase},
		{"second reservation", reserve(2<<20, 0), highBase + 6<<20},
		{"aligned reservation", reserve(2<<20, 1<<30), highBase + 1<<30},
		{"grants go on", alloc(1), Base + 2<<20},
		{"up to the reservations", alloc(highBase - Base - 4<<20), Base + 4<<20},
		{"past them", alloc(1 << 50), highBase + 1<<30 + 2<<20},
		{"a reservation after that", reserve(2<<20, 0), highBase + 1<<50 + 1<<30 + 2<<20},
		{"and a grant after that", alloc(1), highBase + 1<<50 + 1<<30 + 4<<20},
		{"and a reservation", reserve(2<<20, 0), highBase + 1<<50 + 1<<30 + 6<<20},
	} {
		if step.got != step.want {
			t.Errorf("%s: %#x, want %#x", step.name, step.got, step.want)
		}
	}
}

// TestGrantsWithoutReservations go on over 2^48 as if nothing were there.
func TestGrantsWithoutReservations(t *testing.T) {
	d, err := New(Config{Total: 1 << 62})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Alloc(1 << 50); err != nil {
		t.Fatal(err)
	}
	if r, err := d.Alloc(1); err != nil || r.Addr != Base+1<<50 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestAddressesRunOutHigh(t *testing.T) {
	d, err := New(Config{Total: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		bytes, align uint64
		ok           bool
	}{
		{1 << 63, 1, true},
		{1<<63 - 1<<48, 1, false}, // up to 2^64 itself
		{1<<63 - 1<<48 - 1, 1, false},
		{1, 1 << 63, false},
		{1<<63 - 1<<48 - addrStep, 1, true},
		{1, 1, false}, // the last step is never used
	} {
		high := d.high
		if addr, ok := d.addresses(tc.bytes, tc.align); ok != tc.ok || !ok && d.high != high {
			t.Errorf("addresses(%#x, %#x) = %#x, %v", tc.bytes, tc.align, addr, ok)
		}
	}
}

// BenchmarkSpace is finding one of many segments, and adding and removing one.
func BenchmarkSpace(b *testing.B) {
	for _, n := range []uint64{1000, 500_000} {
		var s space
		for i := range n {
			s.add(segment{addr: 2 * i, bytes: 1})
		}
		b.Run(fmt.Sprintf("find/%d", n), func(b *testing.B) {
			var x uint64
			for b.Loop() {
				x = (x*6364136223846793005 + 1442695040888963407)
				if s.holding(x%n*2, 1) == nil {
					b.Fatal("nothing there")
				}
			}
		})
		b.Run(fmt.Sprintf("change/%d", n), func(b *testing.B) {
			var x uint64
			for b.Loop() {
				x = (x*6364136223846793005 + 1442695040888963407)
				s.remove(x % n * 2)
				s.add(segment{addr: x % n * 2, bytes: 1})
			}
		})
	}
}
