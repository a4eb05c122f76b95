package inventory

import (
	"fmt"
	"strings"
	"testing"
)

// TestShapeKeepsItsLastLines: of lines that differ in their numbers some are left out, but not the last,
// nor one in other words among them.
func TestShapeKeepsItsLastLines(t *testing.T) {
	var log strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&log, "GPU 1 memory usage MB: %d\n", i)
		if i == 3000 {
			log.WriteString("GPU 1 workspace memory MB: 77\n")
		}
	}
	r, err := ReadAll(strings.NewReader(log.String()))
	if err != nil {
		t.Fatal(err)
	}
	if !r.sampled {
		t.Error("no line was left out")
	}
	for label, want := range map[string]uint64{"memory usage": 4999, "workspace memory": 77} {
		if got := r.of(list, "GPU 1").figures[label].bytes >> 20; got != want {
			t.Errorf("%s is %d MiB, want %d", label, got, want)
		}
	}
}

// TestListing: a label, an amount, and perhaps a GPU, in the words of any program; sizes of other things,
// rates and failures are none.
func TestListing(t *testing.T) {
	for _, tc := range []struct {
		text string
		want string // GPU: label=MiB, ...
	}{
		{"unet compute buffer size: 830.00 MB(VRAM)", ": unet compute buffer size=830"},
		{"Epoch 2/100 (lr=0.0001), train loss 0.02403, GPU mem: 3166.0/11011.0 MiB", ""},
		{" -- Model: weights 17 GB, cache 4.00 GB, overhead 1 GB", ": weights=17408 cache=4096 overhead=1024"},
		{" -- VRAM used: 22 GB of 24.00 GB", ": VRAM used=22528 VRAM used, of=24576"},
		{"| GPU Memory Used (MiB)       | 14210              |", ": GPU Memory Used=14210"},
		{"GPU 1 memory usage MB: 9873", "GPU 1: memory usage=9873"},
		{"Peak host memory was 512 MiB", ": Peak host memory=512"},
		{"step: 10  loss:  9.8342  memory: 61.00GiB(64.30%)  tps: 5,410", ""},
		{"Remaining memory: -169 MB", ": Remaining memory, negative=169"},
		{"KV cache: 2.00GiB, 12.00GiB free", ": KV cache=2048 free=12288"},
		{"Total memory: 1073741824", ": Total memory=1024"},
		{"Downloading memory.bin: 4.00 GB of 8 GB, 30 MB/s", ""},
		{"could not reserve memory: 2 GiB", ""},
		{"the model requires 12 GB of memory, 8 GB is free", ""},
		{"loss 2 MiB", ""},
	} {
		var r Reader
		r.listing(1, tc.text)
		got := ""
		for _, s := range r.subjects {
			got += s.name + ":"
			for _, p := range s.names {
				got += fmt.Sprintf(" %s=%d", p.what, s.figures[p.key].bytes>>20)
			}
		}
		if got != tc.want {
			t.Errorf("%s\n got %q\nwant %q", tc.text, got, tc.want)
		}
	}
}
