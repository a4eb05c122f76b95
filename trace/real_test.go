package trace

// This file is for snapshots of real programs. They are other people's files
// and not part of this repository; the tests are skipped where they are not at
// hand.

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// realFile is the path of a real file, or skips the test.
func realFile(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join("..", "..", "shared", "data", "traces", name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("the recording of a real program is not here: %v", err)
	}
	return path
}

var realSnapshots = []struct {
	name                   string
	events, allocs, unseen uint64 // of the device trace
}{
	{"bcrafton.memory_snapshot.pickle.gz", 2162 + 2162, 2162, 222},
	{"yiyi.4bf3cd4.pickle.gz", 1, 0, 1},
	{"yiyi.fc31f1e.pickle.gz", 0, 0, 0},
}

// TestRealSnapshots: after the last event, the live blocks are the active blocks
// of the segments, by count and by requested bytes. The active blocks are
// counted here by a walk of its own over the tree.
func TestRealSnapshots(t *testing.T) {
	for _, c := range realSnapshots {
		t.Run(c.name, func(t *testing.T) {
			path := realFile(t, c.name)
			tr, err := Open(context.Background(), path, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			if err := checkTrace(tr); err != nil {
				t.Error(err)
			}
			if len(tr.Pools) != 1 || tr.Pools[0].Name != "cuda:0" {
				t.Fatalf("%d pools", len(tr.Pools))
			}
			p := tr.Pools[0]
			blocks, requested := activeBlocks(t, path)
			if p.EndBlocks != blocks || p.EndLive != requested {
				t.Errorf("%d blocks with %d bytes are live at the end; the segments have %d with %d",
					p.EndBlocks, p.EndLive, blocks, requested)
			}
			if p.Events-p.Seeds != c.events || p.Allocs-p.Seeds != c.allocs {
				t.Errorf("%d events, %d allocs after the seeds; want %d, %d", p.Events-p.Seeds, p.Allocs-p.Seeds, c.events, c.allocs)
			}
			// Seeds = active at the end - allocated and kept + freed unseen.
			kept := c.allocs - (c.events - c.allocs - c.unseen)
			if want := blocks - kept + c.unseen; p.Seeds != want {
				t.Errorf("%d seeds, want %d", p.Seeds, want)
			}
			notes := strings.Join(tr.Notes, "\n")
			if c.unseen > 0 && !strings.Contains(notes, count(int(c.unseen), "free")+" of blocks allocated before the recording began") {
				t.Errorf("notes: %s", notes)
			}
			for _, odd := range []string{"dropped", "skipped", "left live", "at the end", "address of"} {
				if strings.Contains(notes, odd) {
					t.Errorf("a real file needs no such note: %s", notes)
				}
			}
			if d := diffTraces(tr, mustRead(t, saved(t, tr), Options{})); d != "" {
				t.Errorf("saved and read again: %s", d)
			}
			for i := range tr.Sites() {
				if s := tr.Site(i); strings.ContainsAny(s, `/\`) {
					t.Errorf("site %d shows a path: %s", i, s)
				}
			}
		})
	}
}

// activeBlocks counts the blocks of a snapshot's segments that are not inactive.
func activeBlocks(t testing.TB, path string) (blocks, requested uint64) {
	t.Helper()
	v, _, err := unpickle(bytes.NewReader(unzipFile(t, path)), path)
	if err != nil {
		t.Fatal(err)
	}
	segments, _ := v.(*dict).get("segments")
	for _, s := range segments.(*list).items {
		of, _ := s.(*dict).get("blocks")
		for _, b := range of.(*list).items {
			if stringField(b.(*dict), "state") != "inactive" {
				n, _ := b.(*dict).get("requested_size")
				blocks++
				requested += uint64(n.(int64))
			}
		}
	}
	return blocks, requested
}

func unzipFile(t testing.TB, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestRealRMM: the two lines of a log in the documentation of spark-rapids.
func TestRealRMM(t *testing.T) {
	tr, err := Open(context.Background(), realFile(t, "spark-rapids-doc.two-lines.csv"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	const want = "a 0 256 stream=1\nf 0 stream=2 at=12663342000\n"
	if got := listEvents(events(t, tr.Pools[0], 10)); tr.Format != "rmm" || got != want {
		t.Errorf("format %s:\n%s", tr.Format, got)
	}
}

// TestRealOthers: files of formats that are not read are told by name.
func TestRealOthers(t *testing.T) {
	for name, want := range map[string]string{
		"tf-gpu-multi-worker.xplane.pb.gz":     "looks like an xplane file",
		"tpu_inference_2.xplane.pb.gz":         "looks like an xplane file",
		"microjax.memory.prof":                 "looks like a pprof profile",
		"microjax.memory_profile.pb.gz":        "looks like a pprof profile",
		"tpu_training.memory_profile.json.gz":  "not a recording that this version knows",
		"tf-gpu-multi-worker.bfc-events.csv":   "not a recording that this version knows",
		"tpu_inference_2.DAMAGED.xplane.pb.gz": "looks like an xplane file",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(context.Background(), realFile(t, name), Options{})
			if !isInput(err) || !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
}

// TestRealDamaged changes single bytes of a real snapshot, far apart: a trace or
// an *Error each time.
func TestRealDamaged(t *testing.T) {
	data := unzipFile(t, realFile(t, "yiyi.fc31f1e.pickle.gz"))
	for i := 0; i < len(data); i += 997 {
		bad := append([]byte(nil), data...)
		bad[i] ^= byte(1 << (i % 8))
		tr, err := Read(context.Background(), bytes.NewReader(bad), "in", Options{Format: "torch"})
		if err != nil {
			if !isInput(err) {
				t.Fatalf("byte %d: %v", i, err)
			}
			continue
		}
		if err := checkTrace(tr); err != nil {
			t.Fatalf("byte %d: %v", i, err)
		}
		tr.Close()
	}
}

func BenchmarkRealSnapshot(b *testing.B) {
	data := unzipFile(b, realFile(b, "bcrafton.memory_snapshot.pickle.gz"))
	b.Run("pickle", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := unpickle(bytes.NewReader(data), "in"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("trace", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		b.ReportAllocs()
		for b.Loop() {
			tr, err := Read(context.Background(), bytes.NewReader(data), "in", Options{})
			if err != nil {
				b.Fatal(err)
			}
			tr.Close()
		}
	})
}
