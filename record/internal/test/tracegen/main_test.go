package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// The files that are shipped are those that this program makes.
func TestShipped(t *testing.T) {
	for _, tr := range traces {
		n, err := compare(filepath.Join("..", "..", "..", "..", "examples", tr.name+".txt.gz"), tr.text())
		if err != nil {
			t.Error(err)
		}
		if n > 200*kib {
			t.Errorf("%s is %d bytes long; a shipped trace should have 200 KiB at most", tr.name, n)
		}
	}
	files, err := filepath.Glob("../../../../examples/*.txt.gz")
	if err != nil || len(files) != len(traces) {
		t.Errorf("there are %d traces in %v (%v), and tracegen makes %d", len(files), files, err, len(traces))
	}
}

// A trace begins with what it is, and then is well formed: no block is
// allocated twice or freed when it is not live. (The reader would say so, too,
// but not which generator did it.)
func TestTraces(t *testing.T) {
	for _, tr := range traces {
		text := tr.text()
		if !bytes.Equal(text, tr.text()) {
			t.Errorf("%s: made twice, it differs", tr.name)
		}
		live := map[string]bool{}
		comments := 0
		for i, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
			w := strings.Fields(line)
			switch {
			case w[0] == "#" && len(live) == 0:
				comments++
			case w[0] == "a" && len(w) == 3 && !live[w[1]]:
				live[w[1]] = true
				if n, err := strconv.ParseUint(w[2], 10, 64); err != nil || n == 0 {
					t.Fatalf("%s:%d: %s: the size is wrong", tr.name, i+1, line)
				}
			case w[0] == "f" && len(w) == 2 && live[w[1]]:
				delete(live, w[1])
			default:
				t.Fatalf("%s:%d: %s: not an event that can be here", tr.name, i+1, line)
			}
		}
		if comments == 0 {
			t.Errorf("%s does not say what it imitates", tr.name)
		}
	}
}

func TestCompare(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.txt.gz")
	if _, err := write(path, []byte("a 1 2\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := compare(path, []byte("a 1 2\n")); err != nil {
		t.Errorf("what was just written differs: %v", err)
	}
	if _, err := compare(path, []byte("a 1 3\n")); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("another text: error %v, want one that names the file", err)
	}
	if _, err := compare(path+".no", nil); err == nil {
		t.Error("a missing file is not an error")
	}
	if err := os.WriteFile(path, []byte("not gzip"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := compare(path, nil); err == nil {
		t.Error("a file that is not gzip is not an error")
	}
}

func TestRecorder(t *testing.T) {
	tr := trace{about: "one\ntwo", seed: 1, make: func(r *recorder) {
		q := queue{keep: 2}
		for range 3 {
			q.push(r, r.alloc(8))
		}
		r.free(r.alloc(0)) // an empty request has no block and leaves no event
		r.use(16)
		for range 1000 {
			if n := r.spread(64, 3); n < 64 || n >= 512 || n%4 != 0 {
				t.Fatalf("spread(64, 3) gave %d, want a multiple of 4 from 64 to 511", n)
			}
		}
	}}
	const want = "# one\n# two\na 1 8\na 2 8\na 3 8\nf 1\na 1 16\nf 1\n"
	if got := string(tr.text()); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
