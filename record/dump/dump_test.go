package dump_test

// What Read understands.

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	"gpumem/alloc"
	"gpumem/internal/test/bfcdump"
	"gpumem/record/dump"
	"gpumem/size"
)

// TestRoundTrip dumps pools of 100,000 chunks in each form and reads them back.
func TestRoundTrip(t *testing.T) {
	const limit = 1 << 30
	for _, tc := range []struct {
		name string
		cfg  config
	}{
		{"fixed", config{Limit: limit}},
		{"growing", config{Limit: limit, Growth: true}},
		{"partitioned", config{Limit: limit, Spatial: true}},
		{"2025", config{Limit: limit, Report2025: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := fill(t, tc.cfg, 130_000, 1, small)
			chunks, inUse, largest := want(a)
			if len(chunks) < 90_000 {
				t.Fatalf("%d chunks", len(chunks))
			}
			check := func(d *dump.Dump, chunks []dump.Chunk) {
				t.Helper()
				if !d.Complete || d.InUse != inUse || d.Pool != a.Stats().PoolBytes {
					t.Errorf("in use %d of %d, want %d of %d; notes %q", d.InUse, d.Pool, inUse, a.Stats().PoolBytes, d.Notes)
				}
				if !slices.Equal(all(d), chunks) {
					t.Error("other chunks")
				}
			}
			check2 := func(d *dump.Dump) {
				t.Helper()
				plain := make([]dump.Chunk, len(chunks))
				for i, c := range chunks {
					c.Requested = 0
					if tc.cfg.Report2025 {
						c.Tag = dump.Unknown
					}
					plain[i] = c
				}
				check(d, plain)
				if d.LargestFree != largest {
					t.Errorf("largest %d, want %d", d.LargestFree, largest)
				}
			}
			report := a.Report(alloc.Request{Bytes: 2 << 30}).String()
			check2(read(t, report))
			check2(read(t, prefixed(report, "\n")))
			check2(read(t, prefixed(report, "\r\n")))

			d := read(t, string(bfcdump.Marshal(a)))
			for i := range chunks {
				chunks[i].Tag = dump.Unknown
			}
			check(d, chunks)
		})
	}
}

// TestForms reads the texts of older releases.
func TestForms(t *testing.T) {
	a := fill(t, config{Limit: 1 << 24, Report2025: true}, 300, 2, small)
	report := a.Report(alloc.Request{Bytes: 1 << 30}).String()
	chunks, inUse, largest := want(a)
	for i := range chunks {
		chunks[i].Requested, chunks[i].Tag = 0, dump.Unknown
	}
	for _, f := range forms {
		t.Run(f.name, func(t *testing.T) {
			d := read(t, prefixed(f.make(report), "\n"))
			if !d.Complete || d.InUse != inUse || d.LargestFree != largest || d.Pool != 1<<24 || d.Limit != 1<<24 {
				t.Errorf("in use %d, largest %d, pool %d, limit %d, notes %q", d.InUse, d.LargestFree, d.Pool, d.Limit, d.Notes)
			}
			if diff := cmp.Diff(chunks, all(d)); diff != "" {
				t.Error(diff)
			}
			if d.Request.Bytes != 1<<30 || d.Allocator != "GPU_0_bfc" {
				t.Errorf("%q refused %+v", d.Allocator, d.Request)
			}
		})
	}
}

func TestNames(t *testing.T) {
	d := read(t, `Next region of size 2048
InUse at 7f00 of size 512 tag lower allocation_annotation jit_step{op=dot.3, id=7} / fusion{} next 1 freed_at_count 4
InUse at 0x8100 next 3 of size 256 by op Conv2D action_count 5 step 1
InUse at 8200 of size 256 by op MatMul action_count 5 step 1 next 3
Free  at 8300 of size 1024 tag upper next 18446744073709551615
Sum Total of in-use chunks: 1.0KiB
`)
	var got []string
	for _, c := range all(d) {
		got = append(got, d.Name(c.Name))
	}
	if diff := cmp.Diff([]string{"jit_step{op=dot.3, id=7} / fusion{}", "Conv2D", "MatMul", ""}, got); diff != "" {
		t.Error(diff)
	}
	if !d.Complete || all(d)[3].Tag != dump.Upper || d.Name(99) != "" {
		t.Errorf("%+v", d)
	}
	if s := strings.Join(d.Summary(60, 40), "\n"); !strings.Contains(s, "Conv2D") {
		t.Error(s)
	}
}

