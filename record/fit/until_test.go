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

func TestIsBinaryModule(t *testing.T) {
	for head, want := range map[string]bool{
		"\x0a\x04step\x12\x04main\x1a":                     true,
		"\x0a\xff\x7f\x0a\x04step\x12\x04main\x1a":         true, // in a message that is longer than the head
		"\x0a\x04step\x1a\x04main":                         false,
		"\x0a\x04st\x01p\x12\x04main":                      false,
		"\x0a\x7fstep":                                     false,
		"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01": false,
		"\x0a":      false,
		"":          false,
		"HloModule": false,
	} {
		if got := isBinaryModule([]byte(head)); got != want {
			t.Errorf("%q: %v", head, got)
		}
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
