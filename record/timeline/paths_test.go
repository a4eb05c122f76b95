package timeline

import (
	"slices"
	"strings"
	"testing"

	"gpumem/record/internal/test/replaytest"
	"gpumem/record/trace"
)

// The page names the program's own line, which only the directories of files tell from a
// library's, and shows no directory.
func TestThePageNamesOwnLinesWithoutPaths(t *testing.T) {
	tr := made(t, func(r *recorder) {
		stack := func(own string) uint32 {
			return r.b.Stack([]uint32{r.b.Frame("forward", "/v/lib/python3.12/site-packages/torch/nn/linear.py", 134), r.b.Frame(own, "/home/u/"+own+".py", 7)})
		}
		for i, own := range []string{"attention", "mlp"} {
			if _, err := r.Alloc(trace.Event{Bytes: uint64(i+1) << 20, Site: stack(own)}, 0); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := r.Alloc(trace.Event{Bytes: 1 << 40, Site: stack("head"), Refused: true}, 0); err != nil {
			t.Fatal(err)
		}
	})
	rep, page, err := Run(t.Context(), tr, replaytest.Config(t, "sim:1GiB", "pytorch"))
	if err != nil {
		t.Fatal(err)
	}
	var labels []string
	for _, b := range page.Pools[0].Groupings[0].Bands {
		labels = append(labels, page.Names[b.Name])
	}
	said := strings.Join(slices.Concat(labels, page.Summary, []string{page.Answers[0].Text, rep.Results[0].Failure.Line}), "\n")
	for _, own := range []string{"attention (attention.py:7)", "mlp (mlp.py:7)", "head (head.py:7)"} {
		if !strings.Contains(said, own) {
			t.Errorf("%q is not said in\n%s", own, said)
		}
	}
	for _, text := range slices.Concat(page.Names, page.Summary) {
		if strings.Contains(text, "/home") || strings.Contains(text, "site-packages") {
			t.Errorf("a path is shown: %q", text)
		}
	}
}
