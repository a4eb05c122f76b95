package pack

import (
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// A packing is given as XLA's tests give theirs: blocks that are made, freed and
// share memory, one after the other.
type packing struct {
	blocks []Block
	names  map[string]int
	clock  int
}

func (p *packing) make(name string, bytes uint64, with ...string) {
	k := len(p.blocks)
	b := Block{Bytes: bytes, Start: p.clock, With: k}
	if len(with) > 0 {
		b.With = p.names[with[0]]
	}
	p.names[name] = k
	p.blocks = append(p.blocks, b)
	p.clock++
}

func (p *packing) free(names ...string) {
	for _, n := range names {
		p.blocks[p.names[n]].End = p.clock
		p.clock++
	}
}

// What XLA's tests of GlobalDecreasingSizeBestFitHeap expect of its spatial order
// (xla/service/heap_simulator/heap_simulator_test.cc, 2026).
func TestPackOfXLA(t *testing.T) {
	for _, c := range []struct {
		name      string
		alignment uint64
		do        func(p *packing)
		heap      uint64
		offsets   []uint64
	}{
		{"Empty", 1, func(p *packing) {}, 0, nil},
		{"DecreasingSize", 1, func(p *packing) {
			p.make("a", 10)
			p.make("b", 30)
			p.make("c", 20)
			p.make("d", 40)
			p.free("a", "b", "c", "d")
		}, 100, []uint64{90, 40, 70, 0}},
		{"DecreasingSizeWithAlignment", 20, func(p *packing) {
			p.make("a", 10)
			p.make("b", 20)
			p.make("c", 50)
			p.free("a")
			p.make("d", 40)
			p.free("b", "c", "d")
		}, 120, []uint64{60, 100, 0, 60}},
		{"BestFit", 1, func(p *packing) {
			p.make("a", 10)
			p.make("b", 20)
			p.make("c", 40)
			p.free("a")
			p.make("d", 30)
			p.make("e", 50)
			p.free("b", "c", "d", "e")
		}, 140, []uint64{90, 120, 50, 90, 0}},
		{"Colocated", 1, func(p *packing) {
			p.make("a", 40)
			p.free("a")
			p.make("b", 20)
			p.free("b")
			p.make("c", 40, "a")
			p.free("c")
		}, 40, []uint64{0, 0, 0}},
		{"ColocatedII", 1, func(p *packing) {
			p.make("a", 40)
			p.free("a")
			p.make("b", 20)
			p.make("c", 40, "a")
			p.free("c", "b")
		}, 60, []uint64{0, 40, 0}},
		{"ColocatedIII", 1, func(p *packing) {
			p.make("a", 10)
			p.free("a")
			p.make("b", 30)
			p.make("c", 10, "a")
			p.free("c", "b")
		}, 40, []uint64{30, 0, 30}},
		{"ColocatedDifferentSize1", 1, func(p *packing) {
			p.make("a", 40)
			p.free("a")
			p.make("b", 20)
			p.make("c", 30, "a")
			p.free("c", "b")
		}, 60, []uint64{0, 40, 0}},
		{"ColocatedDifferentSize2", 1, func(p *packing) {
			p.make("a", 40)
			p.free("a")
			p.make("b", 20)
			p.make("c", 50, "a")
			p.free("c", "b")
		}, 70, []uint64{0, 50, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &packing{names: map[string]int{}}
			c.do(p)
			k, err := newPacker(p.blocks, c.alignment)
			if err != nil {
				t.Fatal(err)
			}
			heap, offsets, err := k.place(k.bySize())
			if err != nil || heap != c.heap || !slices.Equal(offsets, c.offsets) {
				t.Errorf("heap %d, offsets %v, %v; want %d, %v", heap, offsets, err, c.heap, c.offsets)
			}
			if best, _, err := BestFit(p.blocks, c.alignment); err != nil || best > heap {
				t.Errorf("the better of both orders: %d, %v", best, err)
			}
		})
	}
}

func TestPackErrors(t *testing.T) {
	for _, c := range []struct {
		name, want string
		blocks     []Block
		alignment  uint64
	}{
		{"alignment", "alignment 0", nil, 0},
		{"backwards", "ends at 1, before it starts at 2", []Block{{Bytes: 1, Start: 2, End: 1}}, 1},
		{"with none", "there is none", []Block{{Bytes: 1, With: 1}}, 1},
		{"circle", "by way of others", []Block{{Bytes: 1, With: 1}, {Bytes: 1, With: 0}}, 1},
		{"block", "a heap ends at", []Block{{Bytes: math.MaxUint64}}, 1},
		{"heap", "more than 2^63-1", []Block{{Bytes: 1 << 62, With: 0}, {Bytes: 1 << 62, With: 1}}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, _, err := BestFit(c.blocks, c.alignment); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func drawBlocks(t *rapid.T) []Block {
	n := rapid.IntRange(0, 40).Draw(t, "blocks")
	blocks := make([]Block, n)
	for k := range blocks {
		start := rapid.IntRange(0, 30).Draw(t, "start")
		blocks[k] = Block{
			Bytes: rapid.Uint64Range(0, 20).Draw(t, "bytes"),
			Start: start,
			End:   start + rapid.IntRange(0, 10).Draw(t, "life"),
			With:  k,
		}
		if k > 0 && rapid.IntRange(0, 3).Draw(t, "shares") == 0 {
			blocks[k].With = rapid.IntRange(0, k-1).Draw(t, "with")
		}
	}
	return blocks
}

// Blocks that live at the same time lie apart unless they share; nothing is
// lost, and nothing better than what lives at once is possible.
func TestPackIsValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		blocks := drawBlocks(t)
		alignment := rapid.SampledFrom([]uint64{1, 2, 7, 256}).Draw(t, "alignment")
		heap, offsets, err := BestFit(blocks, alignment)
		if err != nil {
			t.Fatal(err)
		}
		top := make([]int, len(blocks))
		for k := range blocks {
			for top[k] = k; blocks[top[k]].With != top[k]; {
				top[k] = blocks[top[k]].With
			}
		}
		size := map[int]uint64{}
		for k, b := range blocks {
			size[top[k]] = max(size[top[k]], b.Bytes)
		}
		for k, b := range blocks {
			if offsets[k]%alignment != 0 || offsets[k]+b.Bytes > heap {
				t.Fatalf("block %d of %d bytes at %d in a heap of %d", k, b.Bytes, offsets[k], heap)
			}
			if offsets[k] != offsets[top[k]] {
				t.Fatalf("block %d at %d, but it lies with %d at %d", k, offsets[k], top[k], offsets[top[k]])
			}
			for q := range k {
				c := blocks[q]
				if top[k] != top[q] && b.Start <= c.End && c.Start <= b.End && offsets[k] < offsets[q]+c.Bytes && offsets[q] < offsets[k]+b.Bytes {
					t.Fatalf("blocks %d and %d overlap", q, k)
				}
			}
		}
		var most uint64
		for step := 0; step <= 40; step++ {
			groups := map[int]bool{}
			var live uint64
			for k, b := range blocks {
				if b.Start <= step && step <= b.End && !groups[top[k]] {
					groups[top[k]] = true
					live += size[top[k]]
				}
			}
			most = max(most, live)
		}
		if heap < most {
			t.Fatalf("a heap of %d, but %d live at once", heap, most)
		}
	})
}

// The holes are those that looking at every byte finds.
func TestPackAgainstBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		blocks := drawBlocks(t)
		alignment := rapid.SampledFrom([]uint64{1, 3, 8}).Draw(t, "alignment")
		p, err := newPacker(blocks, alignment)
		if err != nil {
			t.Fatal(err)
		}
		var heaps []uint64
		for _, order := range [][]int32{p.bySize(), p.byDuration()} {
			heap, offsets, err := p.place(order)
			if err != nil {
				t.Fatal(err)
			}
			wantHeap, want := packBytes(blocks, p.groups, order, alignment)
			if heap != wantHeap || !slices.Equal(offsets, want) {
				t.Fatalf("heap %d %v, want %d %v", heap, offsets, wantHeap, want)
			}
			heaps = append(heaps, heap)
		}
		if heap, _, err := BestFit(blocks, alignment); err != nil || heap != slices.Min(heaps) {
			t.Fatalf("heap %d, %v; want the better of %v", heap, err, heaps)
		}
	})
}

