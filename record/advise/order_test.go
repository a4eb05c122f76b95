package advise_test

import (
	"errors"
	"testing"

	"gpumem/device/sim"
	"gpumem/record/advise"
	"gpumem/record/internal/tape"
	"gpumem/record/trace"
)

// TestSmallestDeviceServesEveryOrder: a process keeps 100 MiB that are free, and takes 300 MiB more. On a device
// that is short it would give the 100 up for itself. The other process takes 200 MiB meanwhile, for which nobody
// gives up anything: had it been last, it would be refused. A process that has ended holds nothing.
func TestSmallestDeviceServesEveryOrder(t *testing.T) {
	const mib, since1970 = 1 << 20, 1_790_000_000_000_000_000
	type call struct{ at, alloc, free uint64 } // MiB, whose number is the block's, too
	record := func(name string, calls []call) *trace.Trace {
		return recorded(t, name, func(w *trace.Writer) (err error) {
			for _, c := range calls {
				do, n := w.Alloc, c.alloc
				if c.free > 0 {
					do, n = w.Free, c.free
				}
				err = errors.Join(err, do(trace.Call{Pool: "GPU_0", ID: n, Time: since1970 + c.at, Bytes: n * mib}))
			}
			return err
		})
	}
	for _, tc := range []struct {
		name string
		ends uint64 // of the second; 0 if it stays
		want uint64 // MiB, of which each context is 200
	}{
		{"at once", 0, 100 + 300 + 200 + 2*200},
		{"one after the other", 15, 300 + 200},
	} {
		gpus := []tape.MemberGPU{{Pool: "GPU_0", Joint: "cuda:0"}}
		members := []tape.Member{
			{Name: "a", Trace: record("a", []call{{20, 100, 0}, {30, 0, 100}, {40, 300, 0}}), GPUs: gpus},
			{Name: "b", Trace: record("b", []call{{10, 200, 0}}), GPUs: gpus},
		}
		if tc.ends != 0 {
			members[1].Ends = since1970 + tc.ends
		}
		joined, err := tape.Join(t.Context(), "both", members, trace.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer joined.Close()
		cfg := advise.Config{Sim: sim.Config{Total: 4 << 30, CCMajor: 8}, Context: 200 * mib, As: "pytorch", Members: members}
		r, err := advise.Run(t.Context(), joined, cfg)
		if err != nil {
			t.Fatal(err)
		}
		n := r.Candidates[0].SmallestDevice
		if n == nil {
			t.Fatalf("%s: no smallest device", tc.name)
		}
		if *n != tc.want*mib {
			t.Errorf("%s: %d MiB, want %d", tc.name, *n/mib, tc.want)
		}
	}
}
