package logs

// The order of a log's lines: what the allocator did first is
// played first, whichever thread wrote its line first.

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
)

// at is a line of the allocator with a time in microseconds and a thread.
func at(us, thread int, text string) string {
	return fmt.Sprintf("I1122 10:00:%02d.%06d   %d bfc_allocator.cc:1] %s\n", us/1_000_000, us%1_000_000, thread, text)
}

func allocAt(us, thread, size, addr int) string {
	return at(us, thread, fmt.Sprintf("%s AllocateRaw,p,%d,%#x,*", memDebug, size, addr))
}

func freeAt(us, thread, size, addr int) string {
	return at(us, thread, fmt.Sprintf("%s DeallocateRaw,p,%d,%#x,*", memDebug, size, addr))
}

// noThread is a line that does not say which thread wrote it.
func noThread(us int, text string) string {
	return fmt.Sprintf("I1122 10:00:00.%06d bfc_allocator.cc:1] %s\n", us, text)
}

func servedAt(us, thread, addr int) string {
	return at(us, thread, fmt.Sprintf("Returning: %#x", addr))
}
func freedAt(us, thread int) string { return at(us, thread, "F: ***___") }

func TestLogOrder(t *testing.T) {
	const moved = "1 line out of order, as several threads write the log; put in order by the "
	byTimes := moved + "times, which can be wrong by microseconds; a log with the lines \"Returning\" and \"F\" has the exact order"
	byMarks := moved + "allocator's lines \"Returning\" and \"F\""
	lines := func(l ...string) string { return strings.Join(l, "") }
	for _, c := range []struct{ name, in, want, note string }{
		{"an allocation written late comes before what was written before it",
			lines(allocAt(0, 7, 1, 1), allocAt(30, 7, 3, 3), allocAt(20, 8, 2, 2)),
			"1 2 3", byTimes},
		{"a free with an early time stays behind what was written before it",
			lines(allocAt(0, 7, 1, 1), allocAt(30, 7, 3, 3), freeAt(10, 8, 1, 1), allocAt(40, 7, 2, 2)),
			"1 3 -1 2", ""},
		{"an allocation made before a line before a free comes before the free",
			lines(allocAt(0, 7, 1, 1), allocAt(30, 7, 3, 3), freeAt(40, 8, 1, 1), allocAt(20, 9, 2, 2)),
			"1 2 3 -1", byTimes},
		{"equal times stay as written",
			lines(allocAt(5, 7, 1, 1), freeAt(5, 7, 1, 1), allocAt(5, 7, 2, 1)),
			"1 -1 2", ""},
		{"the clock was set back",
			lines(allocAt(20_000_000, 7, 1, 1), allocAt(20_000_001, 7, 2, 2), allocAt(1, 7, 3, 3), freeAt(2, 7, 1, 1), allocAt(3, 7, 4, 4)),
			"1 2 3 -1 4", ""},
		{"the free of a live address comes before the next block there, if times contradict",
			lines(allocAt(0, 7, 1, 1), allocAt(10, 7, 2, 1), freeAt(20, 8, 1, 1)),
			"1 -1 2", byTimes},
		{"marks decide, not times",
			lines(servedAt(1, 7, 1), servedAt(2, 8, 2), allocAt(1, 8, 2, 2), allocAt(9, 7, 1, 1)),
			"1 2", byMarks},
		{"a free waits for its mark",
			lines(servedAt(1, 7, 1), allocAt(1, 7, 1, 1), freeAt(2, 7, 1, 1), servedAt(3, 8, 2), freedAt(4, 7), allocAt(5, 8, 2, 2)),
			"1 2 -1", byMarks},
		{"a free without a mark is done when its thread goes on",
			lines(servedAt(1, 7, 1), allocAt(1, 7, 1, 1), freeAt(2, 7, 1, 1), servedAt(3, 7, 2), allocAt(4, 7, 2, 2)),
			"1 -1 2", ""},
		{"a mark without a line is forgotten at the end",
			lines(servedAt(1, 7, 1), servedAt(2, 8, 2), allocAt(3, 8, 2, 2)),
			"2", ""},
		{"a refusal has no mark",
			lines(servedAt(1, 7, 1), allocAt(1, 7, 1, 1), at(2, 8, memDebug+" AllocateRaw,p,9,0,*"), servedAt(3, 7, 2), allocAt(3, 7, 2, 2)),
			"1 9! 2", ""},
		{"lines without a thread: a free waits for its mark, whatever comes before",
			lines(noThread(1, "Returning: 0x1"), noThread(1, memDebug+" AllocateRaw,p,1,0x1,*"), noThread(2, memDebug+" DeallocateRaw,p,1,0x1,*"),
				noThread(3, "Returning: 0x2"), noThread(4, "F: ***___"), noThread(5, memDebug+" AllocateRaw,p,2,0x2,*")),
			"1 2 -1", byMarks},
		{"a log without marks of frees: they are done where they stand, once that is seen",
			lines(servedAt(1, 7, 1), allocAt(1, 7, 1, 1), servedAt(2, 8, 2), allocAt(2, 8, 2, 2), freeAt(3, 7, 1, 1), servedAt(4, 7, 3), allocAt(4, 7, 3, 3),
				freeAt(5, 8, 2, 2), servedAt(6, 7, 4), allocAt(6, 7, 4, 4)),
			"1 2 -1 3 -2 4", ""},
		{"after the clock was set back times count as before",
			lines(allocAt(20_000_000, 7, 1, 1), allocAt(30, 7, 2, 2), allocAt(20, 8, 3, 3), allocAt(40, 7, 4, 4)),
			"1 3 2 4", byTimes},
		{"of two frees of an address the first comes before the next block there",
			lines(allocAt(0, 7, 1, 1), allocAt(10, 7, 2, 1), freeAt(20, 8, 1, 1), allocAt(25, 7, 4, 4), allocAt(30, 7, 3, 1), freeAt(40, 8, 2, 1)),
			"1 -1 2 4 -2 3", "2 lines" + strings.TrimPrefix(byTimes, "1 line")},
		{"marks after lines without",
			lines(allocAt(2, 7, 1, 1), allocAt(1, 7, 2, 2), servedAt(3, 7, 3), freeAt(4, 8, 1, 1), allocAt(5, 7, 3, 3), freedAt(6, 8)),
			"2 1 3 -1", "2 lines" + strings.TrimPrefix(byMarks, "1 line")},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := mustRead(t, []byte(c.in), tape.Options{Format: "memdebug"})
			if d := cmp.Diff(c.want, sizesOf(t, tr.Pools[0])); d != "" {
				t.Error(d)
			}
			var notes []string
			for _, n := range tr.Notes {
				if strings.Contains(n, "out of order") {
					notes = append(notes, n)
				}
			}
			if got := strings.Join(notes, ""); got != c.note {
				t.Errorf("note %q, want %q", got, c.note)
			}
			if err := tracetest.CheckTrace(tr); err != nil {
				t.Error(err)
			}
		})
	}
}

