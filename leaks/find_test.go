package leaks_test

// This file is for whole recordings: read, looked at, and what can go wrong.

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/leaks"
	"gpumem/trace"
	"gpumem/trace/formats"
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
	paths, err := filepath.Glob("../examples/*.txt.gz")
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

// TestRealSnapshots: snapshots of real programs, other people's files, which may
// not be at hand.
func TestRealSnapshots(t *testing.T) {
	for _, name := range []string{"bcrafton.memory_snapshot.pickle.gz", "yiyi.4bf3cd4.pickle.gz", "yiyi.fc31f1e.pickle.gz"} {
		path := filepath.Join("..", "..", "shared", "data", "traces", name)
		if _, err := os.Stat(path); err != nil {
			t.Skipf("the recording of a real program is not here: %v", err)
		}
		rep, err := leaks.Find(context.Background(), open(t, path), leaks.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %+v", name, rep)
		if rep.Verdict == leaks.Leak {
			t.Errorf("%s: %+v", name, rep)
		}
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
