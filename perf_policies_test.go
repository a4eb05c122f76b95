package gpumem_test

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"gpumem"
	"gpumem/alloc"
	"gpumem/alloc/build"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/internal/report"
	"gpumem/internal/test/golden"
	"gpumem/policy/frameworks"
	"gpumem/record/formats"
	"gpumem/record/replay"
	"gpumem/record/trace"
)

// fitTraces are those of peers' table, and two of our own recordings of the
// original; without the last part of their names.
var fitTraces = []string{
	"bfc/train_lifo", "peers/mltrain", "bfc/steady_1000", "bfc/loguniform_200k", "bfc/pressure_oom",
	"peers/minimalloc_A", "peers/minimalloc_B", "peers/minimalloc_C", "peers/minimalloc_D", "peers/minimalloc_E",
}

// peerTable is the smallest device of each peer over the peak of live bytes, by
// trace and peer.
func peerTable(t testing.TB) map[string]map[string]float64 {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "peers", "smallest_device.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.Comma = '\t'
	rows, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	table := map[string]map[string]float64{}
	for _, row := range rows[1:] {
		table[row[0]] = map[string]float64{}
		for i, cell := range row {
			if v, err := strconv.ParseFloat(cell, 64); err == nil && i > 1 {
				table[row[0]][rows[0][i]] = v
			}
		}
	}
	return table
}

