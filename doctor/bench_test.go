package doctor

import (
	"bytes"
	"fmt"
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
		return fmt.Sprintf("2031-02-03 04:05:06,789 INFO trainer.py:%d step %d loss %.4f, %d tokens in the batch, learning rate %.6f\n",
			i%400, i, 1/float64(i+1), i*512, 1e-4)
	}},
	// The same with a size in every line.
	{"sizes", func(i int) string {
		return fmt.Sprintf("step %d | loss %.4f | gpu mem %.2f GiB / 79.15 GiB | reserved %d MiB | %.1f it/s\n", i, 1/float64(i+1),
			40+float64(i%100)/50, 41000+i%500, 3.1)
	}},
	// The same as Docker keeps it.
	{"json", func(i int) string {
		return fmt.Sprintf(`{"log":"INFO trainer.py:%d step %d loss %.4f, \"%d\" tokens in the batch\n","stream":"stderr","time":"2031-02-03T04:05:06.789012Z"}`+"\n", i%400, i, 1/float64(i+1), i*512)
	}},
	// A pool's report, chunk by chunk.
	{"dump", func(i int) string {
		return fmt.Sprintf("2031-02-03 04:05:06.789012: I external/xla/xla/tsl/framework/bfc_allocator.cc:1053] InUse at 7f%010x of size %d next %d\n", i*4096, i%977*256, i)
	}},
	// Nothing but refusals.
	{"messages", func(i int) string {
		return fmt.Sprintf("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %d.00 MiB. GPU 0 has a total capacity of 14.74 GiB of which 2.44 GiB is free. Process 21197 has %d.00 MiB memory in use.\n", i%900+1, i%977)
	}},
}

func benchmarkLog(line func(int) string) []byte {
	var text bytes.Buffer
	for i := 0; text.Len() < 16<<20; i++ {
		text.WriteString(line(i))
	}
	return text.Bytes()
}

// BenchmarkDiagnose is the whole way from a log to an answer.
func BenchmarkDiagnose(b *testing.B) {
	for _, log := range benchmarkLogs {
		b.Run(log.name, func(b *testing.B) {
			text := benchmarkLog(log.line)
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := Diagnose(bytes.NewReader(text), nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkScreen is a log of a screen.
func BenchmarkScreen(b *testing.B) {
	text := strings.Repeat("epoch 3 step 1200 loss 0.7134 lr 0.00030\n", 40) + benchmarkLogs[len(benchmarkLogs)-1].line(3)
	for b.Loop() {
		if _, err := Diagnose(strings.NewReader(text), nil); err != nil {
			b.Fatal(err)
		}
	}
}
