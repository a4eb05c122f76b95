package gpumem_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"gpumem/device/sim"
)

// BenchmarkThreads is an allocation of 4 to 256 KiB and its free, by goroutines that do
// nothing else: what one pool's lock costs when all want it. ns/op is the time of a pair
// over all of them, so it would be the same for any number if waiting cost nothing.
func BenchmarkThreads(b *testing.B) {
	for _, spec := range []string{"jax", "elastic"} {
		for _, n := range []int{1, 2, 8, 64} {
			b.Run(fmt.Sprintf("%s/%d", spec, n), func(b *testing.B) {
				dev, err := sim.New(sim.Config{Total: 80 << 30})
				if err != nil {
					b.Fatal(err)
				}
				pool := newPool(b, dev, spec)
				b.ReportAllocs()
				var wg sync.WaitGroup
				for range n {
					wg.Go(func() {
						for i := range b.N / n {
							x, err := pool.Alloc(context.Background(), uint64(i%64+1)<<12)
							if err == nil {
								err = pool.Free(x)
							}
							if err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
			})
		}
	}
}
