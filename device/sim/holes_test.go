package sim

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// number is an entry of a sorted list.
type number int

func (n number) before(o number) bool { return n < o }

// TestSorted runs a sorted list against a slice that is sorted again and again.
func TestSorted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s sorted[number]
		var want []number
		check := func() {
			t.Helper()
			var got []number
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
			for n := range number(300) {
				s.put(n * 10)
				want = append(want, n*10)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				from := number(rapid.IntRange(0, 3000).Draw(t, "from"))
				for n := from; n < from+number(rapid.IntRange(1, 200).Draw(t, "how many")); n++ {
					if i, found := slices.BinarySearch(want, n); !found {
						s.put(n)
						want = slices.Insert(want, i, n)
					}
				}
			},
			"drop": func(t *rapid.T) {
				from, n := number(rapid.IntRange(0, 3000).Draw(t, "from")), rapid.IntRange(1, 200).Draw(t, "how many")
				i, _ := slices.BinarySearch(want, from)
				for p := s.seek(from); n > 0 && s.at(p) != nil; n-- {
					if p = s.drop(p); i+1 < len(want) && *s.at(p) != want[i+1] {
						t.Fatalf("after a drop comes %d, want %d", *s.at(p), want[i+1])
					}
					want = slices.Delete(want, i, i+1)
				}
			},
			"seek": func(t *rapid.T) {
				x := number(rapid.IntRange(-1, 3200).Draw(t, "what"))
				i, _ := slices.BinarySearch(want, x)
				p := s.seek(x)
				if e := s.at(p); (e == nil) != (i == len(want)) || e != nil && *e != want[i] {
					t.Fatalf("seek(%d) in %v: %v", x, want, e)
				}
				if e := s.prev(p); (e == nil) != (i == 0) || e != nil && *e != want[i-1] {
					t.Fatalf("prev(seek(%d)) in %v: %v", x, want, e)
				}
			},
			"": func(*rapid.T) { check() },
		})
	})
}

// TestHoles runs holes in two chunks side by side against a field of cells.
func TestHoles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const cells = 400 // half of them in each chunk
		chunks := [2]*chunk{{bytes: cells / 2}, {addr: cells / 2, bytes: cells / 2}}
		var hs holes
		var free [cells]bool
		span := func(t *rapid.T) (at, n uint64) {
			at = rapid.Uint64Range(0, cells-1).Draw(t, "at")
			return at, rapid.Uint64Range(1, cells-at).Draw(t, "bytes")
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				at, n := span(t)
				n = min(n, cells/2-at%(cells/2))
				if slices.Contains(free[at:at+n], true) {
					t.Skip("some of it is there")
				}
				hs.add(hole{at, n, chunks[at/(cells/2)]})
				for i := range n {
					free[at+i] = true
				}
			},
			"cut": func(t *rapid.T) {
				at, n := span(t)
				hs.cut(at, n)
				clear(free[at : at+n])
			},
			"": func(t *rapid.T) {
				var want []hole
				total := uint64(0)
				for i := uint64(0); i < cells; i++ {
					if !free[i] {
						continue
					}
					total++
					if last := len(want) - 1; last >= 0 && want[last].addr+want[last].bytes == i && i != cells/2 {
						want[last].bytes++
					} else {
						want = append(want, hole{i, 1, chunks[i/(cells/2)]})
					}
				}
				var got []hole
				for h := range hs.addrs.all {
					got = append(got, hole(*h))
				}
				if !slices.Equal(got, want) || hs.total != total {
					t.Fatalf("%+v, %d bytes; want %+v, %d", got, hs.total, want, total)
				}
				slices.SortFunc(want, func(a, b hole) int {
					if bySize(a).before(bySize(b)) {
						return -1
					}
					return 1
				})
				got = nil
				for h := range hs.sizes.all {
					got = append(got, hole(*h))
				}
				if !slices.Equal(got, want) {
					t.Fatalf("by size %+v, want %+v", got, want)
				}
				n := rapid.Uint64Range(1, cells).Draw(t, "fit")
				i := slices.IndexFunc(want, func(h hole) bool { return h.bytes >= n })
				if at, ok := hs.fit(n); ok != (i >= 0) || ok && at != want[i].addr {
					t.Fatalf("fit(%d) = %d, %v in %+v", n, at, ok, want)
				}
			},
		})
	})
}
