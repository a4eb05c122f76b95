package sim

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// number is an entry of a sorted list.
func number(n int) entry { return entry{bytes: uint64(1 + n)} }

func search(list []entry, x entry) (int, bool) {
	return slices.BinarySearchFunc(list, x, func(a, b entry) int { return cmp.Compare(a.bytes, b.bytes) })
}

// TestSorted runs a sorted list against a slice that is sorted again and again.
func TestSorted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s sorted
		var want []entry
		check := func() {
			t.Helper()
			var got []entry
			for n := range s.all {
				got = append(got, *n)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("it holds %v, want %v", got, want)
			}
			for _, leaf := range s.leaves {
				if len(leaf) == 0 || len(leaf) > leafMax {
					t.Fatalf("a leaf of %d", len(leaf))
				}
			}
		}
		if rapid.Bool().Draw(t, "begin with many") {
			for n := range 300 {
				s.put(number(n * 10))
				want = append(want, number(n*10))
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				from := rapid.IntRange(0, 3000).Draw(t, "from")
				for n := range rapid.IntRange(1, 200).Draw(t, "how many") {
					if i, found := search(want, number(from+n)); !found {
						s.put(number(from + n))
						want = slices.Insert(want, i, number(from+n))
					}
				}
			},
			"drop": func(t *rapid.T) {
				from, n := number(rapid.IntRange(0, 3000).Draw(t, "from")), rapid.IntRange(1, 200).Draw(t, "how many")
				i, _ := search(want, from)
				for p := s.seek(from); n > 0 && s.at(p) != nil; n-- {
					if p = s.drop(p); i+1 < len(want) && *s.at(p) != want[i+1] {
						t.Fatalf("after a drop comes %d, want %d", s.at(p).bytes, want[i+1].bytes)
					}
					want = slices.Delete(want, i, i+1)
				}
			},
			"seek": func(t *rapid.T) {
				x := number(rapid.IntRange(-1, 3200).Draw(t, "what"))
				i, _ := search(want, x)
				p := s.seek(x)
				if e := s.at(p); (e == nil) != (i == len(want)) || e != nil && *e != want[i] {
					t.Fatalf("seek(%d) in %v: %v", x.bytes, want, e)
				}
			},
			"": func(*rapid.T) { check() },
		})
	})
}

// TestClass: classes follow the sizes, and all there are fit the bitmap.
func TestClass(t *testing.T) {
	for _, tc := range []struct {
		name       string
		bytes      uint64
		class, end int // end: the class of the size before
	}{
		{"the smallest", poolStep, 1, 0},
		{"the largest that is exact", exactClasses*poolStep - poolStep, exactClasses - 1, exactClasses - 2},
		{"the first of several sizes", exactClasses * poolStep, exactClasses, exactClasses - 1},
		{"the last of them", exactClasses*poolStep + exactClasses/32*poolStep - poolStep, exactClasses, exactClasses},
		{"the next", exactClasses*poolStep + exactClasses/32*poolStep, exactClasses + 1, exactClasses},
		{"twice", 2 * exactClasses * poolStep, exactClasses + 32, exactClasses + 31},
		{"the largest of all", math.MaxUint64, classCount - 1, classCount - 1},
	} {
		if got, before := class(tc.bytes), class(tc.bytes-poolStep); got != tc.class || before != tc.end {
			t.Errorf("%s: %d bytes are of class %d, and one step less of %d; want %d and %d", tc.name, tc.bytes, got, before, tc.class, tc.end)
		}
	}
	if classCount > 64*64 {
		t.Errorf("%d classes do not fit", classCount)
	}
}

// TestHoles runs the parts and holes of a pool of two chunks side by side against a
// field of cells, each with its mark. Every lane has what it may have: not a byte more,
// joined as far as it goes, and the best fit is the smallest, then the lowest.
func TestHoles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const lanes = 3
		// Classes of one size and of several.
		unit := rapid.SampledFrom([]uint64{poolStep, 40 * exactClasses * poolStep / 256}).Draw(t, "unit")
		const cells = 256 // half of them in each chunk
		type cell struct {
			used bool
			lane int // of the free
			n    uint64
		}
		var field [cells]cell // n 0: no mark
		p := &pool{}
		for i := range uint64(2) {
			c := &chunk{addr: i * cells / 2 * unit, bytes: cells / 2 * unit}
			c.first = &part{addr: c.addr, bytes: c.bytes}
			p.chunks = append(p.chunks, c)
			p.give(c.first, mark{})
		}
		origins := [lanes]*origin{{lane: 0}, {lane: 1}, {lane: 2}}
		var blocks []*part
		var host clock
		n := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				var free []*part
				for s := range p.parts {
					if !s.used() {
						free = append(free, s)
					}
				}
				if len(free) == 0 {
					t.Skip("nothing is free")
				}
				first := rapid.SampledFrom(free).Draw(t, "from")
				most := uint64(0)
				for s := first; s != nil && !s.used(); s = s.next {
					most += s.bytes / unit
				}
				bytes := rapid.Uint64Range(1, most).Draw(t, "cells") * unit
				b, last := p.reach(first, bytes)
				p.take(b, last)
				blocks = append(blocks, b)
				if b.bytes != bytes {
					t.Fatalf("the block has %d bytes, want %d", b.bytes, bytes)
				}
				for i := b.addr / unit; i < b.end()/unit; i++ {
					field[i] = cell{used: true}
				}
			},
			"give": func(t *rapid.T) {
				if len(blocks) == 0 {
					t.Skip("nothing is used")
				}
				i := rapid.IntRange(0, len(blocks)-1).Draw(t, "which")
				b, lane := blocks[i], rapid.IntRange(0, lanes-1).Draw(t, "lane")
				blocks = slices.Delete(blocks, i, i+1)
				n++
				for i := b.addr / unit; i < b.end()/unit; i++ {
					field[i] = cell{lane: lane, n: n}
				}
				p.give(b, mark{from: origins[lane], n: n})
			},
			"settle": func(t *rapid.T) {
				host.set(rapid.IntRange(0, lanes-1).Draw(t, "lane"), rapid.Uint64Range(0, n).Draw(t, "known"))
				p.settle(host)
				for i := range field {
					if c := &field[i]; !c.used && host.knows(c.lane, c.n) {
						c.n = 0
					}
				}
			},
			"": func(t *rapid.T) {
				lane := rapid.IntRange(0, lanes-1).Draw(t, "asks")
				p.lane(lane) // the first time it is made of what is there
				for lane, own := range p.lanes {
					if own != nil {
						checkHoles(t, own, unit, cells, func(i uint64) bool {
							return !field[i].used && (field[i].n == 0 || field[i].lane == lane)
						})
					}
				}
				for _, c := range p.chunks {
					idle := uint64(0)
					for i := c.addr / unit; i < (c.addr+c.bytes)/unit; i++ {
						if !field[i].used && field[i].n == 0 {
							idle += unit
						}
					}
					if c.idle != idle {
						t.Fatalf("%d bytes of the chunk at %d are idle, want %d", c.idle, c.addr, idle)
					}
				}
			},
		})
	})
}

