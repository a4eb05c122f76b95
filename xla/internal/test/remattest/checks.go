package remattest

import (
	"flag"
	"strconv"
	"testing"
)

// Checks lets rapid make n checks until the test ends, and n/5 with -short. A test that counts what it
// found needs more than rapid's 100: of the 20 that are left with -short none may find anything. A
// larger -rapid.checks stays.
func Checks(t *testing.T, n int) {
	t.Helper()
	f := flag.Lookup("rapid.checks")
	was := f.Value.String()
	if now, err := strconv.Atoi(was); err != nil || now >= n {
		return
	}
	if err := f.Value.Set(strconv.Itoa(n)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Value.Set(was) })
}
