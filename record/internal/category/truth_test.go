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
var named = map[string]Category{"buffers": Parameters}

// TestTruth prints how much of the peak is labelled rightly, for the folder in
// GPUMEM_CATEGORIES_TRUTH.
func TestTruth(t *testing.T) {
	dir := os.Getenv("GPUMEM_CATEGORIES_TRUTH")
	if dir == "" {
		t.Skip("no folder of recordings with their truth: scripts/categories-truth makes one, GPUMEM_CATEGORIES_TRUTH names it")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.pickle"))
	if err != nil {
		t.Fatal(err)
	}
	for _, blind := range []bool{false, true} {
		all := score{of: map[Category][2]uint64{}}
		for _, f := range files {
			data, err := os.ReadFile(strings.TrimSuffix(f, ".pickle") + ".json")
			if err != nil {
				continue
			}
			var tr truth
			if err := json.Unmarshal(data, &tr); err != nil {
				t.Fatal(f, err)
			}
			one := compare(t, f, tr, blind)
			all.right += one.right
			all.sure += one.sure
			all.sureWrong += one.sureWrong
			all.bytes += one.bytes
			for c, n := range one.of {
				all.of[c] = [2]uint64{all.of[c][0] + n[0], all.of[c][1] + n[1]}
			}
			fmt.Printf("%-5s %-28s %6.1f GB right %5.1f %% sure %5.1f %% wrong sure %5.2f %%  %s\n", map[bool]string{true: "blind"}[blind], strings.TrimSuffix(filepath.Base(f), ".pickle"),
				float64(one.bytes)/1e9, one.part(one.right), one.part(one.sure), one.part(one.sureWrong), one.wrong(6))
		}
		fmt.Printf("blind %t: %d bytes, right %.2f %%, sure %.2f %%, wrong and sure %.3f %%\n", blind, all.bytes, all.part(all.right), all.part(all.sure), all.part(all.sureWrong))
		for _, c := range slices.Sorted(maps.Keys(all.of)) {
			fmt.Printf("  %s: %.1f %% of %.1f GB\n", c, 100*float64(all.of[c][1])/float64(max(1, all.of[c][0])), float64(all.of[c][0])/1e9)
		}
	}
}

// score is how a peak was labelled, in bytes.
type score struct {
	bytes, right, sure, sureWrong uint64
	pairs                         map[string]uint64      // "truth>label" that differ
	of                            map[Category][2]uint64 // bytes of each, and those right
}

func (s score) part(n uint64) float64 { return 100 * float64(n) / float64(max(1, s.bytes)) }

func (s score) wrong(n int) string {
	keys := slices.SortedFunc(maps.Keys(s.pairs), func(a, b string) int { return cmp.Compare(s.pairs[b], s.pairs[a]) })
	var out []string
	for _, k := range keys[:min(n, len(keys))] {
		out = append(out, fmt.Sprintf("%s %.1f%%", k, s.part(s.pairs[k])))
	}
	return strings.Join(out, ", ")
}

func compare(t *testing.T, file string, tr truth, blind bool) score {
	tc, err := tape.Formats{torch.Format}.Open(context.Background(), file, tape.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tc.Close()
	s, err := read(context.Background(), tc.Pools[0])
	if err != nil {
		t.Fatal(err)
	}
	site := tc.FullSite
	if blind {
		for i := range s.blocks {
			s.blocks[i].site = 0
		}
	}
	labels := newJudge(s, site).labels(true)
	// The truth has the recording's own allocations, in order; seeds by themselves.
	// In the truth, too, what is older comes first, by address.
	var recorded []int
	for i := range s.blocks {
		recorded = append(recorded, i)
	}
	slices.SortStableFunc(tr.Allocations, func(a, b allocation) int {
		if a.Event < 0 && b.Event < 0 {
			return cmp.Compare(a.Addr, b.Addr)
		}
		return cmp.Compare(max(a.Event, -1), max(b.Event, -1))
	})
	sc := score{pairs: map[string]uint64{}, of: map[Category][2]uint64{}}
	if len(recorded) != len(tr.Allocations) {
		t.Logf("%s: %d allocations recorded, the truth has %d", file, len(recorded), len(tr.Allocations))
	}
	k := -1
	for _, a := range tr.Allocations {
		if k++; k >= len(recorded) {
			break
		}
		for a.Event < 0 && s.blocks[recorded[k]].bytes != a.Bytes { // a block that went as the recording began
			k++
		}
		if a.Event >= 0 {
			for s.blocks[recorded[k]].seed {
				k++
			}
		}
		b := &s.blocks[recorded[k]]
		if b.bytes != a.Bytes {
			t.Fatalf("%s: allocation %d has %d bytes, in truth %d", file, k, b.bytes, a.Bytes)
		}
		if !b.lives(s.peak) {
			continue
		}
		want, ok := named[a.Category]
		if !ok {
			want = Category(a.Category)
		}
		got := labels[recorded[k]]
		sc.bytes += b.bytes
		if got.sure {
			sc.sure += b.bytes
		}
		of := sc.of[want]
		of[0] += b.bytes
		if got.Category == want {
			of[1] += b.bytes
		}
		sc.of[want] = of
		if got.Category == want {
			sc.right += b.bytes
			continue
		}
		mark := ""
		if got.sure {
			sc.sureWrong += b.bytes
			mark = "!"
		}
		sc.pairs[string(want)+">"+string(got.Category)+mark] += b.bytes
	}
	return sc
}

// TestTruthBlocks prints the blocks at the peak of one recording that are labelled otherwise
// than the truth has it: GPUMEM_CATEGORIES_FILE is a pickle.
func TestTruthBlocks(t *testing.T) {
	file := os.Getenv("GPUMEM_CATEGORIES_FILE")
	if file == "" {
		t.Skip("GPUMEM_CATEGORIES_FILE names no recording")
	}
	data, err := os.ReadFile(strings.TrimSuffix(file, ".pickle") + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var tr truth
	if err := json.Unmarshal(data, &tr); err != nil {
		t.Fatal(err)
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
	if os.Getenv("BLIND") != "" {
		for i := range s.blocks {
			s.blocks[i].site = 0
		}
	}
	j := newJudge(s, tc.FullSite)
	for i, p := range j.phases {
		if i < 60 {
			fmt.Printf("phase %d %d..%d\n", p.role, p.first, p.last)
		}
	}
	fmt.Println("peak", s.peak, "start", j.start, "blind", j.blind)
	labels := j.labels(true)
	k := 0
	shown := 0
	for i := range s.blocks {
		b := &s.blocks[i]
		if b.seed {
			continue
		}
		a := tr.Allocations[k]
		k++
		want, ok := named[a.Category]
		if !ok {
			want = Category(a.Category)
		}
		if all := os.Getenv("ALL") != ""; !all && (!b.lives(s.peak) || labels[i].Category == want) || shown > 60 || b.bytes < 1<<16 && os.Getenv("SMALL") == "" {
			continue
		}
		shown++
		st := strings.Split(tc.Site(b.site), "\n")
		fmt.Printf("%d..%d %d bytes %s (is %s) born %s\n", b.born, int64(b.died), b.bytes, labels[i].Category, want, strings.Join(st[:min(5, len(st))], " < "))
	}
}

// TestTruthText prints the peaks of a folder in words.
func TestTruthText(t *testing.T) {
	files, _ := filepath.Glob(filepath.Join(os.Getenv("GPUMEM_CATEGORIES_TRUTH"), "*.pickle"))
	for _, f := range files {
		tc, err := tape.Formats{torch.Format}.Open(context.Background(), f, tape.Options{})
		if err != nil {
			t.Fatal(err)
		}
		p, err := Of(context.Background(), tc, tc.Pools[0])
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("%s: %d: %s\n\n", filepath.Base(f), p.Bytes, p.Text())
		tc.Close()
	}
}
