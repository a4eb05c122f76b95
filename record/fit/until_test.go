package fit

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestUntilContextEnds: what knows no context does not hold up the end of one.
func TestUntilContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	forever := make(chan struct{})
	defer close(forever)
	err := until(ctx, func() error { cancel(); <-forever; return nil })
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	failed := errors.New("failed")
	if err := until(t.Context(), func() error { return failed }); err != failed {
		t.Error(err)
	}
}

// TestKeepLeavesNothing: a recording that cannot be copied leaves no part of it.
func TestKeepLeavesNothing(t *testing.T) {
	folder := t.TempDir() // cannot be read as a file
	to := filepath.Join(folder, "record")
	if err := keep(folder, to); err == nil {
		t.Error("no error")
	}
	if _, err := os.Lstat(to); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
