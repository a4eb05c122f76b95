package doctor

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
)

// benchmarkLogs are kinds of logs as they are in the large.
var benchmarkLogs = []struct {
	name string
	line func(i int) string
}{
	// A training run that prints its steps.
	{"steps", func(i int) string {
		return fmt.Sprintf("2031-02-03 04:05:06,789 INFO trainer.py:%d step %d loss %.4f, %d tokens in the batch, learning rate %.6f\n", i%400, i, 1/float64(i+1), i*512, 1e-4)
	}},
	// The same as Docker keeps it.
	{"json", func(i int) string {
		return fmt.Sprintf(`{"log":"INFO trainer.py:%d step %d loss %.4f, \"%d\" tokens in the batch\n","stream":"stderr","time":"2031-02-03T04:05:06.789012Z"}`+"\n", i%400, i, 1/float64(i+1), i*512)
	}},
	// A pool's report, chunk by chunk.
	{"dump", func(i int) string {
		return fmt.Sprintf("2031-02-03 04:05:06.789012: I external/xla/xla/tsl/framework/bfc_allocator.cc:1053] InUse at 7f%010x of size %d next %d\n", i*4096, i%977*256, i)
	}},
	// Nothing but messages: the worst case.
	{"messages", func(i int) string { return formats[i%len(formats)].line + "\n" }},
}

func BenchmarkRead(b *testing.B) {
	for _, log := range benchmarkLogs {
		b.Run(log.name, func(b *testing.B) {
			var text bytes.Buffer
			for i := 0; text.Len() < 16<<20; i++ {
				text.WriteString(log.line(i))
			}
			b.SetBytes(int64(text.Len()))
			n := 0
			for b.Loop() {
				if err := Read(bytes.NewReader(text.Bytes()), func(Fact) { n++ }); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n)/float64(b.N), "facts")
		})
	}
}

// TestFlat reads a large log, in one line and in many, and looks at what is
// kept of it.
func TestFlat(t *testing.T) {
	for name, unit := range map[string]string{"lines": "step 12 loss 0.5\n", "one line": "step 12 loss 0.5 "} {
		t.Run(name, func(t *testing.T) {
			block := strings.Repeat(unit, 1<<20/len(unit))
			var readers []io.Reader
			for range 64 {
				readers = append(readers, strings.NewReader(block))
			}
			in := io.MultiReader(readers...)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if err := Read(in, func(Fact) {}); err != nil {
				t.Fatal(err)
			}
			runtime.ReadMemStats(&after)
			// The buffer, and twice as much for the pieces of a long line.
			if got := after.TotalAlloc - before.TotalAlloc; got > 8*bufferSize {
				t.Errorf("%d bytes allocated for a log of 64 MiB without facts", got)
			}
		})
	}
}

// BenchmarkDiagnose is the whole way from a log to an answer.
func BenchmarkDiagnose(b *testing.B) {
	for _, log := range benchmarkLogs {
		b.Run(log.name, func(b *testing.B) {
			var text bytes.Buffer
			for i := 0; text.Len() < 16<<20; i++ {
				text.WriteString(log.line(i))
			}
			b.SetBytes(int64(text.Len()))
			for b.Loop() {
				if _, err := Diagnose(bytes.NewReader(text.Bytes()), nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
