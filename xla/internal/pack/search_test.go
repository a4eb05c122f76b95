package pack

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// mostAtOnce is what lives at once, at the worst time.
func mostAtOnce(p *packer) (most uint64) {
	for t := range p.times {
		var live uint64
		for _, g := range p.groups {
			if slices.ContainsFunc(g, func(b int32) bool { return int(p.start[b]) <= t && t <= int(p.end[b]) }) {
				live += p.bytes(g)
			}
		}
		most = max(most, live)
	}
	return most
}

// checkPacking finds blocks that overlap, or lie elsewhere than with those that they
// have to lie with, or outside the heap.
func checkPacking(t interface{ Fatalf(string, ...any) }, blocks []Block, alignment, heap uint64, offsets []uint64) {
	p, err := newPacker(blocks, alignment)
	if err != nil || len(offsets) != len(blocks) {
		t.Fatalf("%d offsets of %d blocks, %v", len(offsets), len(blocks), err)
	}
	in := make([]int, len(blocks))
	for k, g := range p.groups {
		for _, b := range g {
			in[b] = k
		}
	}
	for k, b := range blocks {
		if offsets[k]%alignment != 0 || offsets[k]+b.Bytes > heap || offsets[k] != offsets[b.With] {
			t.Fatalf("block %d of %d bytes at %d, that of %d at %d, in a heap of %d", k, b.Bytes, offsets[k], b.With, offsets[b.With], heap)
		}
		for q, c := range blocks[:k] {
			if in[k] != in[q] && b.Start <= c.End && c.Start <= b.End && offsets[k] < offsets[q]+c.Bytes && offsets[q] < offsets[k]+b.Bytes {
				t.Fatalf("blocks %d and %d overlap", q, k)
			}
		}
	}
	if most := mostAtOnce(p); heap < most {
		t.Fatalf("a heap of %d, but %d live at once", heap, most)
	}
}

func TestSearchIsValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		blocks := drawBlocks(t)
		alignment := rapid.SampledFrom([]uint64{1, 2, 7, 256}).Draw(t, "alignment")
		work := rapid.SampledFrom([]int{-1, 0, 1, 1000, 100000}).Draw(t, "work")
		heap, offsets, err := Search(blocks, alignment, work)
		if err != nil {
			t.Fatal(err)
		}
		checkPacking(t, blocks, alignment, heap, offsets)
		simple, where, err := BestFit(blocks, alignment)
		if err != nil || heap > simple || work <= 0 && !slices.Equal(offsets, where) {
			t.Fatalf("a heap of %d at %v, but BestFit's is %d at %v, %v", heap, offsets, simple, where, err)
		}
		if again, same, err := Search(blocks, alignment, work); err != nil || again != heap || !slices.Equal(same, offsets) {
			t.Fatalf("a heap of %d at %v, then of %d at %v, %v", heap, offsets, again, same, err)
		}
	})
}

// However a try ends, what the search knows is what is so: the floors and what is
// left of each section, the conflicts, and nothing where it found no place.
func TestSearchKeepsBooks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		blocks := drawBlocks(t)
		p, err := newPacker(blocks, 1)
		if err != nil {
			t.Fatal(err)
		}
		s := newSearch(p, 1<<20)
		if s == nil {
			return
		}
		most := int64(mostAtOnce(p))
		if m := slices.Max(s.left); m != most {
			t.Fatalf("the fullest section has %d, but %d live at once", m, most)
		}
		for u := range s.first {
			for v := range s.first {
				want := false
				for _, x := range p.groups[s.first[u]] {
					for _, y := range p.groups[s.first[v]] {
						want = want || u != v && blocks[x].Start <= blocks[y].End && blocks[y].Start <= blocks[x].End
					}
				}
				if got := slices.Contains(s.conflicts[u], int32(v)); got != want {
					t.Fatalf("groups %d and %d in conflict: %v, want %v", u, v, got, want)
				}
			}
		}
		// Put some down, and take some of them back.
		var done [][3]int
		for _, down := range rapid.SliceOfN(rapid.Bool(), 0, 30).Draw(t, "down") {
			if n := len(done); !down && n > 0 {
				s.takeBack(int32(done[n-1][0]), done[n-1][1], done[n-1][2])
				done = done[:n-1]
			} else if u := s.candidate(0, 0, -1, nil); u >= 0 {
				done = append(done, [3]int{int(u), len(s.raised), len(s.floors)})
				s.put(u)
			}
			for k, m := range s.members {
				var left int64
				var at []int64
				for _, u := range m {
					if !s.placed[u] {
						left += s.size[u]
						at = append(at, s.at[u])
					}
				}
				if s.left[k] != left || left > 0 && s.floor[k] != slices.Min(at) {
					t.Fatalf("section %d: %d left from %d, want %d of %v", k, s.left[k], s.floor[k], left, at)
				}
			}
		}
		goal := most + int64(rapid.IntRange(-3, 10).Draw(t, "more"))
		s.order()
		if !s.place(goal, 1<<20) {
			if slices.Contains(s.placed, true) || slices.ContainsFunc(s.at, func(at int64) bool { return at != 0 }) || len(s.raised)+len(s.floors) > 0 {
				t.Fatalf("something lies in a heap in which nothing fits: %v", s.at)
			}
			return
		}
		heap, offsets := s.result()
		checkPacking(t, blocks, 1, heap, offsets)
		if int64(heap) > goal {
			t.Fatalf("a heap of %d, wanted %d", heap, goal)
		}
	})
}

