package leaks_test

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpumem"
	"gpumem/device/sim"
	"gpumem/policy/frameworks"
	"gpumem/record/formats"
	"gpumem/record/leaks"
	"gpumem/record/trace"
)

var update = flag.Bool("update", false, "record testdata/masks.gpumem anew")

// program keeps a mask in each step: the key of its cache is the step, and should be the
// length of the sequence. What it keeps besides is no leak: weights, and the last ten
// losses.
type program struct {
	pool   *gpumem.Pool
	masks  map[int]gpumem.Block
	losses []gpumem.Block
}

const (
	steps     = 60
	maskBytes = 3 << 20
)

func (p *program) mask(step int) (err error) {
	p.masks[step], err = p.pool.Alloc(context.Background(), maskBytes)
	return err
}

func (p *program) loss() error {
	b, err := p.pool.Alloc(context.Background(), 4)
	if err != nil {
		return err
	}
	if p.losses = append(p.losses, b); len(p.losses) > 10 {
		err = p.pool.Free(p.losses[0])
		p.losses = p.losses[1:]
	}
	return err
}

func (p *program) step(n int) error {
	batch, err := p.pool.Alloc(context.Background(), 24<<20)
	if err != nil {
		return err
	}
	if err := p.mask(n); err != nil {
		return err
	}
	if err := p.loss(); err != nil {
		return err
	}
	return p.pool.Free(batch)
}

// record runs the program and writes the recording.
func record(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	dev, err := sim.New(sim.Config{Total: 8 << 30})
	if err != nil {
		return err
	}
	w, err := trace.NewWriter(f)
	if err != nil {
		return err
	}
	pool, err := gpumem.Open(dev, frameworks.Default(), gpumem.WithStacks(true), gpumem.WithRecord(w))
	if err != nil {
		return err
	}
	p := &program{pool: pool, masks: map[int]gpumem.Block{}}
	for range 3 { // weights
		if _, err := pool.Alloc(context.Background(), 200<<20); err != nil {
			return err
		}
	}
	for n := range steps {
		if err := p.step(n); err != nil {
			return err
		}
	}
	return pool.Close()
}

// TestRecordedLeak: the library recorded the program above, and the mask of each step is
// found, with nothing else.
func TestRecordedLeak(t *testing.T) {
	path := filepath.Join("testdata", "masks.gpumem")
	if *update {
		if err := record(path); err != nil {
			t.Fatal(err)
		}
	}
	anew := filepath.Join(t.TempDir(), "anew.gpumem")
	if err := record(anew); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{path, anew} {
		tr, err := formats.Open(context.Background(), path, trace.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		// Three weights, and in each step a batch, a mask and a loss; all batches are freed
		// and all losses but ten. The end of the program frees the rest, unrecorded.
		if tr.Allocs != 3+3*steps || tr.Events-tr.Allocs != steps+steps-10 {
			t.Errorf("%s: %d events, %d allocations", path, tr.Events, tr.Allocs)
		}
		rep, err := leaks.Find(context.Background(), tr, leaks.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if rep.Verdict != leaks.Leak || len(rep.Leaks) != 1 || rep.Steps == nil || *rep.Steps != steps {
			t.Fatalf("%s: %+v", path, rep)
		}
		p := rep.Leaks[0]
		if !strings.Contains(p.Site, ".mask (recorded_test.go:") || !strings.Contains(p.Stack, ".step (recorded_test.go:") {
			t.Errorf("%s: %s\n%s", path, p.Site, p.Stack)
		}
		if p.Blocks != steps || p.Bytes != steps*maskBytes || p.BytesPerStep == nil || *p.BytesPerStep != maskBytes {
			t.Errorf("%s: %d blocks, %d bytes, %v a step", path, p.Blocks, p.Bytes, *p.BytesPerStep)
		}
	}
}
