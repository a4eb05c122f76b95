package replay_test

import (
	"bytes"
	"fmt"
	"testing"

	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/policy"
	"gpumem/policy/frameworks"
	"gpumem/record/formats"
	"gpumem/record/internal/tape"
	"gpumem/record/replay"
	"gpumem/record/trace"
)

// since1970 is the beginning of the times, which all processes have from the same clock.
const since1970 = 1_790_000_000_000_000_000

// process is the recording of one process: what it asks for at a time after its start, and frees at another one.
func process(t *testing.T, name string, start, ends uint64, events ...trace.Call) tape.Member {
	t.Helper()
	var out bytes.Buffer
	w, err := trace.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range events {
		c.Pool, c.Time = "GPU_0", since1970+start+c.Time
		do := w.Alloc
		if c.Bytes == 0 {
			do = w.Free
		}
		if err := do(c); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	tr, err := formats.Read(t.Context(), &out, name, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tr.Close() })
	if ends != 0 {
		ends += since1970
	}
	return tape.Member{Name: name, Trace: tr, Ends: ends, GPUs: []tape.MemberGPU{{Pool: "GPU_0", Joint: "cuda:0"}}}
}

// TestProcessesThatShareAGPUHaveAPoolEach: a process may take what another has freed, by a
// free of its pool to the device or by its end, and not what lies idle in the other's pool.
func TestProcessesThatShareAGPUHaveAPoolEach(t *testing.T) {
	const context = 10 * mib
	take := func(id, at, bytes uint64) trace.Call { return trace.Call{ID: id, Time: at, Bytes: bytes} }
	free := func(id, at uint64) trace.Call { return trace.Call{ID: id, Time: at} }
	for _, tc := range []struct {
		name     string
		policy   string
		members  []tape.Member
		peak     uint64
		held     uint64
		smallest uint64
	}{
		{"at the same time", "platform", []tape.Member{
			process(t, "a", 1000, 0, take(1, 0, 100*mib), free(1, 50)),
			process(t, "b", 1020, 0, take(1, 0, 60*mib), free(1, 50)),
		}, 160 * mib, 160 * mib, 160*mib + 2*context},
		{"one after the other, both alive", "platform", []tape.Member{
			process(t, "a", 1000, 0, take(1, 0, 100*mib), free(1, 50)),
			process(t, "b", 1060, 0, take(1, 0, 60*mib), free(1, 50)),
		}, 100 * mib, 100 * mib, 100*mib + context}, // the second context is made when the first one's block is free
		{"one after the other, with PyTorch's pool, which keeps what is free", "pytorch", []tape.Member{
			process(t, "a", 1000, 0, take(1, 0, 100*mib), free(1, 50)),
			process(t, "b", 1060, 0, take(1, 0, 60*mib), free(1, 50)),
		}, 100 * mib, 160 * mib, 160*mib + 2*context},
		{"the first has ended", "pytorch", []tape.Member{
			process(t, "a", 1000, 1055, take(1, 0, 100*mib), free(1, 50)),
			process(t, "b", 1060, 0, take(1, 0, 60*mib), free(1, 50)),
		}, 100 * mib, 100 * mib, 100*mib + context},
		{"the first was killed with its block", "platform", []tape.Member{
			process(t, "a", 1000, 1055, take(1, 0, 100*mib)),
			process(t, "b", 1060, 0, take(1, 0, 60*mib)),
		}, 100 * mib, 100 * mib, 100*mib + context},
		{"one has a context alone", "platform", []tape.Member{
			process(t, "a", 1000, 0, take(1, 0, 100*mib), free(1, 50)),
			{Name: "b", Begins: since1970 + 1010, GPUs: []tape.MemberGPU{{Pool: "GPU_0", Joint: "cuda:0"}}},
		}, 100 * mib, 100 * mib, 100*mib + 2*context},
		{"one has a context alone, made after the last event", "platform", []tape.Member{
			process(t, "a", 1000, 0, take(1, 0, 100*mib)),
			{Name: "b", Begins: since1970 + 1010, GPUs: []tape.MemberGPU{{Pool: "GPU_0", Joint: "cuda:0"}}},
		}, 100 * mib, 100 * mib, 100*mib + 2*context},
	} {
		t.Run(tc.name, func(t *testing.T) {
			joined, err := tape.Join(t.Context(), "both", tc.members, trace.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer joined.Close()
			p, err := frameworks.Parse(tc.policy)
			if err != nil {
				t.Fatal(err)
			}
			on := func(total uint64) *replay.Result {
				t.Helper()
				rep, err := replay.Run(t.Context(), joined, replay.Config{
					Policies: []policy.Policy{p}, Total: total, Untimed: true, Smallest: true,
					Device: func(total uint64) (device.GPU, error) { return sim.New(sim.Config{Total: total, Context: context}) },
				})
				if err != nil {
					t.Fatal(err)
				}
				return rep.Results[0]
			}
			for _, total := range []uint64{1 << 30, tc.smallest} {
				r := on(total)
				got, want := fmt.Sprint(joined.Pools[0].PeakLive, r.HeldPeak, *r.Smallest), fmt.Sprint(tc.peak, tc.held, tc.smallest)
				if got != want || !r.Fits {
					t.Errorf("on %d peak, held, smallest: %s, want %s; it fits %v", total, got, want, r.Fits)
				}
			}
			if r := on(tc.smallest - mib); r.Fits || r.Refused == 0 || r.Failure == nil {
				t.Errorf("on 1 MiB less it fits %v, %d refused, first %+v", r.Fits, r.Refused, r.Failure)
			}
		})
	}
}

// TestProcessWithoutRoomIsRefused: the context of the second process has no room, and so the process nothing; the first goes on.
func TestProcessWithoutRoomIsRefused(t *testing.T) {
	const context = 20 * mib
	joined, err := tape.Join(t.Context(), "both", []tape.Member{
		process(t, "a", 1000, 0, trace.Call{ID: 1, Bytes: 90 * mib}, trace.Call{ID: 1, Time: 30}, trace.Call{ID: 2, Time: 40, Bytes: 95 * mib}),
		process(t, "b", 1010, 0, trace.Call{ID: 1, Bytes: 2 * mib}, trace.Call{ID: 1, Time: 10}),
	}, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer joined.Close()
	for _, name := range []string{"platform", "pytorch"} {
		p, err := frameworks.Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		rep, err := replay.Run(t.Context(), joined, replay.Config{
			Policies: []policy.Policy{p}, Total: 128 * mib, Untimed: true,
			Device: func(total uint64) (device.GPU, error) { return sim.New(sim.Config{Total: total, Context: context}) },
		})
		if err != nil {
			t.Fatal(err)
		}
		r := rep.Results[0]
		want := "Why: 20 MiB was asked for.\n  It is the context of a process, which has no room beside the others': their pools hold 90 MiB.\n"
		if got := fmt.Sprint(r.Refused, *r.FirstRefused, r.Failure.Bytes/mib, r.Failure.Why); got != fmt.Sprint(2, 2, 20, want) {
			t.Errorf("%s: refused, first, bytes, why: %s", name, got)
		}
		if r.Fits || r.HeldPeak < 95*mib || r.HeldPeak > 96*mib {
			t.Errorf("%s: fits %v, %d held", name, r.Fits, r.HeldPeak)
		}
	}
}
