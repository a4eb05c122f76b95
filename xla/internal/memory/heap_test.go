package memory_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"gpumem/xla/internal/gap"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/host"
	"gpumem/xla/internal/memory"
	"gpumem/xla/internal/test/remattest"
)

// A painted is a stretch of the heap and the buffer that was written there last.
type painted struct {
	from, to int64
	buffer   int
}

// heapHolds runs a module on its packed heap: each instruction writes what it makes to
// its place, and must find in the places of what it reads what was made for it. It
// goes by when values are made and by who reads them, not by how long they live: that is
// what the packing went by. What lies elsewhere (results, constants) is not looked at.
func heapHolds(m *hlo.Module, work int) error {
	a, err := memory.AnalyzeModule(m)
	if err != nil {
		return err
	}
	s, err := a.AssignBest(work)
	if err != nil {
		return err
	}
	offsets := s.Offsets
	made := map[int][]int{} // by step
	for v, x := range a.Values {
		if offsets[v] >= 0 && x.Start >= 0 && x.Bytes > 0 {
			made[x.Start] = append(made[x.Start], v)
		}
	}
	calls := map[*hlo.Computation]int{} // how often it runs
	for _, i := range a.Schedule {
		if i == i.Parent.Root {
			calls[i.Parent]++
		}
	}
	heaps := map[uint64][]painted{}
	for step, i := range a.Schedule {
		// What is called reads for the call.
		if calls[i.Parent] == 1 && !memory.HandsOn(i) && len(memory.ControlFlow(i)) == 0 {
			for _, o := range i.Operands {
				v, ok := a.ValueAt(o)
				if !ok || offsets[v.ID] < 0 || !o.Shape.IsArray() {
					continue
				}
				from := offsets[v.ID]
				to := from + int64(v.Bytes)
				for _, p := range heaps[v.Space] {
					if p.from < to && from < p.to && p.buffer != v.Buffer {
						return fmt.Errorf("%s reads %s at %d to %d, and buffer %d lies at %d to %d, not %d", i.Name, o.Name, from, to, p.buffer, p.from, p.to, v.Buffer)
					}
				}
			}
		}
		for _, v := range made[step] {
			x := &a.Values[v]
			p := painted{offsets[v], offsets[v] + int64(x.Bytes), x.Buffer}
			heaps[x.Space] = paint(heaps[x.Space], p)
		}
	}
	return nil
}

// paint writes over what was there.
func paint(heap []painted, p painted) []painted {
	next := heap[:0:0]
	for _, q := range heap {
		if q.from < min(q.to, p.from) {
			next = append(next, painted{q.from, min(q.to, p.from), q.buffer})
		}
		if max(q.from, p.to) < q.to {
			next = append(next, painted{max(q.from, p.to), q.to, q.buffer})
		}
	}
	return append(next, p)
}

// planned changes a module for a part of its peak, by recomputing or by moving values to the host.
func planned(t rapid.TB, m *hlo.Module, part float64, toHost bool) {
	t.Helper()
	limit := uint64(part * float64(remattest.TempPeak(t, m)))
	var err error
	if toHost {
		_, err = host.Move(m, limit, &host.Memory{ToHost: 5e10, FromHost: 5e10, Seconds: func(*hlo.Instruction) float64 { return 1 }})
	} else {
		_, err = gap.Run(m, gap.Options{Limit: limit, Seconds: remattest.BySize})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestHeapRandom: plans of random modules run on their packed heap.
func TestHeapRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := remattest.Parsed(t, remattest.Random(t))
		planned(t, m, rapid.Float64Range(0.2, 1).Draw(t, "limit"), rapid.Bool().Draw(t, "host"))
		for _, work := range []int{0, 10000} {
			if err := heapHolds(m, work); err != nil {
				t.Fatalf("%v\n%s", err, m)
			}
		}
	})
}

// TestHeapReal: so do plans of real modules.
func TestHeapReal(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: -short")
	}
	for _, file := range remattest.Real(t) {
		m := remattest.Read(t, file)
		if m.Instructions() > 9000 {
			continue // long to look at
		}
		for _, toHost := range []bool{false, true} {
			p := m.Clone()
			planned(t, p, .6, toHost)
			if err := heapHolds(p, 0); err != nil {
				t.Errorf("%s: to the host %t: %v", file, toHost, err)
			}
		}
	}
}

// TestHeapHolds: what is looked for is found.
func TestHeapHolds(t *testing.T) {
	heap := paint(nil, painted{0, 100, 1})
	heap = paint(heap, painted{40, 60, 2})
	heap = paint(heap, painted{90, 110, 3})
	if got, want := fmt.Sprint(heap), "[{0 40 1} {60 90 1} {40 60 2} {90 110 3}]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
