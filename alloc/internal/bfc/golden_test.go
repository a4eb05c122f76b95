package bfc_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/alloc"
	"gpumem/alloc/internal/bfc"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/internal/test/bfcdump"
	"gpumem/internal/test/golden"
	"gpumem/size"
)

// recorder is a device that writes down what it was asked, as the original's
// harness did.
type recorder struct {
	device.Device
	log  []string
	size map[uint64]uint64 // of each grant
}

func (r *recorder) Alloc(n uint64) (device.Range, error) {
	got, err := r.Device.Alloc(n)
	if err != nil {
		r.log = append(r.log, fmt.Sprintf("alloc %d -> FAIL", n))
		return got, err
	}
	r.log = append(r.log, fmt.Sprintf("alloc %d -> %d %d", n, got.Addr-sim.Base, got.Bytes))
	r.size[got.Addr] = got.Bytes
	return got, nil
}

func (r *recorder) Free(addr uint64) error {
	r.log = append(r.log, fmt.Sprintf("free %d %d", addr-sim.Base, r.size[addr]))
	return r.Device.Free(addr)
}

func open(t testing.TB, row golden.Row) (*bfc.Allocator, *recorder) {
	t.Helper()
	dev, err := sim.New(sim.Config{Total: row.DeviceTotal, Granularity: row.Granularity})
	if err != nil {
		t.Fatal(err)
	}
	rec := &recorder{Device: dev, size: map[uint64]uint64{}}
	a, err := bfc.New(rec, bfc.Config{
		Limit: row.Limit, Growth: row.Growth, Spatial: row.Spatial, Coalesce: row.Coalesce,
		GC: row.GC, Fragmentation: row.Frag, Align: row.Align,
	})
	if err != nil {
		t.Fatal(err)
	}
	return a, rec
}

// run replays ops and gives back where each allocation landed.
func run(t testing.TB, a alloc.Allocator, ops []golden.Op) (offsets []uint64, refused int) {
	t.Helper()
	blocks := map[int32]alloc.Block{}
	for i, op := range ops {
		if op.Free {
			if b, ok := blocks[op.Block]; ok {
				if err := a.Free(b); err != nil {
					t.Fatalf("event %d: %v", i, err)
				}
				delete(blocks, op.Block)
			}
			continue
		}
		end := alloc.Lower
		if op.Upper {
			end = alloc.Upper
		}
		b, err := a.Alloc(alloc.Request{Bytes: op.Bytes, End: end})
		switch {
		case errors.Is(err, alloc.ErrNoMemory):
			offsets = append(offsets, golden.Refused)
			refused++
		case err != nil:
			t.Fatalf("event %d: %v", i, err)
		default:
			offsets = append(offsets, b.Addr-sim.Base)
			blocks[op.Block] = b
		}
	}
	return offsets, refused
}

