// Package story tests the example programs: what they print is compared with a
// file, so that a reader of that file sees what he will get.
package story

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the files that outputs are compared with")

// fullName is a function of an example as the test binary calls it. In the
// program itself its package is "main".
var fullName = regexp.MustCompile(`gpumem/examples/\w+\.`)

// Check runs a program's story and compares it with testdata/output.txt in the
// package's folder. It returns the text.
func Check(t *testing.T, run func(io.Writer) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := run(&b); err != nil {
		t.Fatal(err)
	}
	got := fullName.ReplaceAllString(b.String(), "main.")
	path := filepath.Join("testdata", "output.txt")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test -update writes it)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("other than %s, which go test -update writes anew (-want +got):\n%s", path, diff)
	}
	return got
}
