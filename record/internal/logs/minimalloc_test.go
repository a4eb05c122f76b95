package logs

// MiniMalloc's problems.

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
)

func TestMinimallocSample(t *testing.T) {
	tr := mustRead(t, tracetest.Sample(t, "minimalloc.csv"), tape.Options{})
	const want = `: 0 seeds, 1 streams, peak 12, end 0 in 0
a 0 4
a 1 4
a 2 4
f 0
a 0 4
f 1
f 0
a 0 4
f 2
f 0
`
	if d := cmp.Diff(want, tracetest.ShowPools(t, tr)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"1 block with gaps; live in them as well", "1 block never live (lower is upper); left out"}, tr.Notes); d != "" {
		t.Error(d)
	}
	if tr.Format != "minimalloc" || tr.Timed {
		t.Errorf("format %q, timed %v", tr.Format, tr.Timed)
	}
}

// TestMinimallocNames: the columns have other names, and other places.
func TestMinimallocNames(t *testing.T) {
	const want = "a 0 7\na 1 9\nf 0\na 0 8\nf 1\nf 0\n"
	for name, in := range map[string]string{
		"id":      "id,lower,upper,size\na,-1,3,7\nb,1,9,9\nc,3,9,8\n",
		"begin":   "buffer_id,begin,upper,size,offset\na,-1,3,7,0\nb,1,9,9,0\nc,3,9,8,1\n",
		"end":     "buffer,start,end,size\na,-1,2,7\nb,1,8,9\nc,3,8,8\n",
		"places":  "size,upper,gaps,lower,id\n7,3,,-1,a\n\n8,9,,3,c\n9,9,,1,b\n",
		"windows": "id,lower,upper,size\r\na , -1, 3 ,7\r\n# c\r\nb,1,9,9\r\nc,3,9,8",
	} {
		tr := mustRead(t, []byte(in), tape.Options{})
		if d := cmp.Diff(want, tracetest.ListEvents(tracetest.Events(t, tr.Pools[0], 3))); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if said := len(tr.Notes) > 0; tr.PeakLive != 17 || said != (name == "end") {
			t.Errorf("%s: peak %d, notes %q", name, tr.PeakLive, tr.Notes)
		}
	}
}

func TestMinimallocErrors(t *testing.T) {
	const first = "; the first line names the columns, as in id,lower,upper,size"
	for _, c := range []struct{ name, in, want string }{
		{"unknown column", "id,lower,upper,size,colour\n", `in:1: no column is named "colour"` + first},
		{"missing column", "id,lower,upper\n", "in:1: there is no column for size" + first},
		{"twice", "id,lower,upper,size,end\n", `in:1: "end" is a second column for upper` + first},
		{"no header", "b1,0,3,4\n", `in:1: no column is named "b1"` + first},
		{"too few", "id,lower,upper,size\nb1,0,3\n", `in:2: "b1,0,3" has 3 columns, and the header 4`},
		{"too many", "id,lower,upper,size\nb1,0,3,4,5\n", `in:2: "b1,0,3,4,5" has 5 columns, and the header 4`},
		{"lower", "id,lower,upper,size\nb1,x,3,4\n", `in:2: "x" is not the number of a step`},
		{"upper", "id,lower,upper,size\nb1,0,9223372036854775808,4\n", `in:2: "9223372036854775808" is not the number of a step`},
		{"size", "id,lower,upper,size\nb1,0,3,-4\n", `in:2: "-4" is not a number of bytes below 2^63`},
		{"backwards", "id,lower,upper,size\nb1,3,2,4\n", `in:2: "b1,3,2,4" ends before it begins`},
		{"the last end", "id,lower,end,size\nb1,3,9223372036854775807,4\n", "in:2: the end is the last step that can be counted"},
		{"no rows", "id,lower,upper,size\n", "in: the recording has no events"},
		{"never live", "id,lower,upper,size\na,1,1,1\n", "in: the recording has no events"},
		{"long line", "id,lower,upper,size\n" + strings.Repeat("x", input.MaxLine+1), "in:2: the line is longer than 65536 bytes; this is not a minimalloc problem"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := formats.Read(context.Background(), strings.NewReader(c.in), "in", tape.Options{Format: "minimalloc"})
			tracetest.WantInputError(t, err, c.want)
		})
	}
}

// TestMinimallocModel: the peak is that of a sweep over all steps.
func TestMinimallocModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var in bytes.Buffer
		in.WriteString("id,lower,upper,size\n")
		var live [40]uint64
		for i := range rapid.IntRange(1, 100).Draw(t, "rows") {
			lower := rapid.IntRange(0, 38).Draw(t, "lower")
			upper := rapid.IntRange(lower+1, 39).Draw(t, "upper")
			size := rapid.Uint64Range(0, 1<<40).Draw(t, "size")
			fmt.Fprintf(&in, "%d,%d,%d,%d\n", i, lower, upper, size)
			for s := lower; s < upper; s++ {
				live[s] += size
			}
		}
		tr, err := formats.Read(context.Background(), &in, "in", tape.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		if err := tracetest.CheckTrace(tr); err != nil {
			t.Fatal(err)
		}
		var peak uint64
		for _, b := range live {
			peak = max(peak, b)
		}
		if tr.PeakLive != peak || tr.Pools[0].EndBlocks != 0 {
			t.Fatalf("peak %d, want %d; %d blocks at the end", tr.PeakLive, peak, tr.Pools[0].EndBlocks)
		}
	})
}

func FuzzMinimalloc(f *testing.F) {
	f.Add(tracetest.Sample(f, "minimalloc.csv"))
	f.Add([]byte("buffer,start,end,size\nb1,0,3,4\nb2,3,9,4\n"))
	f.Fuzz(func(t *testing.T, in []byte) { tracetest.FuzzRead(t, formats, in, "minimalloc") })
}
