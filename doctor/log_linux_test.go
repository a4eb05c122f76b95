package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestPipe: a named pipe that nobody writes to does not hold up an
// interrupt, neither when it is opened nor when it is read.
func TestPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go cancel()
	if _, err := openLog(ctx, path, "a log", nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	both, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer both.Close()
	if _, err := both.WriteString("some"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	l, err := openLog(ctx, path, "a log", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if n, err := l.Read(make([]byte, 10)); n != 4 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	go cancel()
	if _, err := l.Read(make([]byte, 10)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestNoEndOfALine: a device without an end is no text.
func TestNoEndOfALine(t *testing.T) {
	if _, err := Read(t.Context(), "/dev/zero", nil, nil, nil); err == nil || !strings.Contains(err.Error(), "this is no text") {
		t.Error(err)
	}
}