func traceOf(t testing.TB, name string) []golden.Op {
	t.Helper()
	ops, err := golden.Trace("bfc/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return ops
}

// stats are the counters in the names and forms of the golden files.
func stats(a alloc.Allocator, oom int, d golden.Digest) map[string]string {
	s := a.Stats()
	u := func(n uint64) string { return strconv.FormatUint(n, 10) }
	return map[string]string{
		"oom": strconv.Itoa(oom), "num_allocs": strconv.FormatInt(s.NumAllocs, 10),
		"bytes_in_use": u(s.BytesInUse), "peak_bytes_in_use": u(s.PeakBytesInUse),
		"largest_alloc_size": u(s.LargestAllocSize), "bytes_limit": u(s.BytesLimit),
		"largest_free_block_bytes": u(s.LargestFreeBlock),
		"pool_bytes":               u(s.PoolBytes), "peak_pool_bytes": u(s.PeakPoolBytes),
		"fragmentation":     strconv.FormatFloat(s.Fragmentation(), 'g', 9, 64),
		"placement_fnv1a64": d.String(),
	}
}

// TestGolden replays every recorded run of the original: each placement (by
// the digest) and each counter must be its own.
func TestGolden(t *testing.T) {
	rows, err := golden.Rows()
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 35 {
		t.Fatalf("%d rows, want 35", len(rows))
	}
	traces := map[string][]golden.Op{}
	for _, row := range rows {
		t.Run(row.Name, func(t *testing.T) {
			if traces[row.Trace] == nil {
				traces[row.Trace] = traceOf(t, row.Trace)
			}
			a, rec := open(t, row)
			offsets, oom := run(t, a, traces[row.Trace])
			d := golden.NewDigest()
			for _, off := range offsets {
				d.Add(off)
			}
			if diff := cmp.Diff(row.Out, stats(a, oom, d)); diff != "" {
				t.Errorf("(-original +ours)\n%s", diff)
			}
			if err := a.Check(); err != nil {
				t.Error(err)
			}
			if err := a.Close(); err != nil {
				t.Error(err)
			}
			if held, _ := rec.Device.(*sim.Device).Held(); held != 0 {
				t.Errorf("%d bytes held after Close", held)
			}
		})
	}
}

// TestGoldenDetail compares the small runs line by line: each block's place,
// each call for a region, and the frees of closing.
func TestGoldenDetail(t *testing.T) {
	const mib = 1 << 20
	rows := []golden.Row{
		{Name: "collective_spatial.prealloc", Limit: 2048 * mib},
		{Name: "collective_spatial.spatial", Limit: 2048 * mib, Spatial: true},
		{Name: "collective_spatial.spatial_align2m", Limit: 2048 * mib, Spatial: true, Align: 2 * mib},
		{Name: "gc_growth.growth", Limit: 1024 * mib, Growth: true},
		{Name: "gc_growth.growth_gc", Limit: 1024 * mib, Growth: true, GC: true},
		{Name: "oom_small.growth", Limit: mib, Growth: true},
		{Name: "oom_small.prealloc", Limit: mib},
		{Name: "spatial_second_region.prealloc", Limit: 1024 * mib, DeviceTotal: 960 * mib},
		{Name: "tiny.growth", Limit: 64 * mib, Growth: true},
		{Name: "tiny.prealloc", Limit: 64 * mib},
		{Name: "tiny.spatial", Limit: 64 * mib, Spatial: true},
	}
	for _, row := range rows {
		t.Run(row.Name, func(t *testing.T) {
			row.Granularity = 1
			if row.DeviceTotal == 0 {
				row.DeviceTotal = row.Limit
			}
			row.Trace, _, _ = strings.Cut(row.Name, ".")
			a, rec := open(t, row)
			offsets, oom := run(t, a, traceOf(t, row.Trace))

			var got []string
			d := golden.NewDigest()
			for _, off := range offsets {
				place := "OOM"
				if off != golden.Refused {
					place = strconv.FormatUint(off, 10)
				}
				got = append(got, place)
				d.Add(off)
			}
			var want []string
			for _, line := range goldenLines(t, row.Name+".placements") {
				want = append(want, strings.Fields(line)[1])
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("placements (-original +ours)\n%s", diff)
			}
			counters := map[string]string{}
			ours := stats(a, oom, d)
			for _, line := range goldenLines(t, row.Name+".stats") {
				key, val, _ := strings.Cut(line, "=")
				if _, ok := ours[key]; ok {
					counters[key] = val
				}
			}
			if diff := cmp.Diff(counters, ours); diff != "" {
				t.Errorf("counters (-original +ours)\n%s", diff)
			}
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(goldenLines(t, row.Name+".regions"), rec.log); diff != "" {
				t.Errorf("calls for regions (-original +ours)\n%s", diff)
			}
		})
	}
}

func goldenLines(t *testing.T, name string) []string {
	t.Helper()
	return strings.Split(strings.TrimSuffix(string(goldenFile(t, name)), "\n"), "\n")
}

func goldenFile(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(golden.Dir(), "bfc", "golden", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestGoldenReport compares the out-of-memory reports of both eras and the
// binary dump, byte for byte.
func TestGoldenReport(t *testing.T) {
	for _, tc := range []struct {
		name   string
		growth bool
		old    bool
	}{
		{"oom_small.prealloc.log", false, false},
		{"oom_small.growth.log", true, false},
		{"oom_small.prealloc.2025.log", false, true},
		{"oom_small.growth.2025.log", true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dev, err := sim.New(sim.Config{Total: 1 << 20, Granularity: 1})
			if err != nil {
				t.Fatal(err)
			}
			a, err := bfc.New(dev, bfc.Config{Limit: 1 << 20, Growth: tc.growth, Report2025: tc.old})
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			var dump []byte
			blocks := map[int32]alloc.Block{}
			for _, op := range traceOf(t, "oom_small") {
				if op.Free {
					if err := a.Free(blocks[op.Block]); err != nil {
						t.Fatal(err)
					}
					continue
				}
				req := alloc.Request{Bytes: op.Bytes}
				b, err := a.Alloc(req)
				if err != nil {
					got.WriteString(a.Report(req).String())
					got.WriteString(alloc.Report{summary(a, tc.old, req)}.String())
					dump = bfcdump.Marshal(a)
				}
				blocks[op.Block] = b
			}
			if diff := cmp.Diff(string(goldenFile(t, tc.name)), got.String()); diff != "" {
				t.Errorf("(-original +ours)\n%s", diff)
			}
			if !tc.growth {
				if diff := cmp.Diff(goldenFile(t, "oom_small.prealloc.memdump.pb"), dump); diff != "" {
					t.Errorf("memory dump (-original +ours)\n%s", diff)
				}
			}
		})
	}
}

// summary is the line with which the original ends when it does not retry.
func summary(a *bfc.Allocator, old bool, r alloc.Request) alloc.Message {
	end := " from the lower end"
	if old {
		end = ""
	}
	return alloc.Message{Severity: alloc.Warning, Text: fmt.Sprintf(
		"Allocator (%s) ran out of memory trying to allocate %s%s with freed_by_count=0.",
		a.Name(), size.XLA(int64(r.Bytes)), end)}
}
