package input

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A named pipe that no program writes to does not hang in silence: the user is told what is
// waited for, once, and an interrupt ends the wait.
func TestPipeWithoutWriterIsTold(t *testing.T) {
	defer func(was time.Duration) { patience = was }(patience)
	patience = time.Millisecond
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	var told []string
	ctx = WithNotice(ctx, func(text string) {
		told = append(told, text)
		cancel(why)
	})
	if _, err := Open(ctx, path, Options{}); !errors.Is(err, why) {
		t.Error(err)
	}
	if len(told) != 1 || told[0] != path+": waiting for a program that writes to it" {
		t.Errorf("%q", told)
	}
	// The open that was left behind ends when a program writes.
	w, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
}

func TestEndOfContextEndsReadingOfPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	both, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer both.Close()
	if _, err := both.WriteString("some"); err != nil {
		t.Fatal(err)
	}
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	r, err := Open(ctx, path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if n, err := r.Read(make([]byte, 10)); n != 4 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	go cancel(why)
	if _, err := r.Read(make([]byte, 10)); !errors.Is(err, why) {
		t.Error(err)
	}
}
