package gpumem_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"gpumem"
	"gpumem/device/sim"
	"gpumem/internal/report"
)

// contend has goroutines take and free blocks of 4 to 256 KiB of one pool, count pairs
// together, and do nothing else: what the pool's lock costs when all want it.
func contend(t testing.TB, pool *gpumem.Pool, goroutines, count int) {
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := g; i < count; i += goroutines {
				if err := pair(pool, i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// pair takes and frees the block of pair i.
func pair(pool *gpumem.Pool, i int) error {
	x, err := pool.Alloc(context.Background(), uint64(i%64+1)<<12)
	if err != nil {
		return err
	}
	return pool.Free(x)
}

func contendedPool(t testing.TB, spec string) *gpumem.Pool {
	dev, err := sim.New(sim.Config{Total: 80 << 30})
	if err != nil {
		t.Fatal(err)
	}
	pool := newPool(t, dev, spec)
	contend(t, pool, 1, 64) // its region, and a page under each size
	return pool
}

// threads is the table of what a pair costs when goroutines contend for one pool: the
// median of 25 runs each, taking turns.
func threads(t testing.TB) string {
	const pairs, runs = 1_000_000, 25
	numbers := []int{1, 2, 8, 64}
	tab := report.NewTable("policy", ">goroutines: 1", ">2", ">8", ">64", ">64 / 1")
	for _, spec := range []string{"jax", "elastic"} {
		took := map[int][]time.Duration{}
		pool := contendedPool(t, spec)
		for range runs {
			for _, n := range numbers {
				start := time.Now()
				contend(t, pool, n, pairs)
				took[n] = append(took[n], time.Since(start))
			}
		}
		row := []string{spec}
		ns := map[int]float64{}
		for _, n := range numbers {
			slices.Sort(took[n])
			ns[n] = float64(took[n][runs/2].Nanoseconds()) / pairs
			row = append(row, fmt.Sprintf("%.0f", ns[n]))
		}
		tab.Row(append(row, fmt.Sprintf("%.2f", ns[64]/ns[1]))...)
	}
	var b bytes.Buffer
	tab.WriteTo(&b)
	return b.String()
}

// waits is the table of how long single pairs take when 64 goroutines contend, and with a
// sync.Mutex around each pair, so that the pool's lock is always free. The clock is read
// twice in each.
func waits(t testing.TB) string {
	const goroutines, each = 64, 31_250
	tab := report.NewTable("lock", ">half", ">99 %", ">99.9 %", ">longest")
	var mu sync.Mutex
	for _, way := range []struct {
		name string
		pair func(*gpumem.Pool, int) error
	}{
		{"the pool's", pair},
		{"sync.Mutex", func(pool *gpumem.Pool, i int) error {
			mu.Lock()
			defer mu.Unlock()
			return pair(pool, i)
		}},
	} {
		pool := contendedPool(t, "jax")
		took := make([]time.Duration, goroutines*each)
		clear(took) // so that the operating system provides its memory now
		var wg sync.WaitGroup
		for g := range goroutines {
			wg.Go(func() {
				for i := range each {
					start := time.Now()
					if err := way.pair(pool, i); err != nil {
						t.Error(err)
						return
					}
					took[g*each+i] = time.Since(start)
				}
			})
		}
		wg.Wait()
		slices.Sort(took)
		row := []string{way.name}
		for _, i := range []int{len(took) / 2, len(took) * 99 / 100, len(took) * 999 / 1000, len(took) - 1} {
			row = append(row, report.Seconds(took[i].Seconds()))
		}
		tab.Row(row...)
	}
	var b bytes.Buffer
	tab.WriteTo(&b)
	return b.String()
}

// BenchmarkThreads is a pair, an allocation and its free, over all goroutines that
// contend: the same for any number of them if waiting cost nothing.
func BenchmarkThreads(b *testing.B) {
	for _, spec := range []string{"jax", "elastic"} {
		for _, n := range []int{1, 2, 8, 64} {
			b.Run(fmt.Sprintf("%s/%d", spec, n), func(b *testing.B) {
				pool := contendedPool(b, spec)
				b.ReportAllocs()
				b.ResetTimer()
				contend(b, pool, n, b.N)
			})
		}
	}
}