// TestBinaryNames: a debug build writes op names, and fields that we skip.
func TestBinaryNames(t *testing.T) {
	var c, m []byte
	for _, f := range []struct {
		num protowire.Number
		v   uint64
	}{{1, 4096}, {2, 512}, {3, 300}, {8, 1}, {9, 77}} {
		c = protowire.AppendTag(c, f.num, protowire.VarintType)
		c = protowire.AppendVarint(c, f.v)
	}
	c = protowire.AppendTag(c, 5, protowire.BytesType)
	c = protowire.AppendString(c, "Relu")
	m = protowire.AppendTag(m, 3, protowire.BytesType)
	m = protowire.AppendBytes(m, c)
	m = protowire.AppendTag(m, 4, protowire.BytesType)
	m = protowire.AppendBytes(m, make([]byte, 100_000))
	m = protowire.AppendTag(m, 5, protowire.BytesType)
	m = protowire.AppendBytes(m, []byte{2 << 3, 0x80, 0x04})
	d := read(t, string(m))
	cs := all(d)
	if !d.Complete || len(cs) != 1 || d.Name(cs[0].Name) != "Relu" || cs[0].Requested != 300 {
		t.Errorf("%+v", d)
	}
}

// TestNotes: what is missing is said.
func TestNotes(t *testing.T) {
	const whole = `Next region of size 1024
InUse at 1000 of size 512 next 1
Free  at 1200 of size 512 next 2
1 Chunks of size 512 totalling 512B
Sum Total of in-use chunks: 512B
`
	for _, tc := range []struct {
		name, text, note string
		inUse            uint64
	}{
		{"whole", whole, "", 512},
		{"no sum", whole[:strings.Index(whole, "Sum")], "cut off", 512},
		{"a line lost", strings.Replace(whole, "InUse at 1000 of size 512 next 1\n", "", 1), "sums by size", 512},
		{"a hole lost", strings.Replace(whole, "Free  at 1200 of size 512 next 2\n", "", 1), "tile", 512},
		{"another sum", strings.Replace(whole, "chunks: 512B", "chunks: 2.0KiB", 1), "sum is", 512},
		{"a leap", strings.Replace(whole, "1200", "1300", 1), "leaps in address: 1", 512},
		{"no region line", whole[strings.Index(whole, "InUse"):], "", 512},
		{"sums by size only", whole[strings.Index(whole, "1 Chunks"):], "no chunk lines", 512},
		{"half a line", whole[:strings.Index(whole, " next 2")], "cut off", 512},
		{"a size past 2^64", strings.Replace(whole, "of size 512 next 2", "of size 99999999999999999999 next 2", 1), "could not be read: 1", 512},
		{"an address that wraps", strings.Replace(whole, "1200", "ffffffffffffffff", 1), "could not be read: 1", 512},
		{"two dumps", whole + whole, "line 6", 512},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := read(t, tc.text)
			notes := strings.Join(d.Notes, "\n")
			if d.InUse != tc.inUse || !strings.Contains(notes, tc.note) || tc.note == "" && notes != "" {
				t.Errorf("in use %d, notes %q", d.InUse, d.Notes)
			}
		})
	}
}

// TestWhich: the last whole dump of several.
func TestWhich(t *testing.T) {
	log := string(goldenFile(t, "oom_small.prealloc.log"))
	cut := log[:strings.LastIndex(log, "Sum Total")]
	d := read(t, cut)
	if d.Request.Rounded != 700160 || !d.Complete || d.Dumps != 2 {
		t.Errorf("%+v", d)
	}
}

func TestErrors(t *testing.T) {
	broken := errors.New("the disk broke")
	for _, tc := range []struct {
		name, text string
	}{
		{"empty", ""},
		{"a log without a dump", "W Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB with freed_by_count=0.\n"},
		{"a refusal alone", "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB (rounded to 2147483648)requested by op x\n"},
		{"a region alone", "Next region of size 4096\n"},
		{"newline and text", "\n\tsome text\x12"},
		{"a name alone", "\n\x09GPU_0_bfc"},
		{"not a message", "\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"},
		{"one long line", strings.Repeat("x", 1<<20)},
	} {
		if _, err := dump.Read(strings.NewReader(tc.text)); !errors.Is(err, dump.ErrNone) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	for _, head := range []string{"", "some log\n", "\n\x09GPU_0_bfc\x12\x02\x08\x01"} {
		r := bytes.NewReader([]byte(head))
		_, err := dump.Read(&failing{r, broken})
		if !errors.Is(err, broken) {
			t.Errorf("%q: %v", head, err)
		}
	}
}

type failing struct {
	r   *bytes.Reader
	err error
}

func (f *failing) Read(p []byte) (int, error) {
	if f.r.Len() == 0 {
		return 0, f.err
	}
	return f.r.Read(p)
}

// TestCut: a dump that breaks off anywhere is read as far as it goes, and is
// never taken for a whole one with other numbers.
func TestCut(t *testing.T) {
	a := fill(t, config{Limit: 1 << 22}, 100, 3, small)
	_, inUse, _ := want(a)
	whole := []string{
		a.Report(alloc.Request{Bytes: 1 << 30}).String(),
		string(bfcdump.Marshal(a)),
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom(whole).Draw(t, "form")
		from := rapid.OneOf(rapid.Just(0), rapid.IntRange(0, len(text))).Draw(t, "from")
		to := rapid.IntRange(from, len(text)).Draw(t, "to")
		d, err := dump.Read(iotest.OneByteReader(strings.NewReader(text[from:to])))
		if err != nil {
			if !errors.Is(err, dump.ErrNone) {
				t.Fatal(err)
			}
			return
		}
		if d.Complete && d.InUse != inUse {
			t.Fatalf("complete with %d in use, want %d", d.InUse, inUse)
		}
		if s := d.Summary(80, 40); len(s) > 40 {
			t.Fatalf("%d lines", len(s))
		}
	})
}

