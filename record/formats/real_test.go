package formats

// Recordings of real programs. They are other people's files and not part of this
// repository; the tests are skipped if they are not beside the checkout.

import (
	"context"
	"encoding/csv"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"gpumem/record/internal/test/tracetest"
	"gpumem/record/trace"
)

func realFile(t testing.TB, name string) string {
	t.Helper()
	return tracetest.Others(t, "traces", name)[0]
}

// TestRealRMM: the two lines of a log in the documentation of spark-rapids.
func TestRealRMM(t *testing.T) {
	tr, err := Open(context.Background(), realFile(t, "spark-rapids-doc.two-lines.csv"), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	const want = "a 0 256 stream=1\nf 0 stream=2 at=12663342000\n"
	if got := tracetest.ListEvents(tracetest.Events(t, tr.Pools[0], 10)); tr.Format != "rmm" || got != want {
		t.Errorf("format %s:\n%s", tr.Format, got)
	}
}

// TestRealXPlane compares a profile of TensorFlow on eight GPUs with a list of
// its events that was made by other means, row by row.
func TestRealXPlane(t *testing.T) {
	tr, err := Open(context.Background(), realFile(t, "tf-gpu-multi-worker.xplane.pb.gz"), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if err := tracetest.CheckTrace(tr); err != nil {
		t.Error(err)
	}
	f, err := os.Open(realFile(t, "tf-gpu-multi-worker.bfc-events.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	col := map[string]int{}
	for i, name := range rows[0] {
		col[name] = i
	}
	byPool := map[string][][]string{}
	for _, row := range rows[1:] {
		name := row[col["allocator"]]
		byPool[name] = append(byPool[name], row)
	}
	if tr.Format != "xplane" || tr.Events-tr.Seeds != 2493 || len(rows) != 2494 || len(tr.Pools) != 4 {
		t.Fatalf("%s: %d events and %d seeds in %d pools, %d rows", tr.Format, tr.Events, tr.Seeds, len(tr.Pools), len(rows)-1)
	}
	seeds := map[string]uint64{"GPU_1_bfc": 1, "GPU_4_bfc": 1, "GPU_6_bfc": 1, "gpu_host_bfc": 12}
	for _, p := range tr.Pools {
		evs := tracetest.Events(t, p, 1000)
		if p.Seeds != seeds[p.Name] || len(evs)-int(p.Seeds) != len(byPool[p.Name]) {
			t.Fatalf("%s: %d events, %d seeds; %d rows", p.Name, len(evs), p.Seeds, len(byPool[p.Name]))
		}
		slot := map[string]uint32{} // by address
		var older []uint32          // slots of seeds whose address is not met yet
		for _, e := range evs[:p.Seeds] {
			older = append(older, e.Slot)
		}
		for i, row := range byPool[p.Name] {
			e := evs[int(p.Seeds)+i]
			addr, requested := row[col["addr"]], row[col["requested"]]
			if op, _, _ := strings.Cut(tr.Site(e.Site), " ("); row[col["tf_op"]] != "" && op != row[col["tf_op"]] {
				t.Fatalf("%s, event %d: site %q, row %v", p.Name, i, tr.Site(e.Site), row)
			}
			if row[col["event"]] == "MemoryAllocation" {
				if e.Op != trace.Alloc || fmt.Sprint(e.Bytes) != requested {
					t.Fatalf("%s, event %d: %+v, row %v", p.Name, i, e, row)
				}
				slot[addr] = e.Slot
				continue
			}
			if s, ok := slot[addr]; e.Op != trace.Free || ok && s != e.Slot || !ok && !slices.Contains(older, e.Slot) {
				t.Fatalf("%s, event %d: %+v, row %v", p.Name, i, e, row)
			}
			delete(slot, addr)
		}
		// What was live at the start and what the rows do are what is live at
		// the end: bytes_allocated, but for the rounding of each block.
		last := byPool[p.Name][len(byPool[p.Name])-1]
		var held uint64
		fmt.Sscan(last[col["bytes_allocated"]], &held)
		if p.EndLive > held {
			t.Errorf("%s: %d bytes are live at the end, of %d", p.Name, p.EndLive, held)
		}
	}
	for _, n := range tr.Notes {
		if !strings.Contains(n, "allocated at its start") {
			t.Errorf("a real file needs no such note: %s", n)
		}
	}
}

// TestRealXPlaneTPU: JAX on four TPU cores. Frees have no size, and all is freed.
func TestRealXPlaneTPU(t *testing.T) {
	tr, err := Open(context.Background(), realFile(t, "tpu_inference_2.xplane.pb.gz"), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if err := tracetest.CheckTrace(tr); err != nil {
		t.Error(err)
	}
	if tr.Events != 906 || tr.Allocs != 453 || tr.Seeds != 0 || len(tr.Notes) > 0 || len(tr.Pools) != 4 {
		t.Errorf("%d events, %d allocs, %d seeds, %d pools, notes %q", tr.Events, tr.Allocs, tr.Seeds, len(tr.Pools), tr.Notes)
	}
	for i, p := range tr.Pools {
		if p.Name != fmt.Sprint(i) || p.EndBlocks != 0 {
			t.Errorf("pool %q has %d blocks at the end", p.Name, p.EndBlocks)
		}
	}
	if s := tr.Site(1); s != "dummy (f32[]{:T(128)})" {
		t.Errorf("site 1: %q", s)
	}
}

// TestRealPprof: the sums over devices and programs are those of go tool pprof -top.
func TestRealPprof(t *testing.T) {
	for name, want := range map[string]string{
		"microjax.memory.prof":          "cuda:0 4 blocks 32064 bytes, executable 99 blocks 1023096 bytes",
		"microjax.memory_profile.pb.gz": "cuda:0 5 blocks 64064 bytes, executable 99 blocks 1231544 bytes",
	} {
		t.Run(name, func(t *testing.T) {
			tr, err := Open(context.Background(), realFile(t, name), trace.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			if err := tracetest.CheckTrace(tr); err != nil {
				t.Error(err)
			}
			var got []string
			for _, p := range tr.Pools {
				got = append(got, fmt.Sprintf("%s %d blocks %d bytes", p.Name, p.EndBlocks, p.EndLive))
			}
			if strings.Join(got, ", ") != want || tr.Format != "pprof" {
				t.Errorf("%s: %q, want %q", tr.Format, got, want)
			}
			for i := range tr.Sites() {
				if s := tr.Site(i); strings.Contains(s, "/") {
					t.Errorf("site %d shows a path: %s", i, s)
				}
			}
		})
	}
}

// TestRealRefused: other files are told by name, and a damaged one with the
// place, the reason and the way out.
func TestRealRefused(t *testing.T) {
	const unknown = "not a recording that this version knows"
	for name, want := range map[string]string{
		"tpu_training.memory_profile.json.gz":  ":1: \"{",
		"tpu_training.memory_viewer.json.gz":   ":1: \"{",
		"tf-gpu-multi-worker.bfc-events.csv":   unknown,
		"tpu_inference_2.DAMAGED.xplane.pb.gz": ": byte 1: damaged from here on: the file was taken for text on its way, and its bytes above 127 were replaced by EF BF BD; copy the original again as binary",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(context.Background(), realFile(t, name), trace.Options{})
			if text := fmt.Sprint(err); !tracetest.IsInput(err) || !strings.Contains(text, want) || strings.Contains(text, "\n") {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
}
