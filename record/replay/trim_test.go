package replay_test

import (
	"context"
	"strings"
	"testing"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/replaytest"
	"gpumem/record/trace"
)

// TestTrims: where the recorded program emptied its cache PyTorch's pools are emptied, in
// every pass, and no other's.
func TestTrims(t *testing.T) {
	recorded := func(t *testing.T, trims bool) *trace.Trace {
		t.Helper()
		tr, err := trace.Formats{{Name: "test", Looks: func([]byte) bool { return true }, Read: func(_ *input.Reader, b *tape.Builder) error {
			pool := b.Pool("p")
			for _, mebibytes := range []uint64{40, 80} {
				slot, err := pool.Alloc(trace.Event{Bytes: mebibytes * mib}, 0)
				if err != nil {
					return err
				}
				if err := pool.Free(trace.Event{Op: trace.Free, Slot: slot}); err != nil {
					return err
				}
				if trims {
					pool.Trim()
				}
			}
			return nil
		}}}.Read(context.Background(), strings.NewReader("x"), "in", trace.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tr.Close() })
		return tr
	}
	for _, tc := range []struct {
		policy        string
		with, without uint64 // MiB held at most
	}{
		{"pytorch", 80, 120},
		{"pytorch:expandable_segments=True", 80, 80},
		{"pytorch:backend=cudaMallocAsync", 96, 160},
		{"jax:preallocate=false", 192, 192},
		{"elastic", 80, 80},
	} {
		t.Run(tc.policy, func(t *testing.T) {
			for _, trims := range []bool{true, false} {
				cfg := replaytest.Config(t, "sim:1GiB", tc.policy)
				want := tc.without
				if trims {
					want = tc.with
				}
				if r := run(t, recorded(t, trims), cfg).Results[0]; r.HeldPeak != want*mib {
					t.Errorf("trims %v: %d MiB held, want %d", trims, r.HeldPeak/mib, want)
				}
			}
		})
	}
}
