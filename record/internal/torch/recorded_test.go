package torch

// Testdata that real programs wrote, run by gpumem run --record.

import (
	"context"
	"strings"
	"testing"

	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
)

// TestRecordedTorch: three releases of PyTorch that did the same have the same in
// their snapshots: 24 arrays, of which 20 were freed, and one request refused.
func TestRecordedTorch(t *testing.T) {
	for _, name := range []string{"torch201.pickle", "torch280.pickle", "torch2150.pickle"} {
		t.Run(name, func(t *testing.T) {
			tr, err := formats.Open(context.Background(), "../../trace/testdata/"+name, tape.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			if err := tracetest.CheckTrace(tr); err != nil {
				t.Error(err)
			}
			if len(tr.Pools) != 1 {
				t.Fatalf("%d pools, want 1", len(tr.Pools))
			}
			p := tr.Pools[0]
			if p.Events != 45 || p.Allocs != 25 || p.Refused != 1 || p.Placed != 24 || p.PeakLive < 5368709120 || p.EndBlocks != 4 || p.EndLive != 4*3000000+2+4+6+8 {
				t.Errorf("%d events, %d allocations; %d blocks of %d bytes in the end", p.Events, p.Allocs, p.EndBlocks, p.EndLive)
			}
			if notes := strings.Join(tr.Notes, "\n"); !strings.Contains(notes, "the recorded run was refused 1 request: 5 GiB (event 41; the device had ") {
				t.Errorf("notes: %s", notes)
			}
		})
	}
}