func TestSearchErrors(t *testing.T) {
	if _, _, err := Search([]Block{{Bytes: 1, With: 1}}, 1, 100); err == nil {
		t.Error("a block that lies with none")
	}
	// Too many groups for the search, and a heap too large to reckon with.
	many := make([]Block, maxGroups+1)
	for k := range many {
		many[k] = Block{Bytes: uint64(1 + k%7), Start: k, End: k + k%3, With: k}
	}
	for _, blocks := range [][]Block{many, {{Bytes: 1 << 62, With: 0}, {Bytes: 1, With: 1}}} {
		want, where, err := BestFit(blocks, Alignment)
		if err != nil {
			t.Fatal(err)
		}
		if heap, offsets, err := Search(blocks, Alignment, 1000); err != nil || heap != want || !slices.Equal(offsets, where) {
			t.Errorf("%d blocks: a heap of %d, %v; want BestFit's, %d", len(blocks), heap, err, want)
		}
	}
}

// miniMalloc is a benchmark of MiniMalloc (google/minimalloc, Apache-2.0), in its
// own unit of KiB. All fit into 1048576.
func miniMalloc(t testing.TB, name string) []Block {
	t.Helper()
	f, err := os.Open("../../../testdata/peers/minimalloc_" + name + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var blocks []Block
	place := map[int]int{}
	lines := bufio.NewScanner(f)
	for step := 0; lines.Scan(); step++ {
		var what string
		var id, bytes int
		if n, _ := fmt.Sscan(lines.Text(), &what, &id, &bytes); n == 3 && what == "a" {
			place[id] = len(blocks)
			blocks = append(blocks, Block{Bytes: uint64(bytes / 1024), Start: step, With: len(blocks)})
		} else if n == 2 && what == "f" {
			blocks[place[id]].End = step
		} else {
			t.Fatalf("%s: %q", name, lines.Text())
		}
	}
	return blocks
}

// What 100 million steps find, with the luck of this draw: other first draws leave E
// at 1.06 to 1.08 with three times the steps. BestFit needs 1.26 to 1.40 times the
// capacity.
func TestSearchOfMiniMalloc(t *testing.T) {
	for _, c := range []struct {
		name string
		heap uint64
	}{{"A", 1048576}, {"B", 1130000}, {"C", 1039360}, {"D", 1090000}, {"E", 1048576}} {
		t.Run(c.name, func(t *testing.T) {
			blocks := miniMalloc(t, c.name)
			heap, offsets, err := Search(blocks, 1, 1e8)
			if err != nil || heap > c.heap {
				t.Errorf("a heap of %d, %v; want at most %d", heap, err, c.heap)
			}
			checkPacking(t, blocks, 1, heap, offsets)
		})
	}
}

func BenchmarkSearch(b *testing.B) {
	for _, name := range []string{"A", "B", "C", "D", "E"} {
		b.Run(name, func(b *testing.B) {
			blocks := miniMalloc(b, name)
			for b.Loop() {
				heap, _, err := Search(blocks, 1, 3e8)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(heap)/1048576, "heap/capacity")
			}
		})
	}
}
