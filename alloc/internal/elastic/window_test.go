package elastic

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"testing"

	"gpumem/alloc"
	"gpumem/device/sim"
)

func newInside(t *testing.T, pages uint64) *Allocator {
	t.Helper()
	dev, err := sim.New(sim.Config{Total: pages * 2 << 20})
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(dev, Config{Deterministic: true})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestTightFromNinetyEightPercentOn: the bound is the first whole page at or above 98 %
// of the pages, in exact arithmetic.
func TestTightFromNinetyEightPercentOn(t *testing.T) {
	a := newInside(t, 64)
	for _, pages := range []uint64{0, 1, 2, 49, 50, 51, 99, 100, 101, 4096, 40960, 1<<43 + 7} {
		a.setCap(pages)
		n := new(big.Int).Mul(new(big.Int).SetUint64(pages), big.NewInt(98))
		n.Add(n, big.NewInt(99)).Div(n, big.NewInt(100))
		if want := n.Uint64(); a.tightAt != want || a.cap != pages {
			t.Errorf("of %d pages: tight at %d, want %d", pages, a.tightAt, want)
		}
	}
}

// TestPeakIsRememberedForOneMoreWindow: what was held in the last window still counts as
// needed in this one, and a device that had refused is asked again.
func TestPeakIsRememberedForOneMoreWindow(t *testing.T) {
	a := newInside(t, 64)
	a.peak, a.held = 63, 3
	a.setCap(40)
	a.turn()
	if a.before != 63 || a.peak != 3 || a.cap != a.limit {
		t.Errorf("after one window: peaks %d and %d, %d pages of %d may be owned", a.before, a.peak, a.cap, a.limit)
	}
	if !a.tight(1) {
		t.Error("the peak of the window before does not count")
	}
	a.turn()
	if a.before != 3 || a.tight(1) {
		t.Errorf("after two windows: the peak before is %d", a.before)
	}
}

// TestOrderOfEqualBlocks: of free blocks of one size the lowest is used first, or the last
// freed, once nothing was mapped in a window and until something is.
func TestOrderOfEqualBlocks(t *testing.T) {
	const size = 4 << 20
	a := newInside(t, 64)
	request := func(bytes uint64) alloc.Block {
		b, err := a.Alloc(alloc.Request{Bytes: bytes})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	free := func(b alloc.Block) {
		if err := a.Free(b); err != nil {
			t.Fatal(err)
		}
	}
	lowest := func(when string, want bool) {
		t.Helper()
		var all [6]alloc.Block
		for i := range all {
			all[i] = request(size)
		}
		slices.SortFunc(all[:], func(x, y alloc.Block) int { return cmp.Compare(x.Addr, y.Addr) })
		for _, i := range []int{0, 4, 2} { // with a block between each two
			free(all[i])
		}
		b := request(size)
		if got := b.Addr == all[0].Addr; got != want || !got && b.Addr != all[2].Addr {
			t.Errorf("%s: the lowest is used first: %v, want %v", when, got, want)
		}
		free(b)
		for _, i := range []int{1, 3, 5} {
			free(all[i])
		}
	}
	lowest("at first", true)
	a.turn()
	lowest("after a window with pages mapped", true)
	a.turn()
	lowest("after one without", false)
	request(100 << 20)
	lowest("after more was mapped", true)
	a.turn()
	a.turn()
	lowest("after another window without", false)
}

// TestNewPagesBeforeRemapping: a pool whose holes are too small takes new pages up to an
// eighth above its peak, and moves idle ones only then.
func TestNewPagesBeforeRemapping(t *testing.T) {
	const page = 2 << 20
	for _, more := range []uint64{24, 32, 40, 100} {
		t.Run(fmt.Sprintf("%d pages", more), func(t *testing.T) {
			a := newInside(t, 1024)
			var blocks []alloc.Block
			for range 256 {
				b, err := a.Alloc(alloc.Request{Bytes: page})
				if err != nil {
					t.Fatal(err)
				}
				blocks = append(blocks, b)
			}
			for i := 0; i < len(blocks); i += 2 {
				if err := a.Free(blocks[i]); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := a.Alloc(alloc.Request{Bytes: more * page}); err != nil {
				t.Fatal(err)
			}
			m := a.Moves()
			if want := max(m.Mapped-256, 32) - 32; m.Remapped != want {
				t.Errorf("%d pages were mapped and %d of them taken from elsewhere, want %d", m.Mapped, m.Remapped, want)
			}
			if err := a.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}