// checkHoles compares a lane's holes with the cells that its streams may have.
func checkHoles(t *rapid.T, own *holes, unit, cells uint64, may func(uint64) bool) {
	t.Helper()
	type run struct{ addr, bytes uint64 }
	var want, got []run
	for i := range cells {
		switch last := len(want) - 1; {
		case !may(i):
		case i > 0 && may(i-1) && i != cells/2:
			want[last].bytes += unit
		default:
			want = append(want, run{i * unit, unit})
		}
	}
	total := uint64(0)
	for _, h := range want {
		total += h.bytes
	}
	slices.SortFunc(want, func(a, b run) int { return cmp.Or(cmp.Compare(a.bytes, b.bytes), cmp.Compare(a.addr, b.addr)) })
	for k := range own.classes {
		c := &own.classes[k]
		list := []*hole{c.one}
		if c.one == nil {
			list = nil
			if c.many != nil {
				for h := range c.many.all {
					list = append(list, h.hole)
				}
			}
		}
		if has := own.some[k/64]>>(k%64)&1 == 1; has != (len(list) > 0) || own.top>>(k/64)&1 == 1 != (own.some[k/64] != 0) {
			t.Fatalf("class %d has %d holes, and the bits say %t", k, len(list), has)
		}
		for _, h := range list {
			got = append(got, run{h.addr, h.bytes})
			if own.of(h.first) != h || own.of(h.last) != h || h.first.addr != h.addr || h.last.end() != h.addr+h.bytes {
				t.Fatalf("the hole at %d: %+v to %+v", h.addr, h.first, h.last)
			}
		}
	}
	if !slices.Equal(got, want) || own.total != total {
		t.Fatalf("lane %d: %+v, %d bytes; want %+v, %d", own.which, got, own.total, want, total)
	}
	n := rapid.Uint64Range(1, cells).Draw(t, "fit") * unit
	i := slices.IndexFunc(want, func(h run) bool { return h.bytes >= n })
	if h := own.fit(n); (h != nil) != (i >= 0) || h != nil && h.addr != want[i].addr {
		t.Fatalf("fit(%d) = %+v in %+v", n, h, want)
	}
}

// TestTable runs a table of blocks against a map. Some addresses have the same place.
func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := newTable()
		want := map[uint64]*part{}
		addr := rapid.Custom(func(t *rapid.T) uint64 { return highBase + rapid.Uint64Range(0, 300).Draw(t, "block")*poolStep })
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				if a := addr.Draw(t, "addr"); want[a] == nil {
					want[a] = &part{addr: a}
					tab.put(want[a])
				}
			},
			"many": func(t *rapid.T) {
				for i := range uint64(100) {
					if a := highBase + 3*i*poolStep; want[a] == nil {
						want[a] = &part{addr: a}
						tab.put(want[a])
					}
				}
			},
			"drop": func(t *rapid.T) {
				if a := addr.Draw(t, "addr"); want[a] != nil {
					delete(want, a)
					tab.drop(a)
				}
			},
			"": func(t *rapid.T) {
				for i := range uint64(301) {
					if a := highBase + i*poolStep; tab.find(a) != want[a] {
						t.Fatalf("at %#x is %v, want %v", a, tab.find(a), want[a])
					}
				}
				for b := range tab.all {
					if want[b.addr] != b {
						t.Fatalf("%v is in the table", b)
					}
				}
				if tab.find(highBase+1) != nil || tab.count != len(want) {
					t.Fatalf("%d blocks, want %d", tab.count, len(want))
				}
			},
		})
	})
}

// all visits the entries in order. None may be put or dropped meanwhile.
func (s *sorted) all(yield func(*entry) bool) {
	for _, leaf := range s.leaves {
		for i := range leaf {
			if !yield(&leaf[i]) {
				return
			}
		}
	}
}

// all visits the blocks in any order.
func (t *blockTable) all(yield func(*part) bool) {
	for _, p := range t.places {
		if p.block != nil && !yield(p.block) {
			return
		}
	}
}
