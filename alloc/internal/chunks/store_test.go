// Tests of the store against the obvious model: a counter and a stack.
package chunks

import (
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

func TestChunkHas48Bytes(t *testing.T) {
	if got := unsafe.Sizeof(Chunk{}); got != chunkBytes {
		t.Errorf("a Chunk has %d bytes, want %d", got, chunkBytes)
	}
}

// TestStoreModel: handles are handed out 1, 2, 3, ..., dropped ones first, the
// last dropped one before the others. The owner's fields outlive a drop.
func TestStoreModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var st Store
		var used H
		var dropped, live []H // dropped is a stack
		peak := 0
		requested := map[H]uint64{}
		t.Repeat(map[string]func(*rapid.T){
			"new": func(t *rapid.T) {
				// Now and then so many that a page is full.
				for range rapid.SampledFrom([]int{1, 1, 1, 700}).Draw(t, "count") {
					var want H
					if n := len(dropped); n > 0 {
						want, dropped = dropped[n-1], dropped[:n-1]
					} else {
						used++
						want = used
					}
					h, c := st.New()
					if h != want {
						t.Fatalf("New() = %d, want %d", h, want)
					}
					if c != st.At(h) {
						t.Fatalf("New() = %d and another chunk", h)
					}
					if c.State != Unused || c.Prev|c.Next|c.left|c.right != 0 {
						t.Fatalf("chunk %d is new and not clean: %+v", h, *c)
					}
					if c.Requested != requested[h] {
						t.Fatalf("chunk %d: Requested is %d, and was %d", h, c.Requested, requested[h])
					}
					*c = Chunk{
						Requested: uint64(h) * 3, Prev: 1, Next: 2, left: 3, right: 4,
						State: Live,
					}
					requested[h] = c.Requested
					live = append(live, h)
				}
			},
			"drop": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip("nothing lives")
				}
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				h := live[i]
				live[i] = live[len(live)-1]
				live = live[:len(live)-1]
				st.Drop(h)
				dropped = append(dropped, h)
			},
			"": func(t *rapid.T) {
				peak = max(peak, len(live))
				if st.Peak() != peak {
					t.Fatalf("Peak() = %d, want %d", st.Peak(), peak)
				}
				if st.Len() != len(live) {
					t.Fatalf("Len() = %d, want %d", st.Len(), len(live))
				}
				// Handle 0 takes a place in the first page.
				pages := 0
				if used > 0 {
					pages = int(used)/pageSize + 1
				}
				if want := pages * pageSize * chunkBytes; st.Cap() != want {
					t.Fatalf("Cap() = %d with %d handles, want %d", st.Cap(), used, want)
				}
				for h, want := range map[H]bool{-1: false, 0: false, 1: used > 0, used + 1: false} {
					if st.Valid(h) != want {
						t.Fatalf("Valid(%d) = %v with %d handles", h, !want, used)
					}
				}
			},
		})
	})
}

// TestStorePages: chunks do not move as pages are added, and pages do not
// overlap.
func TestStorePages(t *testing.T) {
	var st Store
	_, first := st.New()
	first.Addr = 1
	for h := H(2); h <= 3*pageSize; h++ {
		if got, _ := st.New(); got != h {
			t.Fatalf("New() = %d, want %d", got, h)
		}
		st.At(h).Addr = uint64(h)
	}
	if st.At(1) != first {
		t.Error("chunk 1 moved")
	}
	for h := H(1); h <= 3*pageSize; h++ {
		if got := st.At(h).Addr; got != uint64(h) {
			t.Errorf("chunk %d has the address of %d", h, got)
		}
	}
}

func TestStoreAllocatesOnlyPages(t *testing.T) {
	var st Store
	st.New()
	if n := testing.AllocsPerRun(500, func() { h, _ := st.New(); st.Drop(h); st.New() }); n != 0 {
		t.Errorf("New and Drop made %v allocations each", n)
	}
}
