package advise_test

import (
	"fmt"
	"testing"

	"gpumem/device/sim"
	"gpumem/record/advise"
	"gpumem/record/internal/tape"
	"gpumem/record/trace"
)

// TestContextWithoutRoomIsCounted: two processes whose pools fit the card, and whose contexts do not. The figures are those of the
// replay up to there, and the reason is that too much is needed, not that pools have holes.
func TestContextWithoutRoomIsCounted(t *testing.T) {
	const m = 1 << 20
	member := func(name string, start, n, ends uint64) tape.Member {
		const since1970 = 1_790_000_000_000_000_000
		tr := recorded(t, name, func(w *trace.Writer) error {
			return w.Alloc(trace.Call{Pool: "GPU_0", ID: 1, Time: since1970 + start, Bytes: n})
		})
		p := tape.Member{Name: name, Trace: tr, GPUs: []tape.MemberGPU{{Pool: "GPU_0", Joint: "cuda:0"}}}
		if ends != 0 {
			p.Ends = since1970 + ends
		}
		return p
	}
	for _, tc := range []struct {
		name  string
		ends  uint64 // of the first; 0 if it stays
		total uint64 // MiB
		want  string
	}{
		{"room for two contexts", 0, 1400, "1000 live, 1000 held, 0 refused, 0 left, need <nil>"},
		{"room for one", 0, 1250, "1000 live, 900 held, 2 refused, 0 left, need &{1048576000 1048576000 1 2 true}"},
		{"room for one, of a process that ends before the other", 1500, 1300, "900 live, 900 held, 0 refused, 200 left, need <nil>"},
	} {
		joined, err := tape.Join(t.Context(), "both", []tape.Member{member("a", 1000, 900*m, tc.ends), member("b", 2000, 100*m, 0)}, trace.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer joined.Close()
		r, err := advise.Run(t.Context(), joined, advise.Config{Sim: sim.Config{Total: tc.total * m, CCMajor: 8}, Context: 200 * m, As: "pytorch"})
		if err != nil {
			t.Fatal(err)
		}
		c := r.Candidates[0]
		got := fmt.Sprintf("%d live, %d held, %d refused, %d left, need %v", r.LowerBound/m, c.HeldPeak/m, c.Refused, c.Left/m, r.Need)
		if got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}
