package chunks

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// benchCounts are how many chunks the structures hold: a pool in a quiet state,
// a busy one, and one that is badly broken up.
var benchCounts = []int{10, 1000, 100_000}

// benchSink keeps results alive.
var benchSink H

// logUniform draws a size from 256 B to 1 GiB, as many from each power of two:
// the spread of real tensors, on both sides of the exact classes' bound.
func logUniform(r *rand.Rand) uint64 {
	b := r.IntN(22)
	return (1<<b + r.Uint64N(1<<b)) * unit
}

// BenchmarkIndex times single operations on an index that holds a constant
// number of chunks. "equal" is the worst spread, since all chunks share one
// class and its treap.
func BenchmarkIndex(b *testing.B) {
	spreads := []struct {
		name string
		draw func(*rand.Rand) uint64
	}{
		{"loguniform", logUniform},
		{"equal", func(*rand.Rand) uint64 { return 1 << 20 }},
	}
	for _, spread := range spreads {
		for _, n := range benchCounts {
			r := rand.New(rand.NewPCG(1, 2))
			var st Store
			x := NewIndex(&st, 80<<30)
			for _, i := range r.Perm(n) { // handles of an old pool have no order
				h, c := st.New()
				c.Addr, c.Size = uint64(i)<<30, spread.draw(r)
				x.Insert(h, c)
			}
			// What is asked for, and which chunk moves, is drawn beforehand.
			const draws = 1 << 12
			sizes, who := make([]uint64, draws), make([]H, draws)
			for i := range draws {
				sizes[i], who[i] = spread.draw(r), H(1+r.IntN(n))
			}
			b.Run(fmt.Sprintf("find/%s/%d", spread.name, n), func(b *testing.B) {
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					benchSink = x.Find(sizes[i%draws])
					i++
				}
			})
			b.Run(fmt.Sprintf("remove+insert/%s/%d", spread.name, n), func(b *testing.B) {
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					h := who[i%draws]
					c := st.At(h)
					x.Remove(h, c)
					c.Size = sizes[i%draws]
					x.Insert(h, c)
					i++
				}
			})
		}
	}
}

// BenchmarkTable times single operations on a table that holds a constant
// number of chunks, of sizes as above.
func BenchmarkTable(b *testing.B) {
	for _, n := range benchCounts {
		r := rand.New(rand.NewPCG(1, 2))
		var st Store
		t := NewTable(&st, minOrder)
		addr := uint64(0x7f0000000000)
		for range n {
			h, c := st.New()
			c.Addr = addr
			t.Insert(h, addr)
			addr += logUniform(r)
		}
		const draws = 1 << 12
		who := make([]H, draws)
		addrs := make([]uint64, draws)
		for i := range draws {
			who[i] = H(1 + r.IntN(n))
			addrs[i] = st.At(who[i]).Addr
		}
		b.Run(fmt.Sprintf("find/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				benchSink = t.Find(addrs[i%draws])
				i++
			}
		})
		b.Run(fmt.Sprintf("miss/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				benchSink = t.Find(addrs[i%draws] + 1<<39) // a key of its own
				i++
			}
		})
		b.Run(fmt.Sprintf("remove+insert/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				h, addr := who[i%draws], addrs[i%draws]
				t.Remove(addr)
				t.Insert(h, addr)
				i++
			}
		})
	}
}
