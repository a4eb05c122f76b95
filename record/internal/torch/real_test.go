package torch

// Snapshots of real programs: PyTorch's own of testdata/README.md, and other people's,
// which are not part of this repository.

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
	"gpumem/size"
)

// realFile is the path of a real file: one of our making, or one that is beside the
// checkout; else the test is skipped.
func realFile(t testing.TB, name string) string {
	t.Helper()
	ours := filepath.Join("..", "..", "trace", "testdata", name)
	if _, err := os.Stat(ours); err == nil {
		return ours
	}
	return tracetest.Others(t, "traces", name)[0]
}

var realSnapshots = []struct {
	name                   string
	events, allocs, unseen uint64 // of the device trace
	refused                uint64 // of the allocs
}{
	{"bcrafton.memory_snapshot.pickle.gz", 2162 + 2162, 2162, 222, 0},
	{"yiyi.4bf3cd4.pickle.gz", 1, 0, 1, 0},
	{"yiyi.fc31f1e.pickle.gz", 0, 0, 0, 0},
	// 24 arrays are made and 20 freed, and a request is refused.
	{"torch201.pickle", 24 + 20 + 1, 24 + 1, 0, 1},
	{"torch280.pickle", 24 + 20 + 1, 24 + 1, 0, 1},
	{"torch2150.pickle", 24 + 20 + 1, 24 + 1, 0, 1},
}

// TestRealSnapshots: after the last event, the live blocks are the active blocks
// of the segments, by count and by requested bytes. The active blocks are
// counted here by a walk of its own over the tree.
func TestRealSnapshots(t *testing.T) {
	for _, c := range realSnapshots {
		t.Run(c.name, func(t *testing.T) {
			path := realFile(t, c.name)
			tr, err := formats.Open(context.Background(), path, tape.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			if err := tracetest.CheckTrace(tr); err != nil {
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
			kept := c.allocs - c.refused - (c.events - c.allocs - c.unseen)
			if want := blocks - kept + c.unseen; p.Seeds != want {
				t.Errorf("%d seeds, want %d", p.Seeds, want)
			}
			notes := strings.Join(tr.Notes, "\n")
			if c.unseen > 0 && !strings.Contains(notes, size.Count(int(c.unseen), "free")+" of blocks allocated before the recording began") {
				t.Errorf("notes: %s", notes)
			}
			for _, odd := range []string{"dropped", "skipped", "left live", "at the end", "address of"} {
				if strings.Contains(notes, odd) {
					t.Errorf("a real file needs no such note: %s", notes)
				}
			}
			if d := tracetest.Diff(tr, mustRead(t, saved(t, tr), tape.Options{})); d != "" {
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

// contentOf returns what a file has behind gzip.
func contentOf(t testing.TB, path string) []byte {
	t.Helper()
	if strings.HasSuffix(path, ".gz") {
		return unzipFile(t, path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// activeBlocks counts the blocks of a snapshot's segments that are not inactive.
func activeBlocks(t testing.TB, path string) (blocks, requested uint64) {
	t.Helper()
	v, _, err := unpickleFrom(bytes.NewReader(contentOf(t, path)), path)
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

// TestRealDamaged changes single bytes of a real snapshot, far apart: a trace or
// an *Error each time.
func TestRealDamaged(t *testing.T) {
	data := unzipFile(t, realFile(t, "yiyi.fc31f1e.pickle.gz"))
	for i := 0; i < len(data); i += 997 {
		bad := append([]byte(nil), data...)
		bad[i] ^= byte(1 << (i % 8))
		tr, err := formats.Read(context.Background(), bytes.NewReader(bad), "in", tape.Options{Format: "torch"})
		if err != nil {
			if !tracetest.IsInput(err) {
				t.Fatalf("byte %d: %v", i, err)
			}
			continue
		}
		if err := tracetest.CheckTrace(tr); err != nil {
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
			if _, _, err := unpickleFrom(bytes.NewReader(data), "in"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("trace", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		b.ReportAllocs()
		for b.Loop() {
			tr, err := formats.Read(context.Background(), bytes.NewReader(data), "in", tape.Options{})
			if err != nil {
				b.Fatal(err)
			}
			tr.Close()
		}
	})
}
