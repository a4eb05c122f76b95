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

// TestPsOverheadFlags: a flag that has no effect beside another was taken in silence, and a name
// with blanks was taken for one of a device.
func TestPsOverheadFlags(t *testing.T) {
	t.Setenv(share.EnvDir, t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	for _, tc := range []struct {
		args []string
		code int
		errs string
	}{
		{[]string{"--overhead", "--forget-overhead", "x"}, exitUsage, "gpumem: --overhead and --forget-overhead do two things; give one of them\n"},
		{[]string{"--forget-overhead", "x", "--device", "sim:1GiB"}, exitUsage, "gpumem: --forget-overhead forgets a program on every device; leave --device out\n"},
		{[]string{"--forget-overhead", "my", "train.py"}, exitUsage, "gpumem: --forget-overhead takes one name, and got \"my\" and \"train.py\"; put a name with blanks in quotes\n"},
		{[]string{"--overhead", "train.py"}, exitUsage, "gpumem: --overhead lists all programs and takes no words, and got \"train.py\"\n"},
		{[]string{"--forget-overhead", "x"}, exitUsage, "gpumem: forget \"x\": no program of that name was measured; none was\n"},
		{[]string{"--forget-overhead", "all"}, 0, ""},
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), append([]string{"ps"}, tc.args...), &out, &errs); code != tc.code || errs.String() != tc.errs {
			t.Errorf("%q: status %d, stderr %q, want %d, %q", tc.args, code, errs.String(), tc.code, tc.errs)
		}
	}
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"ps", "--overhead", "--device", "sim:1GiB", "--json"}, &out, &errs); code != 0 || bytes.Contains(out.Bytes(), []byte("null")) {
		t.Errorf("status %d, %s%s; a list without elements is []", code, &out, &errs)
	}
}