// packBytes is place with a picture of which byte is taken when.
func packBytes(blocks []Block, groups [][]int32, order []int32, alignment uint64) (heap uint64, offsets []uint64) {
	const end, steps = 1200, 41
	offsets = make([]uint64, len(blocks))
	var taken [steps][end]bool
	for _, k := range order {
		var size uint64
		free := make([]bool, end)
		for x := range free {
			free[x] = true
		}
		for _, b := range groups[k] {
			size = max(size, blocks[b].Bytes)
			for step := blocks[b].Start; step <= blocks[b].End; step++ {
				for x := range free {
					free[x] = free[x] && !taken[step][x]
				}
			}
		}
		// A hole begins at a multiple of the alignment. The last has no end.
		best, at := uint64(math.MaxUint64), uint64(0)
		for x := 0; x < end; x++ {
			if !free[x] {
				continue
			}
			from := x
			for x < end && free[x] {
				x++
			}
			start := (uint64(from) + alignment - 1) / alignment * alignment
			if x == end && best == math.MaxUint64 {
				at = start
			} else if x < end && start+size <= uint64(x) && uint64(x)-start < best {
				best, at = uint64(x)-start, start
			}
		}
		heap = max(heap, at+size)
		for _, b := range groups[k] {
			offsets[b] = at
			for step := blocks[b].Start; step <= blocks[b].End; step++ {
				for x := at; x < at+size; x++ {
					taken[step][x] = true
				}
			}
		}
	}
	return heap, offsets
}

// Packing looks at a number of spans in proportion to the blocks, and logarithms.
func TestBestFitTakesTimeInProportion(t *testing.T) {
	shapes := map[string]func(k, n int) (start, end int){
		"a chain":                       func(k, n int) (int, int) { return k, k + 1 },
		"all at once":                   func(k, n int) (int, int) { return k, n + k },
		"a forward and a backward pass": func(k, n int) (int, int) { return k, 2*n - k },
	}
	for name, life := range shapes {
		t.Run(name, func(t *testing.T) {
			looked := func(n int) int {
				blocks := make([]Block, n)
				for k := range blocks {
					start, end := life(k, n)
					blocks[k] = Block{Bytes: 256, Start: start, End: end, With: k}
				}
				p, err := newPacker(blocks, Alignment)
				if err != nil {
					t.Fatal(err)
				}
				for _, order := range [][]int32{p.bySize(), p.byDuration()} {
					if _, _, err := p.place(order); err != nil {
						t.Fatal(err)
					}
				}
				return int(p.looked.Load())
			}
			const n = 400
			if small, large := looked(n), looked(4*n); large > 8*small+1000 {
				t.Errorf("looks at %d for %d, and at %d for %d", small, n, large, 4*n)
			}
		})
	}
}
