package statement

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
)

// BenchmarkScan is the pass over a log with a size on every line, of which nothing is
// read in full.
func BenchmarkScan(b *testing.B) {
	var text bytes.Buffer
	for i := 0; text.Len() < 16<<20; i++ {
		fmt.Fprintf(&text, "step %d | loss %.4f | gpu mem %.2f GiB / 79.15 GiB | reserved %d MiB\n", i, 1/float64(i+1), 40+float64(i%100)/50, 41000+i%500)
	}
	b.SetBytes(int64(text.Len()))
	for b.Loop() {
		s := scanner{region: func([]rawLine) {}}
		if err := s.scan(bytes.NewReader(text.Bytes())); err != nil {
			b.Fatal(err)
		}
	}
}

// TestScanKeepsLittle scans a large log, in one line and in many, and looks at what is
// kept of it.
func TestScanKeepsLittle(t *testing.T) {
	for name, unit := range map[string]string{"lines": "step 12 loss 0.5\n", "sizes": "step 12 gpu mem 3.5 GiB\n", "one line": "step 12 loss 0.5 "} {
		t.Run(name, func(t *testing.T) {
			block := strings.Repeat(unit, 1<<20/len(unit))
			var readers []io.Reader
			for range 64 {
				readers = append(readers, strings.NewReader(block))
			}
			in := io.MultiReader(readers...)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			s := scanner{region: func([]rawLine) {}}
			if err := s.scan(in); err != nil {
				t.Fatal(err)
			}
			runtime.ReadMemStats(&after)
			if got := after.TotalAlloc - before.TotalAlloc; got > 4<<20 {
				t.Errorf("%d bytes allocated for a log of 64 MiB", got)
			}
		})
	}
}
