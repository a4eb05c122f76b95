package dump_test

import (
	"compress/gzip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/record/dump"
)

// sample reads a dump of a file of record/trace/testdata.
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
// 18,300,000 bytes were live (record/trace/testdata/README.md). Its log and its binary dump have
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
		if d.LargestFree >= 2_100_000 || d.LargestFree == 0 {
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

// The printed digits of a limit may be those of a pool that has taken all of it: then the
// limit is the pool, to the byte. One unit more is another limit.
func TestLimitOfAFullPool(t *testing.T) {
	for limit, want := range map[string]uint64{
		"1.0MiB": 1<<20 + 256,
		"1.2MiB": 1258291, // 1.2 * 2^20
	} {
		d := read(t, `Next region of size 1048832
InUse at 7f0000000000 of size 1048832 next 18446744073709551615
     Summary of in-use Chunks by size:
1 Chunks of size 1048832 totalling 1.0MiB
Sum Total of in-use chunks: 1.0MiB
Allocator memory summary: pool size 1.0MiB, pool limit `+limit+`
`)
		if d.Limit != want || d.Pool != 1<<20+256 {
			t.Errorf("limit %s is %d of a pool of %d, want %d", limit, d.Limit, d.Pool, want)
		}
	}
}

// Of several dumps that are all cut off, the last is returned.
func TestLastOfSeveralIncompleteDumps(t *testing.T) {
	const head = "Next region of size 2048\n"
	d := read(t, head+"InUse at 100 of size 1024 next 2\n"+head+"InUse at 100 of size 512 next 2\n"+head+"InUse at 100 of size 256 next 2\nSum Total of in-use chunks: 9B\n"+
		"Allocator (p) ran out of memory trying to allocate 1B (rounded to 256)\n"+head+"InUse at 100 of size 768 next 2\n")
	if d.Complete || d.InUse != 768 || d.Dumps != 2 || d.Line != 8 {
		t.Errorf("%d bytes in use at line %d of %d dumps, complete %v", d.InUse, d.Line, d.Dumps, d.Complete)
	}
}

// Chunks that overlap are of one region, which is not whole.
func TestOverlappingChunks(t *testing.T) {
	d := read(t, "Chunk at 0x1000 of size 512\nChunk at 0x1100 of size 256\nChunk at 0x8000 of size 256\nSum Total of in-use chunks: 1.0KiB\n")
	if len(d.Regions) != 2 || len(d.Regions[0].Chunks) != 2 || d.Complete || !strings.Contains(strings.Join(d.Notes, "\n"), "leaps in address: 1") {
		t.Errorf("%+v, complete %v, notes %q", d.Regions, d.Complete, d.Notes)
	}
}
