package leaks_test

// This file is for whole recordings: read, looked at, and what can go wrong.

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/record/formats"
	"gpumem/record/internal/test/tracetest"
	"gpumem/record/leaks"
	"gpumem/record/trace"
)

func open(t *testing.T, path string) *trace.Trace {
	t.Helper()
	tr, err := formats.Open(context.Background(), path, trace.Options{KeepPaths: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

// TestExamples: none of the examples leaks.
func TestExamples(t *testing.T) {
	paths, err := filepath.Glob("../../examples/*.txt.gz")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		rep, err := leaks.Find(context.Background(), open(t, path), leaks.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if rep.Verdict != leaks.None {
			t.Errorf("%s: %+v", path, rep)
		}
	}
}

func TestErrors(t *testing.T) {
	tr, err := formats.Read(context.Background(), strings.NewReader("a 1 5\n"), "one.txt", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = leaks.Find(context.Background(), tr, leaks.Config{Pool: "x"})
	if err == nil || err.Error() != `one.txt: no pool is named "x"; the recording has one pool, without a name` {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := leaks.Find(ctx, tr, leaks.Config{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	rep, err := leaks.Find(context.Background(), tr, leaks.Config{})
	if err != nil || rep.Verdict != leaks.TooShort || rep.Leaks == nil || rep.Grew == nil {
		t.Error(rep, err)
	}
	tr.Close()
}

// TestRealRecordings: PyTorch kept one array of three in each of 8 steps, of 3,000,000 and
// 1 to 8 bytes, until four of them were freed at the end. The other programs keep nothing.
func TestRealRecordings(t *testing.T) {
	for _, name := range []string{"torch201.pickle", "torch280.pickle", "torch2150.pickle"} {
		rep, err := leaks.Find(context.Background(), open(t, filepath.Join("..", "trace", "testdata", name)), leaks.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if rep.Verdict != leaks.Leak || len(rep.Leaks) != 1 || *rep.Steps != 8 {
			t.Errorf("%s: %+v", name, rep)
			continue
		}
		if p := rep.Leaks[0]; p.Site != "make (torchrun.py:4)" || p.Blocks != 8 || p.Bytes != 8*3_000_000+36 || *p.BytesPerStep <= 3_000_000 || *p.BytesPerStep > 3_000_008 {
			t.Errorf("%s: %+v, %d bytes a step", name, p, *p.BytesPerStep)
		}
	}
	for _, name := range []string{"jax012.log.gz", "jax092.log.gz", "jax092.xplane.pb.gz"} {
		noLeak(t, filepath.Join("..", "trace", "testdata", name))
	}
}

// TestOthersSnapshots: nor do these, which are other people's and may not be at hand.
func TestOthersSnapshots(t *testing.T) {
	for _, path := range tracetest.Others(t, "traces", "*.pickle.gz") {
		noLeak(t, path)
	}
}

func noLeak(t *testing.T, path string) {
	t.Helper()
	rep, err := leaks.Find(context.Background(), open(t, path), leaks.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %+v", path, rep)
	if rep.Verdict == leaks.Leak {
		t.Errorf("%s: %+v", path, rep)
	}
}

// TestRefusedRequestIsNoLeak: nothing lives after a request that was refused, in whichever
// step.
func TestRefusedRequestIsNoLeak(t *testing.T) {
	log := "Thread,Time,Action,Pointer,Size,Stream\n"
	for range 60 {
		log += "1,12:00:00,allocate,0x100,1000,0\n1,12:00:00,allocate failure,(nil),1048576,0\n1,12:00:00,free,0x100,1000,0\n"
	}
	tr, err := formats.Read(context.Background(), strings.NewReader(log), "log", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	rep, err := leaks.Find(context.Background(), tr, leaks.Config{})
	if err != nil || rep.Verdict != leaks.None || len(rep.Leaks)+len(rep.Grew) > 0 {
		t.Errorf("%+v, %v", rep, err)
	}
}
