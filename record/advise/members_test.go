package advise_test

import (
	"bytes"
	"errors"
	"testing"

	"gpumem/device/sim"
	"gpumem/record/advise"
	"gpumem/record/formats"
	"gpumem/record/internal/tape"
	"gpumem/record/trace"
)

// recorded returns what write records.
func recorded(t *testing.T, name string, write func(w *trace.Writer) error) *trace.Trace {
	t.Helper()
	var out bytes.Buffer
	w, err := trace.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(write(w), w.Flush()); err != nil {
		t.Fatal(err)
	}
	tr, err := formats.Read(t.Context(), &out, name, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tr.Close() })
	return tr
}

// TestJoinedProcessesGrowEachByItself: of two processes on one GPU each keeps 1 MiB in each of its
// steps, so that 2 MiB are kept in a step of the program.
func TestJoinedProcessesGrowEachByItself(t *testing.T) {
	const steps, mib, since1970 = 60, 1 << 20, 1_790_000_000_000_000_000
	var members []tape.Member
	for i := range uint64(2) {
		tr := recorded(t, "a process", func(w *trace.Writer) (err error) {
			at := since1970 + i
			call := func(do func(trace.Call) error, id, n uint64, site string) {
				err = errors.Join(err, do(trace.Call{Pool: "GPU_0", ID: id, Bytes: n, Site: site, Time: at}))
				at += 1000
			}
			for step := range uint64(steps) {
				call(w.Alloc, 1, 8*mib, "batch (train.py:1)")
				call(w.Alloc, 10+step, mib, "keep (train.py:2)")
				call(w.Free, 1, 0, "")
			}
			return err
		})
		members = append(members, tape.Member{Name: "a process", Trace: tr, GPUs: []tape.MemberGPU{{Pool: "GPU_0", Joint: "cuda:0"}}})
	}
	joined, err := tape.Join(t.Context(), "both", members, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer joined.Close()
	const context = 100 * mib
	r, err := advise.Run(t.Context(), joined, advise.Config{Sim: sim.Config{Total: 1 << 30}, Context: context, As: "pytorch", Members: members})
	if err != nil {
		t.Fatal(err)
	}
	if g := r.Grows; g == nil || g.BytesPerStep != 2*mib || g.RecordedSteps != steps {
		t.Errorf("%+v", g)
	}
	// Two contexts, and what is left of the card by the pools that are there at once.
	if want := uint64(1<<30 - 2*context - r.Candidates[0].HeldPeak); r.Candidates[0].Left != want {
		t.Errorf("%d left, want %d", r.Candidates[0].Left, want)
	}
}
