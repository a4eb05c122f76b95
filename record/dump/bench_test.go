package dump_test

// How fast dumps are read, and what they take in memory.

import (
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"gpumem/alloc"
	"gpumem/internal/test/bfcdump"
	"gpumem/record/dump"
)

// TestChunkBytes: a pool of millions of chunks must fit in memory.
func TestChunkBytes(t *testing.T) {
	if n := unsafe.Sizeof(dump.Chunk{}); n != 32 {
		t.Errorf("a chunk takes %d bytes", n)
	}
	a := fill(t, config{Limit: 1 << 30}, 130_000, 1, small)
	text := a.Report(alloc.Request{Bytes: 2 << 30}).String()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	d := read(t, text)
	runtime.GC()
	runtime.ReadMemStats(&after)
	n := len(d.Regions[0].Chunks)
	each := float64(int64(after.HeapAlloc)-int64(before.HeapAlloc)) / float64(n)
	t.Logf("%d chunks, %.1f bytes each kept, %.1f allocated", n, each, float64(after.TotalAlloc-before.TotalAlloc)/float64(n))
	if each > 64 {
		t.Errorf("%.1f bytes a chunk", each)
	}
	runtime.KeepAlive(text)
}

func BenchmarkRead(b *testing.B) {
	a := fill(b, config{Limit: 1 << 30}, 130_000, 1, small)
	text := a.Report(alloc.Request{Bytes: 2 << 30}).String()
	for _, in := range []struct{ name, text string }{
		{"text", text},
		{"prefixed", prefixed(text, "\n")},
		{"binary", string(bfcdump.Marshal(a))},
		{"other log", strings.Repeat("step 1234 loss 0.1234 throughput 1234.5 tokens/s, memory 12.3 of 40.0\n", 1e5) + "InUse at 0 of size 256\n"},
	} {
		b.Run(in.name, func(b *testing.B) {
			b.SetBytes(int64(len(in.text)))
			for b.Loop() {
				read(b, in.text)
			}
		})
	}
}

func BenchmarkReadProgram(b *testing.B) {
	for _, in := range []struct{ name, text string }{
		{"report", strings.Repeat(programText(15), 100)},
		{"other log", strings.Repeat("step 1234 loss 0.1234 throughput 1234.5 tokens/s, memory 12.3 of 40.0\n", 1e5) + programText(1)},
	} {
		b.Run(in.name, func(b *testing.B) {
			b.SetBytes(int64(len(in.text)))
			for b.Loop() {
				readProgram(b, in.text)
			}
		})
	}
}

func BenchmarkSummary(b *testing.B) {
	a := fill(b, config{Limit: 1 << 30}, 130_000, 1, small)
	d := read(b, a.Report(alloc.Request{Bytes: 2 << 30}).String())
	for b.Loop() {
		d.Summary(80, 40)
	}
}
