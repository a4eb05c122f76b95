//go:build unix

package policy

import (
	"syscall"
	"testing"
)

// makePipe makes a named pipe, and reports whether the system has such.
func makePipe(t *testing.T, path string) bool {
	t.Helper()
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return true
}
