package category

// The labels against the truth: programs of PyTorch on the simulated GPU, whose tensors were
// asked by their addresses what they are (scripts/categories-truth).

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpumem/record/internal/tape"
	"gpumem/record/internal/torch"
)

// truth is what a program said of its blocks.
type truth struct {
	Kind string
	Peak struct {
		Bytes      uint64
		Categories map[string]uint64
	}
	Allocations []allocation
}

// allocation is a block of the truth; its event is -1 if it is older than the recording.
type allocation struct {
	Event    int
	Addr     uint64
	Bytes    uint64
	Category string
}

// named are the truth's names of categories.
var named = map[string]Category{"buffers": Parameters, "unknown": Kept}

// TestTruth compares the labels at the peaks with the truth, for the folder in
// GPUMEM_CATEGORIES_TRUTH, with all stacks, with frames of Python alone, and without. With all 95 % of the bytes are to be right, 70 % sure,
// and of those that are sure less than one in 10,000 wrong.
func TestTruth(t *testing.T) {
	dir := os.Getenv("GPUMEM_CATEGORIES_TRUTH")
	if dir == "" {
		t.Skip("SKIPPED: no folder of recordings with their truth: scripts/categories-truth.py makes one, GPUMEM_CATEGORIES_TRUTH names it")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.pickle"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d recordings in %s, %v", len(files), dir, err)
	}
	for _, have := range []string{"all", "python", "none"} {
		all := score{of: map[Category][2]uint64{}}
		for _, f := range files {
			one := compare(t, f, have)
			all.add(one)
			t.Logf("%-28s %s, %s", strings.TrimSuffix(filepath.Base(f), ".pickle"), one, one.wrong(6))
		}
		t.Logf("%d recordings, stacks %s: %s", len(files), have, all)
		for _, c := range slices.Sorted(maps.Keys(all.of)) {
			t.Logf("  %s: %.1f %% of %.1f GB", c, 100*float64(all.of[c][1])/float64(max(1, all.of[c][0])), float64(all.of[c][0])/1e9)
		}
		if have == "all" && (all.right*100 < 95*all.bytes || all.sure*10 < 7*all.bytes || all.sureWrong*10_000 > all.sure) {
			t.Errorf("too little: %s", all)
		}
	}
}

// score is how a peak was labelled, in bytes.
type score struct {
	bytes, right, sure, sureWrong uint64
	pairs                         map[string]uint64      // "truth>label" that differ
	of                            map[Category][2]uint64 // bytes of each, and those right
}

func (s *score) add(o score) {
	s.bytes += o.bytes
	s.right += o.right
	s.sure += o.sure
	s.sureWrong += o.sureWrong
	for c, n := range o.of {
		s.of[c] = [2]uint64{s.of[c][0] + n[0], s.of[c][1] + n[1]}
	}
}

func (s score) String() string {
	return fmt.Sprintf("%.1f GB: right %.2f %%, sure %.2f %%, sure and wrong %.4f %%",
		float64(s.bytes)/1e9, s.part(s.right), s.part(s.sure), s.part(s.sureWrong))
}

func (s score) part(n uint64) float64 { return 100 * float64(n) / float64(max(1, s.bytes)) }

func (s score) wrong(n int) string {
	keys := slices.SortedFunc(maps.Keys(s.pairs), func(a, b string) int { return cmp.Or(cmp.Compare(s.pairs[b], s.pairs[a]), cmp.Compare(a, b)) })
	var out []string
	for _, k := range keys[:min(n, len(keys))] {
		out = append(out, fmt.Sprintf("%s %.1f%%", k, s.part(s.pairs[k])))
	}
	return strings.Join(out, ", ")
}

// compare labels a recording and compares its peak with the truth beside it.
func compare(t *testing.T, file, have string) score {
	t.Helper()
	data, err := os.ReadFile(strings.TrimSuffix(file, ".pickle") + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var tr truth
	if err := json.Unmarshal(data, &tr); err != nil {
		t.Fatal(file, err)
	}
	tc, err := tape.Formats{torch.Format}.Open(context.Background(), file, tape.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tc.Close()
	s, err := read(context.Background(), tc.Pools[0])
	if err != nil {
		t.Fatal(err)
	}
	texts, sites := []string{""}, map[string]uint32{"": 0}
	for i := range s.blocks {
		text := framesOf(tc.FullSite(s.blocks[i].site), have)
		if _, ok := sites[text]; !ok {
			sites[text] = uint32(len(texts))
			texts = append(texts, text)
		}
		s.blocks[i].site = sites[text]
	}
	labels := newJudge(s, func(site uint32) string { return texts[site] }).labels(true)
	sc := score{pairs: map[string]uint64{}, of: map[Category][2]uint64{}}
	for i, a := range truthOf(t, file, s, tr.Allocations) {
		b := &s.blocks[i]
		if !b.lives(s.peak) {
			continue
		}
		want := cmp.Or(named[a.Category], Category(a.Category))
		sc.count(b.bytes, want, labels[i])
	}
	known := sc.bytes
	for i := range s.blocks {
		if b := &s.blocks[i]; b.refused && b.lives(s.peak) {
			known += b.bytes // no truth, and no label that matters
		}
	}
	if missing := s.bytes - known; missing*100 > s.bytes {
		t.Errorf("%s: of %d bytes at the peak the truth of %d is not known", file, s.bytes, missing)
	}
	return sc
}

// framesOf returns what a recording with other stacks has of one: the frames of Python alone, or none.
func framesOf(stack, have string) string {
	if have == "none" {
		return ""
	}
	return strings.Join(slices.DeleteFunc(strings.Split(stack, "\n"), func(frame string) bool { return have == "python" && !isPython(frame) }), "\n")
}

// count counts a block of the peak.
func (s *score) count(bytes uint64, want Category, got label) {
	s.bytes += bytes
	of := s.of[want]
	of[0] += bytes
	mark := ""
	if got.sure {
		s.sure += bytes
		mark = "!"
	}
	switch {
	case got.Category == want:
		s.right += bytes
		of[1] += bytes
	case got.sure:
		s.sureWrong += bytes
		fallthrough
	default:
		s.pairs[string(want)+">"+string(got.Category)+mark] += bytes
	}
	s.of[want] = of
}

// truthOf returns the truth of each block, by its number: both have the allocations in order, and what
// is older than the recording first, by address. A block that went as the recording began has
// none.
func truthOf(t *testing.T, file string, s *span, list []allocation) map[int]allocation {
	t.Helper()
	slices.SortStableFunc(list, func(a, b allocation) int {
		if a.Event < 0 && b.Event < 0 {
			return cmp.Compare(a.Addr, b.Addr)
		}
		return cmp.Compare(max(a.Event, -1), max(b.Event, -1))
	})
	of := map[int]allocation{}
	i := 0
	for _, a := range list {
		skip := func(b *block) bool { return b.refused || b.seed && (a.Event >= 0 || b.bytes != a.Bytes) }
		for i < len(s.blocks) && skip(&s.blocks[i]) {
			i++
		}
		if i == len(s.blocks) || s.blocks[i].bytes != a.Bytes {
			t.Fatalf("%s: block %d is not that of the truth, of %d bytes", file, i, a.Bytes)
		}
		of[i] = a
		i++
	}
	return of
}
