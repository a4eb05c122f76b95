package main

import (
	"errors"
	"strings"
	"testing"

	"gpumem"
	"gpumem/internal/test/story"
)

func TestStory(t *testing.T) { story.Check(t, run) }

func TestFill(t *testing.T) {
	pool, small, err := fill()
	if pool == nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var oom *gpumem.OutOfMemoryError
	if !errors.As(err, &oom) || !errors.Is(err, gpumem.ErrOutOfMemory) {
		t.Fatalf("fill says %v, want an out-of-memory error", err)
	}
	// The point of the story: enough is free, but not in one piece, and the
	// block in the way is one of the small ones.
	if free := oom.Cause.Pool - oom.Cause.Live; free < oom.Request.Bytes {
		t.Errorf("%d bytes are free, less than the %d asked for", free, oom.Request.Bytes)
	}
	pinned := false
	for _, b := range small {
		pinned = pinned || b.Addr == oom.Cause.Pin.Addr
	}
	if !pinned {
		t.Errorf("the block in the way is at %#x, which is none of the small ones", oom.Cause.Pin.Addr)
	}
}

func TestWhole(t *testing.T) {
	var b strings.Builder
	if err := whole(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"RESOURCE_EXHAUSTED: Out of memory", "Why: 200 MiB", "Alive, by who asked for it:", "oom.statistic (main.go:"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the whole report does not say %q", want)
		}
	}
}
