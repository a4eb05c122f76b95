package doctor_test

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"testing"

	"gpumem/doctor"
	"gpumem/record/formats"
	"gpumem/record/trace"
)

// What a damaged file adds up to more than there can be is not little.
func TestBesideOverflow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.txt")
	if err := os.WriteFile(path, []byte("a x 9223372036854775807\na y 9223372036854775807\na z 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := formats.Open(context.Background(), path, trace.Options{})
	if err != nil {
		t.Skip(err) // refused is as good
	}
	defer r.Close()
	b, err := doctor.ReadBeside(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	if b.Live != math.MaxUint64 {
		t.Errorf("%d bytes are live, want them to be held at the most there is", b.Live)
	}
}

// A file of several GPUs says of one GPU what its own pool holds.
func TestBesideSeveral(t *testing.T) {
	r, err := formats.Open(context.Background(), "../record/trace/testdata/jax.pprof", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := doctor.ReadBeside(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Pools) < 2 || b.Most == 0 || b.Most >= b.Live {
		t.Errorf("%d pools, %d of %d bytes in the largest", len(r.Pools), b.Most, b.Live)
	}
}
