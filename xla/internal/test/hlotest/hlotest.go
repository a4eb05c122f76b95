// Package hlotest helps tests that work on HLO modules: real modules, comparison of
// modules, shapes from text.
package hlotest

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"gpumem/xla/internal/hlo"
)

// files are the modules of real programs by name. They lie beside the repository; a
// checkout alone has none.
func files() map[string]string {
	_, here, _, _ := runtime.Caller(0)
	list, _ := filepath.Glob(filepath.Join(filepath.Dir(here), "..", "..", "..", "..", "..", "shared", "data", "hlo", "*.hlo.gz"))
	all := map[string]string{}
	for _, file := range list {
		all[strings.TrimSuffix(filepath.Base(file), ".hlo.gz")] = file
	}
	return all
}

// Texts returns the texts of the modules of real programs by name. It skips the test if
// there are none.
func Texts(t testing.TB) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name := range files() {
		all[name] = Text(t, name)
	}
	if len(all) == 0 {
		t.Skip("skipped: no modules of real programs in ../shared/data/hlo beside the checkout")
	}
	return all
}

// Text returns the text of a real program's module. It skips the test if it is not there.
func Text(t testing.TB, name string) string {
	t.Helper()
	f, err := os.Open(files()[name])
	if err != nil {
		t.Skipf("skipped: no module %s in ../shared/data/hlo beside the checkout", name)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Module reads the module of a real program. It skips the test if it is not there.
func Module(t testing.TB, name string) *hlo.Module {
	t.Helper()
	m, err := hlo.ParseString(Text(t, name))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return m
}

// ParseShape reads a shape, such as "f32[2,3]{1,0}" or "(s32[], pred[<=8])".
func ParseShape(text string) (*hlo.Shape, error) {
	m, err := hlo.ParseString("HloModule m\n\nENTRY e {\n  ROOT p = " + text + " parameter(0)\n}\n")
	if err != nil {
		return nil, err
	}
	return m.Entry.Root.Shape, nil
}

// Shape is [ParseShape] that fails the test on an error.
func Shape(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, text string) *hlo.Shape {
	t.Helper()
	s, err := ParseShape(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return s
}
