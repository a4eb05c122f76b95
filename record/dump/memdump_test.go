package dump_test

// Pool dumps: made here, and one that TensorFlow wrote.

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	"gpumem/internal/input"
	"gpumem/record/dump"
	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
)

var memdump = tape.Formats{tape.Text, dump.Format}

// chunkOf is one chunk of a dump. What is 0 is left out, as proto3 does.
func chunkOf(addr, size, requested, action uint64, op string, used bool) tracetest.PB {
	var m tracetest.PB
	for i, v := range []uint64{addr, size, requested} {
		if v != 0 {
			m = m.Num(protowire.Number(1+i), v)
		}
	}
	m = m.Num(4, ^uint64(0)) // bin -1
	if op != "" {
		m = m.Text(5, op)
	}
	if action != 0 {
		m = m.Num(7, action)
	}
	if used {
		m = m.Num(8, 1)
	}
	return m
}

const (
	noteDump = "a dump is one instant, when a request was refused: %s in use (%d bytes) %s allocated in the order of the %s, and nothing is freed; the request itself is not in the dump"
	noteFree = "%s between them (%d bytes) %s left out"
)

func TestMemDump(t *testing.T) {
	head := tracetest.PB{}.Text(1, "GPU_0_bfc").Bytes(2, tracetest.PB{}.Num(1, 3).Num(5, 2))
	for _, c := range []struct {
		name  string
		data  tracetest.PB
		want  string
		notes []string
	}{
		{"a release", head.Bytes(3, chunkOf(0x300, 256, 0, 0, "", false)).Bytes(3, chunkOf(0x100, 256, 100, 0, "", true)).Bytes(3, chunkOf(0x200, 256, 256, 0, "", true)).Bytes(5, tracetest.PB{}.Num(1, 2)),
			"GPU_0_bfc: 0 seeds\na 0 100 \na 1 256 \n",
			[]string{fmt.Sprintf(noteDump, "2 chunks", 356, "are", "addresses"), fmt.Sprintf(noteFree, "1 free chunk", 256, "is")}},
		{"a debug build", head.Bytes(3, chunkOf(0x100, 256, 100, 7, "MatMul", true)).Bytes(3, chunkOf(0x200, 256, 256, 5, "UNKNOWN", true)).Bytes(4, tracetest.PB{}.Num(1, 5).Num(2, 256)).Bytes(4, nil),
			"GPU_0_bfc: 0 seeds\na 0 256 \na 1 100 MatMul\n",
			[]string{fmt.Sprintf(noteDump, "2 chunks", 356, "are", "allocations"), "2 sizes of the pool over time are left out: they name no blocks"}},
		{"no request", head.Bytes(3, chunkOf(0x100, 512, 0, 0, "", true)),
			"GPU_0_bfc: 0 seeds\na 0 512 \n",
			[]string{fmt.Sprintf(noteDump, "1 chunk", 512, "is", "addresses")}},
		{"name is not text", tracetest.PB{}.Text(1, "a\n\xff").Bytes(3, chunkOf(0x100, 512, 1, 0, "x\ny", true)),
			"a ?: 0 seeds\na 0 1 x y\n",
			[]string{fmt.Sprintf(noteDump, "1 chunk", 1, "is", "addresses")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := tracetest.MustRead(t, memdump, c.data, tape.Options{Format: "memdump"})
			if err := tracetest.CheckTrace(tr); err != nil {
				t.Error(err)
			}
			got, err := tracetest.ShowBlocks(tr, tr.Pools[0])
			if d := gocmp.Diff(c.want, got); d != "" || err != nil {
				t.Errorf("%v (-want +got)\n%s", err, d)
			}
			if d := gocmp.Diff(c.notes, tr.Notes); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
	const again = "; copy the file again"
	for _, c := range []struct {
		name string
		data tracetest.PB
		want string
	}{
		{"nothing in use", head.Bytes(3, chunkOf(0x100, 256, 0, 0, "", false)), "in: the dump has no chunk in use, so there is nothing to replay"},
		{"chunk breaks off", head.Bytes(3, tracetest.PB{8}), "in: byte 17: damaged: a chunk that does not end where it should, or with a size that cannot be" + again},
		{"size below 0", head.Bytes(3, chunkOf(1, ^uint64(0), 1, 0, "", true)), "in: byte 17: damaged: a chunk that does not end where it should, or with a size that cannot be" + again},
		{"request below 0", head.Bytes(3, chunkOf(1, 1, ^uint64(0), 0, "", true)), "in: byte 17: damaged: a chunk that does not end where it should, or with a size that cannot be" + again},
		{"a long name", tracetest.PB{}.Text(1, strings.Repeat("x", input.MaxLine+1)), "in: damaged: a name of 65537 bytes; it does not begin as a file of this format does, so let the format be recognised"},
		{"chunk is a number", head.Num(3, 1), "in: byte 17: damaged: field 3 is of the kind 0 instead of 2" + again},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := memdump.Read(context.Background(), bytes.NewReader(c.data), "in", tape.Options{Format: "memdump"})
			tracetest.WantInputError(t, err, c.want)
		})
	}
}

// TestMemDumpModel: the chunks in use, in the order of actions and addresses.
func TestMemDumpModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type chunk struct{ addr, size, requested, action uint64 }
		data := tracetest.PB{}.Text(1, "p")
		var want []chunk
		for i := range rapid.IntRange(1, 30).Draw(t, "chunks") {
			c := chunk{uint64(i+1) << 8, 256, rapid.Uint64Range(1, 256).Draw(t, "bytes"), rapid.Uint64Range(0, 5).Draw(t, "action")}
			used := i == 0 || rapid.Bool().Draw(t, "used")
			if used {
				want = append(want, c)
			}
			data = data.Bytes(3, chunkOf(c.addr, c.size, c.requested, c.action, "", used))
		}
		slices.SortFunc(want, func(a, b chunk) int { return cmp.Or(cmp.Compare(a.action, b.action), cmp.Compare(a.addr, b.addr)) })
		tr, err := memdump.Read(context.Background(), bytes.NewReader(data), "in", tape.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		if err := tracetest.CheckTrace(tr); err != nil {
			t.Fatal(err)
		}
		evs, err := tracetest.EventsOf(tr.Pools[0], 7)
		if err != nil || len(evs) != len(want) {
			t.Fatalf("%d events, want %d; %v", len(evs), len(want), err)
		}
		for i, e := range evs {
			if e.Op != tape.Alloc || e.Bytes != want[i].requested {
				t.Fatalf("%d: %+v, want %+v", i, e, want[i])
			}
		}
	})
}

