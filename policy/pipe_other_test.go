//go:build !unix

package policy

import "testing"

// makePipe makes a named pipe, and reports whether the system has such.
func makePipe(*testing.T, string) bool { return false }
