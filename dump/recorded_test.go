package dump_test

import (
	"compress/gzip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/dump"
)

// sample reads a dump of a file of trace/testdata.
func sample(t *testing.T, name string) *dump.Dump {
	t.Helper()
	f, err := os.Open("../trace/testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if name != "jax092.log.gz" {
		d, err := dump.Read(f)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	d, err := dump.Read(z)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestOneRefusalInLogAndFile: JAX 0.9.2 refused 2,100,000 bytes while 14 arrays of
// 18,300,000 bytes were live (trace/testdata/README.md). Its log and its binary dump have
// the same chunks, and each is complete.
func TestOneRefusalInLogAndFile(t *testing.T) {
	text, file := sample(t, "jax092.log.gz"), sample(t, "jax092.memdump")
	for name, d := range map[string]*dump.Dump{"log": text, "file": file} {
		live, requested := 0, uint64(0)
		for c := range d.Chunks {
			if c.Live {
				live++
				requested += c.Requested
				// The pool gives a whole chunk that is less than twice the request.
				if name == "file" && (c.Requested == 0 || c.Size < c.Requested || c.Size >= 2*(c.Requested+dump.MinAllocation)) {
					t.Errorf("file: a chunk of %d bytes for a request of %d", c.Size, c.Requested)
				}
			}
		}
		if !d.Complete || len(d.Notes) > 0 || live != 14 || d.Allocator != "GPU_0_bfc" {
			t.Errorf("%s: %s has %d live chunks, complete %v, notes %q", name, d.Allocator, live, d.Complete, d.Notes)
		}
		if name == "file" && requested != 18_300_000 {
			t.Errorf("file: %d bytes were requested", requested)
		}
		if d.InUse < 18_300_000 || d.InUse > d.Pool || d.Pool > 20_000_000 {
			t.Errorf("%s: %d bytes in use of %d", name, d.InUse, d.Pool)
		}
		if d.Fits(2_100_000) || !d.Fits(d.LargestFree) || d.LargestFree == 0 {
			t.Errorf("%s: what was refused fits, or the largest free chunk of %d bytes does not", name, d.LargestFree)
		}
	}
	// 2,100,000 is 8203 units of 256 bytes and 32 more. The log has 2.00MiB.
	if r := text.Request; r.Rounded != 8204*256 || r.Bytes != 2<<20 {
		t.Errorf("the log's request is %+v", r)
	}
	type chunk struct {
		Addr, Size uint64
		Live       bool
	}
	list := func(d *dump.Dump) (all []chunk) {
		for c := range d.Chunks {
			all = append(all, chunk{c.Addr, c.Size, c.Live})
		}
		return all
	}
	if d := cmp.Diff(list(file), list(text)); d != "" {
		t.Errorf("the log's chunks (-file +log)\n%s", d)
	}
}
