package standin_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"gpumem/internal/test/standin"
)

// TestRuntimeInALibraryIsRedirected: once, by the runtime of its own release alone. A library without
// symbols, and one of a release that has no stand-in, stay as they are.
func TestRuntimeInALibraryIsRedirected(t *testing.T) {
	folder := standin.Library(t)
	scratch := t.TempDir()
	source := filepath.Join("testdata", "static.c")
	compile := func(name string, flags ...string) string {
		to := filepath.Join(scratch, name)
		if out, err := exec.Command("gcc", append(flags, "-O1", "-Wall", "-o", to, source, "-ldl")...).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, out)
		}
		return to
	}
	program := compile("program", "-DPROGRAM")
	for _, tc := range []struct {
		name  string
		flags []string
		want  string // for the runtimes of 12 and 13: of the first call, the second; then what the library finds
	}{
		{"12", []string{"-DRELEASE=12"}, "1 0 0 0 111\n"},
		{"13", []string{"-DRELEASE=13"}, "0 0 1 0 111\n"},
		{"11", []string{"-DRELEASE=11"}, "0 0 0 0 1\n"},
		{"stripped", []string{"-DRELEASE=13", "-s"}, "0 0 0 0 1\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			library := compile("lib"+tc.name+".so", append(tc.flags, "-shared", "-fPIC")...)
			c := exec.Command(program, library, filepath.Join(folder, "libcudart.so.12"), filepath.Join(folder, "libcudart.so.13"))
			c.Env = standin.Environ(folder, "GPUMEM_DEVICE=sim:1GiB")
			if out, err := c.CombinedOutput(); err != nil || string(out) != tc.want {
				t.Errorf("%v: %q; want %q", err, out, tc.want)
			}
		})
	}
}