// TestMemDumpTensorFlow: blocks of 400,000 bytes times 1, 3, 5 and so on, with
// those between freed; the statistics in the file have the sums.
func TestMemDumpTensorFlow(t *testing.T) {
	tr := tracetest.MustRead(t, memdump, tracetest.Sample(t, "tensorflow.memdump"), tape.Options{})
	if err := tracetest.CheckTrace(tr); err != nil {
		t.Error(err)
	}
	p := tr.Pools[0]
	if tr.Format != "memdump" || p.Name != "bfc_cpu_allocator_for_gpu" || p.Allocs != p.Events || p.Streams != 1 {
		t.Fatalf("%+v", p)
	}
	sizes := map[uint64]bool{}
	for _, e := range tracetest.Events(t, p, 5) {
		sizes[e.Bytes] = true
	}
	for n := uint64(1); n < 20; n++ {
		if sizes[n*400_000] != (n%2 == 1) {
			t.Errorf("a block of %d bytes: %v", n*400_000, sizes[n*400_000])
		}
	}
	if p.EndLive < 40_000_000 || p.EndLive > 41_000_000 {
		t.Errorf("%d bytes", p.EndLive)
	}
}

// FuzzMemDump: any bytes give a consistent trace or an *Error.
func FuzzMemDump(f *testing.F) {
	f.Add(tracetest.Sample(f, "tensorflow.memdump"))
	f.Add([]byte(tracetest.PB{}.Text(1, "GPU_0_bfc").Bytes(3, chunkOf(0x100, 256, 100, 7, "MatMul", true)).Bytes(4, tracetest.PB{}.Num(1, 5))))
	f.Fuzz(func(t *testing.T, in []byte) { tracetest.FuzzRead(t, memdump, in, "memdump") })
}
