package logs

// The allocator's lines in the logs of XLA and TensorFlow.

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
)

func TestMemDebugSample(t *testing.T) {
	tr := mustRead(t, tracetest.Sample(t, "memdebug.log"), tape.Options{})
	const want = `GPU_0_bfc: 1 seeds, 1 streams, peak 34359739392, end 1024 in 1
a 1 4096
a 0 1024
f 1 at=1999900000
a 1 34359738368 refused at=2999900000
gpu_host_bfc: 0 seeds, 1 streams, peak 64, end 0 in 0
a 0 64 at=100000
f 0 at=3999900000
`
	if d := cmp.Diff(want, tracetest.ShowPools(t, tr)); d != "" {
		t.Error(d)
	}
	notes := []string{
		"GPU_0_bfc: 1 block older than the recording (4 KiB) is allocated at its start, in the order of the addresses; known from the frees",
		"GPU_0_bfc: the recorded run was refused 1 request: 32 GiB (line 13)",
		"10 lines without an allocation or a free; skipped",
	}
	if d := cmp.Diff(notes, tr.Notes); d != "" {
		t.Error(d)
	}
	if tr.Format != "memdebug" || !tr.Timed || tr.PeakLive != 1024+32<<30+64 {
		t.Errorf("format %q, timed %v, peak %d", tr.Format, tr.Timed, tr.PeakLive)
	}
	if err := tracetest.CheckTrace(tr); err != nil {
		t.Error(err)
	}
}

// line is one of the allocator's, without a prefix.
func memLine(prefix, what string) string { return prefix + memDebug + " " + what + ",*** Begin\n" }

func TestMemDebug(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"no prefix, no times", memLine("", "AllocateRaw,x,5,0x1") + memLine("", "DeallocateRaw,x,5,0x1"), "a 0 5\nf 0\n"},
		{"(nil) and a capital X", memLine("", "AllocateRaw,x,0,(nil)") + memLine("", "AllocateRaw,x,5,0X1F"), "a 0 5\n"},
		{"freeing nothing", memLine("", "DeallocateRaw,x,0,0x0") + memLine("", "AllocateRaw,x,5,0x1"), "a 0 5\n"},
		{"glog", memLine("I0228 23:59:59.000001 7 x.cc:1] ", "AllocateRaw,x,5,0x1") + memLine("I0301 00:00:00.000001 7 x.cc:1] ", "DeallocateRaw,x,5,0x1"),
			fmt.Sprintf("a 0 5\nf 0 at=%d\n", uint64((86400+1)*1e9))}, // 2000 has the 29th of February
		{"glog over the year", memLine("W1231 23:59:59 7 x.cc:1] ", "AllocateRaw,x,5,0x1") + memLine("I0101 00:00:01 7 x.cc:1] ", "DeallocateRaw,x,5,0x1"),
			"a 0 5\nf 0 at=2000000000\n"},
		{"Abseil before it knows the time", memLine("I0000 00:00:1767268800.500000   12 x.cc:1] ", "AllocateRaw,x,5,0x1") + memLine("I0000 00:00:1767268801.750000   12 x.cc:1] ", "DeallocateRaw,x,5,0x1"),
			"a 0 5\nf 0 at=1250000000\n"},
		{"nothing but a refusal", memLine("", "AllocateRaw,x,5,0"), "a 0 5 refused\n"},
		{"other prefixes", memLine("[rank 3] [2026-01-01 12:00:00] ", "AllocateRaw,x,5,0x1") + memLine("I00ab 00:00:00 ", "DeallocateRaw,x,5,0x1"), "a 0 5\nf 0\n"},
		{"a very long line of something else", "x" + strings.Repeat("y", 3*input.MaxLine) + "\n" + memLine("", "AllocateRaw,x,5,0x1"), "a 0 5\n"},
		{"refused, a size that underflowed", memLine("", "AllocateRaw,x,18446744073709551615,0"), "a 0 18446744073709551615 refused\n"},
		{"no comma in front of a stack that is not there", memDebug + " AllocateRaw,x,5,0x1,", "a 0 5\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := mustRead(t, []byte(c.in), tape.Options{Format: "memdebug"})
			if d := cmp.Diff(c.want, tracetest.ListEvents(tracetest.Events(t, tr.Pools[0], 3))); d != "" {
				t.Error(d)
			}
			if err := tracetest.CheckTrace(tr); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestMemDebugErrors(t *testing.T) {
	const cut = " is not followed by a name, a number of bytes, an address and a comma; the line is cut or mixed with another, take it out"
	var many strings.Builder
	for i := range maxPools + 1 {
		many.WriteString(memLine("", fmt.Sprintf("AllocateRaw,%d,5,0x1", i)))
	}
	for _, c := range []struct{ name, in, want string }{
		{"none", "hello\n", `in: no line has "[mem-debug]"; run the program with TF_CPP_VMODULE=bfc_allocator=4 TF_CPP_MIN_LOG_LEVEL=0 and keep its stderr`},
		{"cut in the address", "x\n" + memDebug + " AllocateRaw,x,5,0x1", `in:2: "[mem-debug] AllocateRaw,x,5,0x1"` + cut},
		{"cut in the size", memDebug + " DeallocateRaw,x,5", `in:1: "[mem-debug] DeallocateRaw,x,5"` + cut},
		{"size", memLine("", "AllocateRaw,x,-5,0x1"), `in:1: "[mem-debug] AllocateRaw,x,-5,0x1,*** Beg"...` + cut},
		{"address", memLine("", "AllocateRaw,x,5,here"), `in:1: "[mem-debug] AllocateRaw,x,5,here,*** Beg"...` + cut},
		{"too many allocators", many.String(), "in:1025: the log has more than 1024 allocators; it is damaged"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := formats.Read(context.Background(), strings.NewReader(c.in), "in", tape.Options{Format: "memdebug"})
			tracetest.WantInputError(t, err, c.want)
		})
	}
}

func FuzzMemDebug(f *testing.F) {
	f.Add(tracetest.Sample(f, "memdebug.log"))
	f.Add([]byte(memLine("I1231 23:59:59.1 7 x] ", "AllocateRaw,x,5,0x1") + memLine("I0000 00:00:1767268800.5 1 x] ", "DeallocateRaw,x,5,0x2")))
	f.Add([]byte(servedAt(1, 7, 1) + servedAt(2, 8, 2) + allocAt(3, 8, 5, 2) + allocAt(4, 7, 5, 1) + freeAt(5, 8, 5, 2) + servedAt(6, 7, 3) + freedAt(7, 8)))
	f.Add([]byte(allocAt(9, 7, 5, 1) + allocAt(3, 8, 5, 1) + freeAt(5, 8, 5, 1) + servedAt(6, 7, 3) + freeAt(5, 8, 5, 1)))
	f.Fuzz(func(t *testing.T, in []byte) { tracetest.FuzzRead(t, formats, in, "memdebug") })
}