// sizesOf lists a pool's events by the sizes of their blocks: a free is negative,
// a refusal has a mark.
func sizesOf(t *testing.T, p *tape.Pool) string {
	t.Helper()
	size := make([]uint64, p.Slots)
	var out []string
	for _, e := range tracetest.Events(t, p, 100) {
		switch {
		case e.Op == tape.Free:
			out = append(out, fmt.Sprint("-", size[e.Slot]))
		case e.Refused:
			out = append(out, fmt.Sprint(e.Bytes, "!"))
		default:
			size[e.Slot] = e.Bytes
			out = append(out, fmt.Sprint(e.Bytes))
		}
	}
	return strings.Join(out, " ")
}

// TestLogOrderKeepsLittle: what waits is bounded, whatever lines are missing.
func TestLogOrderKeepsLittle(t *testing.T) {
	var played int
	o := logOrder{play: func(*logEvent) error { played++; return nil }}
	most := func(name string, n int) {
		t.Helper()
		if n > orderWindow+1 {
			t.Fatalf("%s: %d wait", name, n)
		}
	}
	play := &tape.Blocks{}
	for i := range 3 * orderWindow {
		if err := o.add(&logEvent{play: play, addr: uint64(i + 1), now: uint64(i), timed: true, line: i}); err != nil {
			t.Fatal(err)
		}
		most("by times", len(o.waiting))
	}
	for i := range 3 * orderWindow { // marks whose lines never come, then frees without marks
		if err := o.served(1, uint64(i)); err != nil {
			t.Fatal(err)
		}
		if err := o.add(&logEvent{play: play, addr: uint64(i), free: true, line: i}); err != nil {
			t.Fatal(err)
		}
		most("by marks", max(len(o.queue), len(o.open), len(o.freeing)))
	}
	if err := o.end(); err != nil {
		t.Fatal(err)
	}
	if played != 6*orderWindow || len(o.waiting)+len(o.queue)+len(o.freeing) > 0 {
		t.Errorf("%d events were played; %d, %d, %d wait", played, len(o.waiting), len(o.queue), len(o.freeing))
	}
}

