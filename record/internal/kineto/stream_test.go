package kineto

// Long traces.

import (
	"fmt"
	"io"
	"runtime"
	"testing"

	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
)

// stream is a trace of a step that repeats, made while it is read: operations with their
// arguments, kernels and the calls that start them, as a GPU's trace mostly is, and
// allocations and frees; behind them the lines of Python.
type stream struct {
	steps int // of the program
	step  int
	part  int // 0 before the events, 1 operations, 2 memory, 3 Python, 4 behind them, 5 at the end
	rest  []byte
	read  int64
}

// opsOfStep is how many operations a step has.
const opsOfStep = 10

const (
	opLine = `  {
    "ph": "X", "cat": "cpu_op", "name": "aten::op%d", "pid": 5555, "tid": 5555,
    "ts": %d.%03d, "dur": 90.000,
    "args": {
      "External id": %d,"Record function id": 0, "Concrete Inputs": ["", "", ""], "Input type": ["float", "float", "Scalar"], "Input Strides": [[256, 1], [256, 1], []], "Input Dims": [[64, 256], [64, 256], []], "Ev Idx": 7
    }
  },
  {
    "ph": "X", "cat": "kernel", "name": "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul> >(int, at::native::AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul>)", "pid": 0, "tid": 7,
    "ts": %d.%03d, "dur": 3.000,
    "args": {
      "External id": 9, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": 9, "registers per thread": 20, "shared memory": 0, "blocks per SM": 0.037, "grid": [4, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %%": 0
    }
  },
`
	memLine = `  {
    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",
    "pid": 5555, "tid": 5555,
    "ts": %d.500,
    "args": {
      "Total Reserved": 44040192, "Total Allocated": %d, "Bytes": %d, "Device Id": 0, "Device Type": 1, "Addr": %d, "finished": false, "Ev Idx": 1
    }
  },
`
	pyLine = `  {
    "ph": "X", "cat": "python_function", "name": "train.py(%d): step", "pid": 5555, "tid": 5555,
    "ts": %d.001, "dur": 998.000,
    "args": {
      "Python parent id": null, "Python id": 1, "Ev Idx": 2
    }
  },
`
)

// lines makes the next lines of the part.
func (s *stream) lines() {
	base := 5097992201000 + 1000*s.step
	switch s.part {
	case 1:
		for i := range opsOfStep {
			s.rest = fmt.Appendf(s.rest, opLine, i, base+100*i, 2, i, base+100*i+50, 0)
		}
	case 2:
		for i := range opsOfStep {
			addr, sign := 4096+512*(i/2), 1
			if i%2 == 1 {
				sign = -1
			}
			s.rest = fmt.Appendf(s.rest, memLine, base+100*i, 512*(1-i%2), 512*sign, addr)
		}
	case 3:
		s.rest = fmt.Appendf(s.rest, pyLine, 1+s.step%7, base)
	}
	if s.step++; s.step == s.steps {
		s.step = 0
		s.part++
	}
}

func (s *stream) Read(to []byte) (int, error) {
	if len(s.rest) == 0 {
		s.rest = s.rest[:0]
		switch s.part {
		case 0:
			s.rest = append(s.rest, "{\n  \"schemaVersion\": 1,\n  \"traceEvents\": [\n"...)
			s.part++
		case 4:
			s.rest = append(s.rest, "  {\"ph\": \"i\"}\n  ],\n  \"traceName\": \"x\"}\n"...)
			s.part++
		case 5:
			return 0, io.EOF
		default:
			s.lines()
		}
	}
	n := copy(to, s.rest)
	s.rest = s.rest[n:]
	s.read += int64(n)
	return n, nil
}

// readStream reads a trace of so many steps, and returns the most that the heap had.
func readStream(t testing.TB, steps int) (tr *tape.Trace, bytes int64, most uint64) {
	t.Helper()
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	start := heap()
	s := &stream{steps: steps}
	calls := 0
	tr, err := formats.Read(t.Context(), s, "in", tape.Options{SpoolLimit: -1, TempDir: t.TempDir(), Progress: func(int64, int64) {
		if calls++; calls%16 == 0 {
			most = max(most, heap())
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr, s.read, max(most, heap()) - start
}

// A trace that is ten times as long takes no more memory.
func TestLongTraceTakesNoMoreMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: -short; it reads 200 MB, which takes seconds")
	}
	_, bytes, short := readStream(t, 1_700)
	tr, tenfold, long := readStream(t, 17_000)
	if err := tracetest.CheckTrace(tr); err != nil {
		t.Error(err)
	}
	if tenfold < 9*bytes || tr.Events != 17_000*opsOfStep || tr.PeakLive != 512 || len(tr.Notes) > 0 || tr.Sites() != 1+7*opsOfStep {
		t.Errorf("%d bytes, then %d; %d events, peak %d, %d sites, notes %q", bytes, tenfold, tr.Events, tr.PeakLive, tr.Sites(), tr.Notes)
	}
	if want := "aten::op1\nstep (train.py:1)"; tr.Site(2) != want {
		t.Errorf("site 2 is %q, want %q", tr.Site(2), want)
	}
	if long > 40<<20 {
		t.Errorf("%d bytes of heap for %d of trace, %d for %d", short, bytes, long, tenfold)
	}
	t.Logf("%d bytes of heap for %d of trace, %d for %d", short, bytes, long, tenfold)
}

func BenchmarkRead(b *testing.B) {
	const steps = 10_000
	var data []byte
	s := &stream{steps: steps}
	data, err := io.ReadAll(s)
	if err != nil {
		b.Fatal(err)
	}
	for name, data := range map[string][]byte{"plain": data, "gzip": tracetest.Zipped(data)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(s.read)
			for b.Loop() {
				mustRead(b, data).Close()
			}
		})
	}
}
