package main

import (
	"bytes"
	"testing"

	"gpumem/node/share"
)

func TestPsOutputFails(t *testing.T) {
	t.Setenv(share.EnvDir, t.TempDir())
	for _, args := range [][]string{{"ps", "--device", "sim:1GiB"}, {"ps", "--device", "sim:1GiB", "--json"}} {
		var errs bytes.Buffer
		if code := run(t.Context(), args, failing{}, &errs); code != exitUsage || errs.String() != "gpumem: no space left\n" {
			t.Errorf("%v: status %d, stderr %q", args, code, errs.String())
		}
	}
	var errs bytes.Buffer
	(&call{errs: &errs}).note("a\nb")
	if errs.String() != "gpumem: a; b\n" {
		t.Errorf("%q", errs.String())
	}
}
