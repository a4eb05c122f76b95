package elastic

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
)

// TestRestKeepsItsAge: what is left of a chunk is as old as it was. Pages of a chunk that was
// freed first go first, though another one was cut since.
func TestRestKeepsItsAge(t *testing.T) {
	const page = 2 << 20
	a := newInside(t, 64)
	take := func(pages uint64) alloc.Block {
		t.Helper()
		b, err := a.Alloc(alloc.Request{Bytes: pages * page})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	old, _, young, _ := take(8), take(1), take(4), take(1)
	for _, b := range []alloc.Block{old, young} {
		if err := a.Free(b); err != nil {
			t.Fatal(err)
		}
	}
	if b := take(1); b.Addr < young.Addr || b.Addr >= young.Addr+young.Size {
		t.Fatalf("a page of the young chunk at %#x is the best fit, not %#x", young.Addr, b.Addr)
	}
	for h := range a.byAge {
		if c := a.store.At(h); c.Addr != old.Addr {
			t.Errorf("the oldest is at %#x, want %#x", c.Addr, old.Addr)
		}
		break
	}
}

// TestByAge compares the order of idle chunks with that of a list which is sorted: all of
// it, and its beginning.
func TestByAge(t *testing.T) {
	const page = 2 << 20
	r := rand.New(rand.NewPCG(3, 4))
	a := newInside(t, 4096)
	var live []alloc.Block
	most := 0
	for i := range 40 {
		for len(live) < 600 {
			b, err := a.Alloc(alloc.Request{Bytes: 1 + r.Uint64N(3*page)})
			if err != nil {
				t.Fatal(err)
			}
			live = append(live, b)
		}
		for len(live) > 300 {
			k := r.IntN(len(live))
			if err := a.Free(live[k]); err != nil {
				t.Fatal(err)
			}
			live = slices.Delete(live, k, k+1)
		}
		var want []chunks.H
		for h, c := range a.chunks() {
			if c.State == chunks.Free && c.Tag == tagMapped && a.wholes(c.Addr, end(c)) > 0 {
				want = append(want, h)
			}
		}
		slices.SortFunc(want, func(h, k chunks.H) int {
			c, d := a.store.At(h), a.store.At(k)
			return cmp.Or(cmp.Compare(c.Requested, d.Requested), cmp.Compare(c.Addr, d.Addr))
		})
		most = max(most, len(want))
		for _, n := range []int{len(want), min(3, len(want))} {
			var got []chunks.H
			for h := range a.byAge {
				if len(got) == n {
					break
				}
				got = append(got, h)
			}
			if !slices.Equal(got, want[:n]) {
				t.Fatalf("in round %d the %d oldest are %v, want %v", i, n, got, want[:n])
			}
		}
	}
	if most < 50 {
		t.Errorf("at most %d chunks had idle pages", most)
	}
}
