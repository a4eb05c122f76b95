package main

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"gpumem/node/share"
)

// TestTopOnce: without a terminal it looks once.
func TestTopOnce(t *testing.T) {
	t.Setenv(share.EnvDir, t.TempDir())
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // a device, and no terminal
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	var out, errs bytes.Buffer
	for _, tc := range []struct {
		stdout io.Writer
		args   []string
	}{{&out, nil}, {&out, []string{"--once"}}, {null, nil}, {&out, []string{"--json"}}} {
		out.Reset()
		if code := run(t.Context(), append([]string{"top", "--device", "sim:24GiB"}, tc.args...), tc.stdout, &errs); code != 0 || errs.Len() > 0 {
			t.Errorf("%v: %d, %s", tc.args, code, errs.String())
		}
		if tc.stdout == &out && !strings.Contains(out.String(), "sim:24GiB") {
			t.Errorf("%v: %s", tc.args, out.String())
		}
	}
	for _, args := range [][]string{{"top", "--device", "sim:1GiB"}, {"top", "--device", "sim:1GiB", "--json"}} {
		errs.Reset()
		if code := run(t.Context(), args, failing{}, &errs); code != exitUsage || errs.String() != "gpumem: no space left\n" {
			t.Errorf("%v: status %d, stderr %q", args, code, errs.String())
		}
	}
}