// smallest replays a recording under the policies and is the report.
func smallest(t testing.TB, name string, policies ...string) *replay.Report {
	t.Helper()
	path, err := filepath.Glob(filepath.Join("testdata", name+".txt*"))
	if err != nil || len(path) != 1 {
		t.Fatalf("%s: %v, %v", name, path, err)
	}
	tr, err := formats.Open(t.Context(), path[0], trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	cfg := replay.Config{
		Total: 160 << 30, Smallest: true,
		Device: func(total uint64) (device.GPU, error) { return sim.New(sim.Config{Total: total}) },
	}
	for _, s := range policies {
		p, err := frameworks.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Policies = append(cfg.Policies, p)
	}
	rep, err := replay.Run(t.Context(), tr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// fits is the table of what each policy needs, over the peak of live bytes.
func fits(t testing.TB) string {
	peers := peerTable(t)
	over := func(v float64, ok bool) string {
		if !ok {
			return ""
		}
		return fmt.Sprintf("%.4f", v)
	}
	tab := report.NewTable("trace", ">bound", ">elastic", ">eager mean / platform mean", ">vmm", ">async", ">platform", ">bfc", ">best of eight peers")
	for _, name := range fitTraces {
		rep := smallest(t, name, "elastic", "vmm", "async", "platform", "bfc:fraction=1", "elastic:eager=true")
		peak := float64(rep.Trace.PeakLive)
		r := rep.Results
		need := func(i int) string { return over(float64(*r[i].Smallest)/peak, true) }
		best, found := 0.0, false
		for _, v := range peers[filepath.Base(name)] {
			if !found || v < best {
				best, found = v, true
			}
		}
		tab.Row(name, over(float64(r[0].LowerBound)/peak, true), need(0), fmt.Sprintf("%.3f", r[5].HeldMean/r[3].HeldMean),
			need(1), need(2), need(3), need(4), over(best, found))
	}
	var b bytes.Buffer
	tab.WriteTo(&b)
	return b.String()
}

// warm replays a trace on a pool that has replayed it before: what the policy's
// own bookkeeping takes once the driver has been asked for all.
func warm(spec string) perfRunner {
	return func(t testing.TB, ops []golden.Op, limit uint64) time.Duration {
		dev, err := sim.New(sim.Config{Total: 160 << 30})
		if err != nil {
			t.Fatal(err)
		}
		pool := newPool(t, dev, spec, gpumem.WithRetry(0))
		defer pool.Close()
		blocks := make([]gpumem.Block, len(ops))
		live := make([]bool, len(ops))
		var took time.Duration
		for range 2 {
			start := time.Now()
			for i := range ops {
				op := &ops[i]
				if op.Free {
					if err := pool.Free(blocks[op.Block]); err != nil {
						t.Fatal(err)
					}
					live[op.Block] = false
					continue
				}
				blocks[op.Block], err = pool.TryAlloc(op.Bytes)
				live[op.Block] = err == nil
			}
			took = time.Since(start)
			for i, l := range live {
				if l {
					if err := pool.Free(blocks[i]); err != nil {
						t.Fatal(err)
					}
					live[i] = false
				}
			}
		}
		return took
	}
}

// bookkeeping is the table of the policies' own time.
func bookkeeping(t testing.TB) string {
	tab := report.NewTable("trace", ">bfc", ">elastic", ">ratio", ">vmm")
	for _, name := range append(fitTraces[:5:5], "bfc/uniform_1m", "100,000 live") { // the last two: many blocks, all smaller than a page
		ops := perfTrace(t, name)
		best := perEvent(t, ops, 0, warm("bfc:limit=100GiB"), warm("elastic"), warm("vmm"))
		tab.Row(name, fmt.Sprintf("%.0f", best[0]), fmt.Sprintf("%.0f", best[1]), fmt.Sprintf("%.2f", best[1]/best[0]), fmt.Sprintf("%.0f", best[2]))
	}
	var b bytes.Buffer
	tab.WriteTo(&b)
	return b.String()
}

// steps is the table of how often elastic calls the driver after the start, with
// a little more memory than it needs.
func steps(t testing.TB) string {
	tab := report.NewTable("trace", ">steps", ">device / live peak", ">allocations that call the driver after step 3", ">most held / live peak, unlimited")
	for _, tr := range []struct {
		name string
		n    int
	}{{"bfc/train_lifo", 300}, {"bfc/steady_1000", 1000}} {
		rep := smallest(t, tr.name, "elastic")
		for _, more := range []float64{1.05, 1.25} {
			total := uint64(more*float64(*rep.Results[0].Smallest)) &^ (2<<20 - 1)
			late := lateAllocs(t, tr.name, total, tr.n)
			tab.Row(tr.name, fmt.Sprint(tr.n), fmt.Sprintf("%.2f", float64(total)/float64(rep.Trace.PeakLive)), fmt.Sprint(late),
				fmt.Sprintf("%.4f", float64(rep.Results[0].HeldPeak)/float64(rep.Trace.PeakLive)))
		}
	}
	var b bytes.Buffer
	tab.WriteTo(&b)
	return b.String()
}

// lateAllocs counts the allocations after the third of n steps that call the
// driver.
func lateAllocs(t testing.TB, name string, total uint64, n int) int {
	dev, err := sim.New(sim.Config{Total: total})
	if err != nil {
		t.Fatal(err)
	}
	p, err := frameworks.Parse("elastic")
	if err != nil {
		t.Fatal(err)
	}
	a, err := build.New(dev, p, build.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	ops := perfTrace(t, name)
	blocks := make([]alloc.Block, len(ops))
	late := 0
	for i := range ops {
		op := &ops[i]
		if op.Free {
			if err := a.Free(blocks[op.Block]); err != nil {
				t.Fatal(err)
			}
			continue
		}
		before := dev.Counters().Calls
		if blocks[op.Block], err = a.Alloc(alloc.Request{Bytes: op.Bytes}); err != nil {
			t.Fatal(err)
		}
		if dev.Counters().Calls != before && i >= 3*len(ops)/n {
			late++
		}
	}
	return late
}

// TestPeerTable: the table of peers is there and is what the tables say.
func TestPeerTable(t *testing.T) {
	table := peerTable(t)
	if v := table["steady_1000"]["torch_expandable"]; v != 1.0243 || len(table) < 9 {
		t.Errorf("%d traces; torch_expandable on steady_1000 is %v", len(table), v)
	}
}