// TestLongLines: annotations longer than a buffer cost the end of their line,
// not the dump.
func TestLongLines(t *testing.T) {
	d := read(t, "InUse at 1000 of size 256 tag lower allocation_annotation "+strings.Repeat("a{b=c} / ", 20_000)+" next 1\n"+
		"Sum Total of in-use chunks: 256B\n")
	if !d.Complete || len(d.Name(1)) != 200 {
		t.Errorf("%+v", d)
	}
}

// TestManyNames: names past the first 65,536 share one.
func TestManyNames(t *testing.T) {
	var b strings.Builder
	const n = 70_000
	for i := range n {
		fmt.Fprintf(&b, "InUse at %x of size 256 by op layer%d next 1\n", 4096+256*i, i)
	}
	fmt.Fprintf(&b, "Sum Total of in-use chunks: %s\n", size.XLA(256*n))
	d := read(t, b.String())
	cs := all(d)
	first, last := d.Name(cs[0].Name), d.Name(cs[n-1].Name)
	if !d.Complete || first != "layer0" || last != "(other names)" || d.Name(cs[n-1].Name+1) != "" {
		t.Errorf("first %q, last %q, notes %q", first, last, d.Notes)
	}
	if s := d.Summary(80, 40); len(s) > 40 || !strings.Contains(strings.Join(s, "\n"), "(other names)") {
		t.Errorf("%q", s)
	}
}

// TestBinaryDamage: what precedes the damage is kept, and said.
func TestBinaryDamage(t *testing.T) {
	whole := string(goldenFile(t, "oom_small.prealloc.memdump.pb"))
	for _, tc := range []struct{ name, tail, note string }{
		{"whole", "", ""},
		{"half a field", "\x1a\x10\x08", "breaks off"},
		{"half a length", "\x1a\x80", "breaks off"},
		{"a number where messages are", "\x18\x01", "damaged"},
		{"a varint of 11 bytes", strings.Repeat("\xff", 11), "damaged"},
		{"a chunk of 0 bytes", "\x1a\x02\x08\x01", "damaged"},
		{"a chunk that is no message", "\x1a\x01\xff", "damaged"},
		{"a bin that is no message", "\x12\x01\x08", "damaged"},
		{"statistics that are no message", "\x2a\x02\x0a\x09", "damaged"},
		{"a chunk of 2^40 bytes", "\x1a\x80\x80\x80\x80\x80\x20", "damaged"},
		{"other statistics", "\x2a\x02\x10\x05", "the statistics say 5 B"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := read(t, whole+tc.tail)
			notes := strings.Join(d.Notes, "\n")
			if d.InUse != 264192 || len(all(d)) != 9 || !strings.Contains(notes, tc.note) || (tc.note == "") != d.Complete {
				t.Errorf("in use %d, notes %q", d.InUse, notes)
			}
		})
	}
}

func TestTag(t *testing.T) {
	if dump.Central.String() != "central_gap" || dump.Unknown.String() != "" || dump.Tag(99).String() != "" {
		t.Error("tag names")
	}
}

// TestNoChunks: without chunk lines the statistics say what is free.
func TestNoChunks(t *testing.T) {
	log := string(goldenFile(t, "oom_small.prealloc.log"))
	var b strings.Builder
	for line := range strings.Lines(log) {
		if !strings.Contains(line, " tag lower ") && !strings.Contains(line, "Next region") {
			b.WriteString(line)
		}
	}
	d := read(t, b.String())
	if d.InUse != 264192 || d.Pool != 1<<20 || d.LargestFree < 406<<10 || d.LargestFree >= 407<<10 || d.Complete {
		t.Errorf("%+v", d)
	}
}

func FuzzRead(f *testing.F) {
	for _, name := range []string{"oom_small.growth.log", "oom_small.growth.2025.log", "oom_small.prealloc.memdump.pb"} {
		f.Add(goldenFile(f, name))
	}
	a := fill(f, config{Limit: 1 << 20, Spatial: true}, 20, 4, func(r *rand.Rand) uint64 { return 1 + r.Uint64N(100_000) })
	f.Add([]byte(prefixed(a.Report(alloc.Request{Bytes: 1 << 30}).String(), "\r\n")))
	f.Fuzz(func(t *testing.T, in []byte) {
		d, err := dump.Read(bytes.NewReader(in))
		if err != nil {
			if !errors.Is(err, dump.ErrNone) {
				t.Fatal(err)
			}
			return
		}
		if s := d.Summary(80, 40); len(s) > 40 {
			t.Fatalf("%d lines", len(s))
		}
		if x := d.Fragmentation(); x < 0 || x > 1 {
			t.Fatal(x)
		}
		if err := d.Trace(&bytes.Buffer{}); err != nil {
			t.Fatal(err)
		}
	})
}
