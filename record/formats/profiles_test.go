package formats

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"gpumem/record/internal/test/tracetest"
	"gpumem/record/trace"
)

// profiles are what the frameworks wrote for testdata/make_profiles.py.
var profiles = map[string]string{
	"tensorflow.xplane.pb": "xplane",
	"tensorflow.memdump":   "memdump",
	"jax.pprof":            "pprof",
}

// TestProfilesDamaged: a file cut anywhere, one with any byte changed and one
// taken for text give an *Error or a consistent trace, and the last a way out.
func TestProfilesDamaged(t *testing.T) {
	for name, format := range profiles {
		t.Run(name, func(t *testing.T) {
			data := tracetest.Sample(t, name)
			try := func(what string, at int, data []byte) error {
				tr, err := Read(context.Background(), bytes.NewReader(data), "in", trace.Options{Format: format})
				if err != nil {
					if !tracetest.IsInput(err) {
						t.Fatalf("%s %d: %v", what, at, err)
					}
					return err
				}
				defer tr.Close()
				if err := tracetest.CheckTrace(tr); err != nil {
					t.Fatalf("%s %d: %v", what, at, err)
				}
				return nil
			}
			if err := try("whole", 0, data); err != nil {
				t.Fatal(err)
			}
			refused := 0
			for n := range data {
				if try("cut to", n, data[:n]) != nil {
					refused++
				}
				bad := bytes.Clone(data)
				bad[n] ^= 1 << (n % 8)
				try("changed at", n, bad)
			}
			// The end of a field is as good as the end of the file: the format
			// has no other.
			if refused < len(data)*3/4 {
				t.Errorf("only %d of %d cut files were refused", refused, len(data))
			}
			err := try("text", 0, tracetest.TakenForText(data))
			if err == nil || !strings.Contains(err.Error(), "the file was taken for text on its way") {
				t.Errorf("got %v", err)
			}
			_, err = Read(context.Background(), bytes.NewReader(tracetest.TakenForText(data)), "in", trace.Options{}) // recognised nevertheless
			if err == nil || !strings.Contains(err.Error(), "the file was taken for text on its way") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestProfilesCancel: the end of the context ends the reading, also between the
// reading of a file and the end of Open, and nothing is left behind.
func TestProfilesCancel(t *testing.T) {
	for name, format := range profiles {
		if format == "xplane" {
			continue // its package's tests have it
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := Read(ctx, bytes.NewReader(tracetest.Sample(t, name)), "in", trace.Options{Format: format})
		if !errors.Is(err, context.Canceled) || tracetest.IsInput(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestProfilesSource: a source that fails and a temporary folder that is not
// there are told.
func TestProfilesSource(t *testing.T) {
	broken := errors.New("the disk is on fire")
	for name, format := range profiles {
		data := tracetest.Sample(t, name)
		for _, n := range []int{0, 1, 20, len(data) / 2, len(data)} {
			in := io.MultiReader(bytes.NewReader(data[:n]), iotest.ErrReader(broken))
			_, err := Read(context.Background(), in, "in", trace.Options{Format: format})
			if !errors.Is(err, broken) || !tracetest.IsInput(err) {
				t.Errorf("%s after %d bytes: %v", name, n, err)
			}
		}
		_, err := Read(context.Background(), bytes.NewReader(data), "in", trace.Options{SpoolLimit: -1, TempDir: filepath.Join(t.TempDir(), "none")})
		if err == nil || tracetest.IsInput(err) || !strings.Contains(err.Error(), "set TMPDIR") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
