package chunks

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// wellLinked checks that each class of a Lists is linked both ways, from the first
// chunk to the last and round to that, holds chunks of its class alone in the order of
// their sizes, and that the bitmap counts it right. It returns the sizes in all.
func (x *Lists) wellLinked() (sizes []uint64, err error) {
	for k, first := range x.roots {
		n, last := 0, H(0)
		for h := first; h != 0; h, last = x.store.At(h).left, h {
			c := x.store.At(h)
			n++
			switch {
			case x.class(c.Size) != uint32(k):
				return nil, fmt.Errorf("chunk %d of %d bytes is in class %d", h, c.Size, k)
			case last != 0 && c.right != last:
				return nil, fmt.Errorf("chunk %d follows %d and links back to %d", h, last, c.right)
			case last != 0 && x.store.At(last).Size > c.Size:
				return nil, fmt.Errorf("chunk %d follows %d, which is larger", h, last)
			}
			sizes = append(sizes, c.Size)
		}
		if n > 0 && x.store.At(first).right != last {
			return nil, fmt.Errorf("class %d ends with %d, its first chunk says %d", k, last, x.store.At(first).right)
		}
		w, bit := x.l0[k>>6], uint64(1)<<(k&63)
		if any := w.any&bit != 0; any != (n > 0) {
			return nil, fmt.Errorf("class %d has %d chunks; any %v", k, n, any)
		}
	}
	return sizes, nil
}

// TestListsFindsTheBestFit compares a Lists with a sorted slice of sizes, in which
// it must find the same size; which chunk of that size is left open.
func TestListsFindsTheBestFit(t *testing.T) {
	for _, tc := range []struct {
		name  string
		limit uint64
		size  func(r *rand.Rand) uint64 // in units
	}{
		{"few sizes", 1 << 20, func(r *rand.Rand) uint64 { return 1 + r.Uint64N(5) }},
		{"around the bound", 1 << 20, func(r *rand.Rand) uint64 { return 4090 + r.Uint64N(20) }},
		{"all magnitudes", 80 << 30, func(r *rand.Rand) uint64 { return 1 + r.Uint64()>>(9+r.UintN(54)) }},
		{"one class of many sizes", 0, func(r *rand.Rand) uint64 { return 1<<20 + r.Uint64N(1<<16) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			var st Store
			x := NewLists(&st, tc.limit, 2)
			in := map[H]bool{}
			var sizes []uint64
			out := func(h H) {
				i, _ := slices.BinarySearch(sizes, st.At(h).Size)
				sizes = slices.Delete(sizes, i, i+1)
				delete(in, h)
				st.Drop(h)
			}
			for i := range 3000 {
				size := tc.size(r) * unit
				at, _ := slices.BinarySearch(sizes, size)
				found := x.Find(size)
				if (found == 0) != (at == len(sizes)) || found != 0 && (!in[found] || st.At(found).Size != sizes[at]) {
					t.Fatalf("Find(%d) = %d of %d chunks", size, found, len(sizes))
				}
				x.SetLoose(i/100%3 == 2)
				switch op := r.IntN(8); {
				case op == 0 && found != 0:
					if h, c := x.Take(size); h != found || c != st.At(h) {
						t.Fatalf("Take(%d) = %d, and Find had %d", size, h, found)
					}
					out(found)
				case op < 4 && len(in) > 0:
					all := slices.Sorted(func(yield func(H) bool) {
						for h := range in {
							if !yield(h) {
								return
							}
						}
					})
					h := all[r.IntN(len(all))]
					x.Remove(h, st.At(h))
					out(h)
				default:
					h, c := st.New()
					c.Addr, c.Size, c.State = r.Uint64N(1<<40)*unit, size, Free
					x.Insert(h, c)
					in[h] = true
					sizes = slices.Insert(sizes, at, size)
				}
				if i%10 != 0 {
					continue
				}
				got, err := x.wellLinked()
				if err != nil || !slices.Equal(got, sizes) || len(slices.Collect(x.Ascend)) != len(sizes) {
					t.Fatalf("after %d operations %d chunks of %d, %v", i, len(got), len(sizes), err)
				}
				if h := x.Largest(); h != 0 && st.At(h).Size != sizes[len(sizes)-1] {
					t.Fatalf("Largest() has %d bytes of %d", st.At(h).Size, sizes[len(sizes)-1])
				}
			}
		})
	}
}

// TestListsKeepsOrder: equal chunks leave in the order of their addresses, if they came
// in that or the reverse, or if there are no more than are walked. The largest is the
// highest of them.
func TestListsKeepsOrder(t *testing.T) {
	for _, tc := range []struct {
		name    string
		at      func(i uint64) uint64
		walk    int
		ordered bool
	}{
		{"ascending", func(i uint64) uint64 { return i }, 0, true},
		{"descending", func(i uint64) uint64 { return 99 - i }, 0, true},
		{"mixed, few walked", func(i uint64) uint64 { return i * 37 % 100 }, 10, false},
		{"mixed, all walked", func(i uint64) uint64 { return i * 37 % 100 }, 100, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var st Store
			x := NewLists(&st, 1<<20, tc.walk)
			for i := range uint64(100) {
				h, c := st.New()
				c.Addr, c.Size = tc.at(i)<<20, 512
				x.Insert(h, c)
			}
			if c := st.At(x.Largest()); c.Addr != 99<<20 {
				t.Errorf("the largest lies at %#x", c.Addr)
			}
			ordered := true
			for i := range uint64(100) {
				_, c := x.Take(256)
				ordered = ordered && c.Addr == i<<20
			}
			if ordered != tc.ordered {
				t.Errorf("they leave in order: %v, want %v", ordered, tc.ordered)
			}
		})
	}
}

// TestListsLoose: while the order is off, the last that came in is the first to leave.
// What comes in later is before it or after by its address.
func TestListsLoose(t *testing.T) {
	var st Store
	x := NewLists(&st, 1<<20, 10)
	in := func(loose bool, addrs ...uint64) {
		x.SetLoose(loose)
		for _, addr := range addrs {
			h, c := st.New()
			c.Addr, c.Size = addr<<20, 512
			x.Insert(h, c)
		}
	}
	in(false, 5, 3)
	in(true, 4, 9)
	in(false, 10, 8)
	if _, err := x.wellLinked(); err != nil {
		t.Error(err)
	}
	var got []uint64
	for range 6 {
		_, c := x.Take(512)
		got = append(got, c.Addr>>20)
	}
	if want := []uint64{8, 9, 4, 3, 5, 10}; !slices.Equal(got, want) {
		t.Errorf("they leave as %v, want %v", got, want)
	}
}
