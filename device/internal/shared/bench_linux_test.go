package shared

import (
	"fmt"
	"testing"
	"time"

	"gpumem/internal/ofd"
)

// big is a device that no benchmark fills.
func big() Descriptor {
	d := plain()
	d.Total = 80 << 30
	return d
}

// BenchmarkTakeGive is a pair of calls, nobody else about. Four calls of the
// kernel (lock and unlock, twice) are nearly all of it.
func BenchmarkTakeGive(b *testing.B) {
	f := openFile(b, makeFile(b, big()))
	b.ReportAllocs()
	for b.Loop() {
		must(b, f.Take(0, 2<<20))
		must(b, f.Give(0, 2<<20))
	}
}

// BenchmarkLock is the lock alone, for comparison.
func BenchmarkLock(b *testing.B) {
	f := openFile(b, makeFile(b, big()))
	for b.Loop() {
		must(b, f.h.lock(ofd.Write, time.Time{}))
		must(b, f.h.FileLock().Unlock())
	}
}

// BenchmarkFree asks for what is free with so many slots in use. It asks the
// kernel about each. They are of one process, which the kernel does not see.
func BenchmarkFree(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			path := makeFile(b, big())
			f := openFile(b, path)
			for range n - 1 {
				must(b, openFile(b, path).Take(0, 2<<20))
			}
			b.ReportAllocs()
			for b.Loop() {
				_, err := f.Free(0)
				must(b, err)
			}
		})
	}
}

// BenchmarkLook is a look of somebody who has no slot.
func BenchmarkLook(b *testing.B) {
	path := makeFile(b, big())
	must(b, openFile(b, path).Take(0, 2<<20))
	b.ReportAllocs()
	for b.Loop() {
		_, err := Look(path)
		must(b, err)
	}
}

// BenchmarkProcesses is 64 goroutines of 8 processes; an operation is a pair.
func BenchmarkProcesses(b *testing.B) {
	path := makeFile(b, big())
	counters, boardPath := newBoard(b)
	each := b.N/64 + 1
	crowd := startPairs(b, path, boardPath, each, 0)
	b.ResetTimer()
	for _, c := range crowd {
		c.in.Close()
	}
	for _, c := range crowd {
		c.line()
	}
	b.StopTimer()
	for _, c := range crowd {
		c.reap(b, false)
	}
	b.ReportMetric(float64(64*each)/b.Elapsed().Seconds(), "takes/s")
	b.ReportMetric(float64(counters[1].n.Load())/1e6, "longest-ms")
}
