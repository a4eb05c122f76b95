package vocabulary

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func ExampleFind() {
	line := "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR (CUDA error 700 before it)"
	for _, hit := range Find(line) {
		r := hit.Row
		fmt.Printf("%s by %s: about %s, sticky %t\n", r.Name, hit.By, r.Kind, r.Sticky)
	}
	// Output:
	// CUDNN_STATUS_INTERNAL_ERROR by name: about open, sticky false
	// cudaErrorIllegalAddress by number: about address, sticky true
}

// FuzzFind checks that hits lie in their text, in order, each of a row that the text has.
func FuzzFind(f *testing.F) {
	data, err := os.ReadFile("testdata/lines.txt")
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		f.Add(line)
	}
	f.Add("Xid (")
	f.Add("signal -0x8007000E exit\n-")
	f.Fuzz(func(t *testing.T, text string) {
		last := 0
		for _, h := range Find(text) {
			switch {
			case h.Row == nil, h.At < 0, h.At >= h.End, h.End > len(text), strings.Contains(text[h.At:h.End], "\n"):
				t.Fatalf("%q: %+v", text, h)
			case h.By == ByName && !strings.HasSuffix(strings.ToLower(h.Row.Name), strings.ToLower(text[h.At:h.End])) && h.Row.Family != "absl" &&
				h.Row.Family != "Vulkan":
				t.Fatalf("%q is not %s", text[h.At:h.End], h.Row.Name)
			}
			if h.At < last {
				t.Fatalf("%q: %+v is out of order", text, h)
			}
			last = h.At
		}
	})
}

// BenchmarkFind reads the lines of the tests, which have far more to find than a log.
func BenchmarkFind(b *testing.B) {
	data, err := os.ReadFile("testdata/lines.txt")
	if err != nil {
		b.Fatal(err)
	}
	plain := strings.Repeat("2026-11-28 23:59:01,123 INFO worker-3 epoch 12/900 loss=0.3 it took 0.8 s on the device\n", 100)
	for name, text := range map[string]string{"dense": string(data), "plain": plain} {
		b.Run(name, func(b *testing.B) {
			theIndex()
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				Find(text)
			}
		})
	}
}

// BenchmarkIndex is what the first Find costs beside its text.
func BenchmarkIndex(b *testing.B) {
	for b.Loop() {
		rows, err := parse(table)
		if err != nil {
			b.Fatal(err)
		}
		newIndex(rows)
	}
}

// FuzzParse checks that a table is read or refused, whatever it is.
func FuzzParse(f *testing.F) {
	f.Add("# head\nCUresult\tCUDA_ERROR_OUT_OF_MEMORY\t2|0x2\tout of memory|oom\tdevice memory\tdriver\tno\tyes\tmemory\tcuda.h\n")
	f.Add("\t\t\t\t\t\t\t\t\t\n")
	f.Fuzz(func(t *testing.T, text string) {
		rows, err := parse(text)
		if err != nil && rows != nil {
			t.Fatal("rows and an error")
		}
	})
}
