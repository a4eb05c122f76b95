package kineto

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
)

var timelines = tape.Formats{Timeline}

// atEnd lists what lives at the end of a pool, as "BYTES CATEGORY", sorted.
func atEnd(t testing.TB, tr *tape.Trace) (list []string) {
	t.Helper()
	live := make(map[uint32]string)
	for _, e := range tracetest.Events(t, tr.Pools[0], 100) {
		if e.Op == tape.Alloc {
			live[e.Slot] = fmt.Sprint(e.Bytes, " ", tr.Site(e.Site))
		} else {
			delete(live, e.Slot)
		}
	}
	return slices.Sorted(maps.Values(live))
}

// sumsOf is the slow reader of a raw timeline: what the events sum up to, at most and at the end,
// and what is left of each size and category.
func sumsOf(t testing.TB, data []byte) (peak, end int64, left []string) {
	t.Helper()
	var events [][4]int64
	if err := json.Unmarshal(data, &events); err != nil {
		t.Fatal(err)
	}
	count := make(map[string]int)
	for _, e := range events {
		end += e[2]
		if written := e[1] == 3 && e[2] < 0; !written {
			peak = max(peak, end)
		}
		key := fmt.Sprint(max(e[2], -e[2]), " ", categories[e[3]])
		if e[2] > 0 {
			count[key]++
		} else if e[2] < 0 {
			count[key]--
		}
	}
	for key, n := range count {
		for range n {
			left = append(left, key)
		}
	}
	return peak, end, slices.Sorted(slices.Values(left))
}

func compareSums(t *testing.T, data []byte) {
	t.Helper()
	tr := tracetest.MustRead(t, timelines, data, tape.Options{})
	if err := tracetest.CheckTrace(tr); err != nil {
		t.Error(err)
	}
	peak, end, left := sumsOf(t, data)
	if p := tr.Pools[0]; p.PeakLive != uint64(peak) || p.EndLive != uint64(end) || !slices.Equal(atEnd(t, tr), left) || len(tr.Notes) != 1 {
		t.Errorf("peak %d, end %d %q, notes %q; want %d, %d %q", p.PeakLive, p.EndLive, atEnd(t, tr), tr.Notes, peak, end, left)
	}
}

func TestRealTimelineHasTheSumsOfTheSlowReader(t *testing.T) {
	compareSums(t, tracetest.Sample(t, "timeline.raw.json.gz"))
}

// A random program's blocks change their category when they are written to, and go.
func TestRandomTimelinesHaveTheSumsOfTheSlowReader(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		type block struct{ bytes, category int }
		var live []block
		var events [][4]int
		now := 1_795_957_688_503_008_945
		for range rnd.IntN(5) {
			b := block{1 + rnd.IntN(5), rnd.IntN(8)}
			live = append(live, b)
			events = append(events, [4]int{-1, older, b.bytes, b.category})
		}
		for range 5 + rnd.IntN(200) {
			now += rnd.IntN(1000)
			k := 0
			if len(live) > 0 {
				k = rnd.IntN(len(live))
			}
			switch op := rnd.IntN(3); {
			case op == 0 && len(live) > 0:
				events = append(events, [4]int{now, destroyed, -live[k].bytes, live[k].category})
				live = slices.Delete(live, k, k+1)
			case op == 1 && len(live) > 0:
				events = append(events, [4]int{now, written, -live[k].bytes, live[k].category})
				live[k].category = rnd.IntN(8)
				events = append(events, [4]int{now, written, live[k].bytes, live[k].category})
			default:
				b := block{1 + rnd.IntN(5), rnd.IntN(8)}
				live = append(live, b)
				events = append(events, [4]int{now, created, b.bytes, b.category})
			}
		}
		data, err := json.Marshal(events)
		if err != nil {
			t.Fatal(err)
		}
		compareSums(t, data)
	}
}

func TestTimelinesThatAreNotReadSayWhy(t *testing.T) {
	for text, want := range map[string]string{
		"[[1795957688503009, 1795957688503010], [[0, 5, 0, 0, 0, 0, 0, 0, 1024], [0, 1, 0, 0, 0, 0, 0, 0, 0]]]": `in: a memory timeline of PyTorch's profiler with sums alone, ` +
			`whose peak is 1.00 KiB (5 B parameter, 1 KiB unknown); export_memory_timeline("NAME.raw.json.gz") has the blocks, which are read`,
		"[[1795957688503009], [[7, 5]]]": `in: a memory timeline of PyTorch's profiler with sums alone, ` +
			`whose peak is 12 B (5 B parameter); export_memory_timeline("NAME.raw.json.gz") has the blocks, which are read`,
		"[[1795957688503009], [[0,1,1,1,1,1,1,1,1,1]]]": "in: byte 42: damaged: sums of more than 8 categories; copy the file again",
		"[[-1, 1, 8, 0], [5, 4, 8, 0]]":                 "in: byte 28: damaged: an event of PyTorch's memory timeline has four numbers, such as [1795957688503008945, 2, 65536, 4]; copy the file again",
		"[[-1, 1, 8, 0], [5, 4, 8]]":                    "in: byte 25: damaged: an event of PyTorch's memory timeline has four numbers, such as [1795957688503008945, 2, 65536, 4]; copy the file again",
		"[[-1, 1, 8, 0], [5, 2, 8, 0], [-1, 1, 8, 0]]":  "in: damaged: a block that is older than the recording stands behind an event of it; copy the file again",
		"[[-1, 1, 8, 0], [5, 2":                         `in: byte 21: the file is cut short: "]" is missing; copy the file again`,
		"[[-1, 1, 8, 0], [5, 2, 1e3, 0]]":               "in: byte 26: damaged: an event is a time, what happened, bytes and a category; copy the file again",
	} {
		_, err := timelines.Read(context.Background(), strings.NewReader(text), "in", tape.Options{})
		tracetest.WantInputError(t, err, want)
	}
}

func FuzzTimeline(f *testing.F) {
	f.Add([]byte("[[-1, 1, 8, 0], [5, 2, 8, 1], [6, 3, -8, 1], [6, 3, 8, 2], [9, 4, -8, 2], [9, 4, -7, 2], [9, 3, 7, 2]]"))
	f.Add([]byte("[[1795957688503009, 1795957688503010], [[0, 5, 0, 0, 0, 0, 0, 0, 1024], [0, 1, 0, 0, 0, 0, 0, 0, 0]]]"))
	f.Fuzz(func(t *testing.T, in []byte) { tracetest.FuzzRead(t, timelines, in, "torch-timeline") })
}
