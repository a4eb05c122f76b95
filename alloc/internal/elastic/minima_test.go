package elastic_test

import (
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/internal/elastic"
	"gpumem/device/sim"
	"gpumem/internal/test/golden"
)

const page = 2 << 20

// trace is a recorded run, and the most bytes that are live in it.
type trace struct {
	ops    []golden.Op
	blocks int
	peak   uint64
}

func readTrace(t testing.TB, name string) trace {
	t.Helper()
	ops, err := golden.Trace(name)
	if err != nil {
		t.Fatal(err)
	}
	tr := trace{ops: ops}
	for i := range ops {
		tr.blocks = max(tr.blocks, int(ops[i].Block)+1)
	}
	size := make([]uint64, tr.blocks)
	live := uint64(0)
	for i := range ops {
		op := &ops[i]
		if op.Free {
			live -= size[op.Block]
			continue
		}
		size[op.Block] = op.Bytes
		live += op.Bytes
		tr.peak = max(tr.peak, live)
	}
	return tr
}

func newSim(t testing.TB, pages uint64) *sim.Device {
	t.Helper()
	dev, err := sim.New(sim.Config{Total: pages * page})
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

func newPool(t testing.TB, dev elastic.Device, cfg elastic.Config) *elastic.Allocator {
	t.Helper()
	a, err := elastic.New(dev, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// replay runs a trace until a request is refused: false then. each is told of
// every operation that was done.
func (tr *trace) replay(t testing.TB, a *elastic.Allocator, each func(i int)) bool {
	t.Helper()
	blocks := make([]alloc.Block, tr.blocks)
	for i := range tr.ops {
		op := &tr.ops[i]
		if op.Free {
			if err := a.Free(blocks[op.Block]); err != nil {
				t.Fatal(err)
			}
		} else {
			b, err := a.Alloc(alloc.Request{Bytes: op.Bytes})
			if err == alloc.ErrNoMemory || err == alloc.ErrNever {
				return false
			}
			if err != nil {
				t.Fatal(err)
			}
			blocks[op.Block] = b
		}
		if each != nil {
			each(i)
		}
	}
	return true
}

// fits says whether a device of that many pages serves the whole trace.
func (tr *trace) fits(t testing.TB, pages uint64) bool {
	t.Helper()
	return tr.replay(t, newPool(t, newSim(t, pages), elastic.Config{}), nil)
}

// smallest is the smallest device that bisection finds, in pages.
func (tr *trace) smallest(fits func(pages uint64) bool) uint64 {
	lo := tr.peak/page - 1
	hi := tr.peak/page + tr.peak/page/20 + 2
	for !fits(hi) {
		lo, hi = hi, hi+hi/20
	}
	for lo+1 < hi {
		if mid := (lo + hi) / 2; fits(mid) {
			hi = mid
		} else {
			lo = mid
		}
	}
	return hi
}