// TestLogOrderLetsAFreeOfEachThreadWait: in a log that has marks of frees, up to
// maxFreeing wait for theirs; then all are played in the order of their lines.
func TestLogOrderLetsAFreeOfEachThreadWait(t *testing.T) {
	var played []int
	o := logOrder{marked: true, freeMarks: true, play: func(e *logEvent) error { played = append(played, e.line); return nil }}
	play := &tape.Blocks{}
	for i := range maxFreeing + 1 {
		if len(played) > 0 || len(o.freeing) != i {
			t.Fatalf("after %d frees %d are played and %d wait", i, len(played), len(o.freeing))
		}
		if err := o.add(&logEvent{play: play, addr: uint64(i + 1), free: true, thread: uint64(i + 1), line: i}); err != nil {
			t.Fatal(err)
		}
	}
	if len(played) != maxFreeing+1 || !slices.IsSorted(played) || len(o.freeing) > 0 {
		t.Errorf("%d of %d are played, sorted %v; %d wait", len(played), maxFreeing+1, slices.IsSorted(played), len(o.freeing))
	}
}

// TestJAX012: a run in three threads, with the allocator's marks and without: the
// same events, none of them at an address that is live or of a block that is not.
func TestJAX012(t *testing.T) {
	data := tracetest.Sample(t, "jax012.log.gz")
	whole := mustRead(t, data, tape.Options{})
	var log bytes.Buffer
	for line := range bytes.Lines(data) {
		if bytes.Contains(line, []byte(memDebug)) {
			log.Write(line)
		}
	}
	filtered := mustRead(t, log.Bytes(), tape.Options{})
	for _, tr := range []*tape.Trace{whole, filtered} {
		if err := tracetest.CheckTrace(tr); err != nil {
			t.Error(err)
		}
		for _, n := range tr.Notes {
			if strings.Contains(n, "live") {
				t.Error(n)
			}
		}
	}
	elsewhere := 0
	for i, p := range whole.Pools {
		f := filtered.Pools[i]
		if p.Events != f.Events || p.EndBlocks != 0 || f.EndBlocks != 0 || p.Placed != p.Allocs {
			t.Errorf("%s: %d and %d events, %d and %d blocks in the end, %d of %d places",
				p.Name, p.Events, f.Events, p.EndBlocks, f.EndBlocks, p.Placed, p.Allocs)
		}
		x, y := addressesOf(t, p), addressesOf(t, f)
		if len(x) != len(y) {
			t.Fatalf("%s: %d and %d events", p.Name, len(x), len(y))
		}
		for k := range x {
			if x[k] != y[k] {
				elsewhere++
			}
		}
		slices.Sort(x)
		slices.Sort(y)
		if !slices.Equal(x, y) {
			t.Errorf("%s: the addresses differ", p.Name)
		}
	}
	// One allocation of the host was served some microseconds earlier than its time,
	// and what lies between moves by one.
	if elsewhere > 4 {
		t.Errorf("without marks %d events of %d are elsewhere in the order, want 4 at most", elsewhere, whole.Events)
	}
}

func addressesOf(t *testing.T, p *tape.Pool) []uint64 {
	t.Helper()
	all, err := tracetest.PlacesOf(p, tracetest.Events(t, p, 100))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// What waits for an earlier line is bounded: a line that is late by more is played where
// it stands.
func TestLogOrderBounds(t *testing.T) {
	var log strings.Builder
	var want []string
	for i := range 5000 {
		log.WriteString(allocAt(1000+i, 7, 10+i, 1+i))
		want = append(want, fmt.Sprint(10+i))
	}
	log.WriteString(allocAt(1, 8, 9, 9000)) // the first of all by its time
	tr := mustRead(t, []byte(log.String()), tape.Options{Format: "memdebug"})
	// 4096 events wait when it comes, so 904 were played.
	want = slices.Insert(want, 5000-4096, "9")
	if d := cmp.Diff(strings.Join(want, " "), sizesOf(t, tr.Pools[0])); d != "" {
		t.Errorf("late by 5000 lines (-want +got)\n%s", d)
	}
	for _, c := range []struct {
		name   string
		marked bool // a free of the log has a mark
		frees  int  // without one, each of a thread that does nothing else
		waits  bool // until the end of the log
	}{
		{"as many frees as threads may have", true, 1024, true},
		{"one more", true, 1025, false},
		{"as many frees as before a log counts as one without marks", false, 64, true},
		{"one more than that", false, 65, false},
	} {
		var log strings.Builder
		for i := range c.frees + 1 {
			log.WriteString(servedAt(i, 7, 1+i) + allocAt(i, 7, 10, 1+i))
		}
		if c.marked {
			log.WriteString(freeAt(5000, 7, 10, 1+c.frees) + freedAt(5001, 7))
		}
		for i := range c.frees {
			log.WriteString(freeAt(6000+i, 100+i, 10, 1+i))
		}
		log.WriteString(servedAt(9000, 7, 9000) + allocAt(9000, 7, 77, 9000))
		tr := mustRead(t, []byte(log.String()), tape.Options{Format: "memdebug"})
		last := sizesOf(t, tr.Pools[0])
		last = last[strings.LastIndexByte(last, ' ')+1:]
		if waits := last != "77"; waits != c.waits {
			t.Errorf("%s: the last event is %s", c.name, last)
		}
	}
}
