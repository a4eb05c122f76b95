package doctortest

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestSamplesAreTheSameEachTime checks that a class draws from its name and its
// number alone: a new class must not change the messages of another.
func TestSamplesAreTheSameEachTime(t *testing.T) {
	if !reflect.DeepEqual(Samples(3), Samples(3)) {
		t.Fatal("two calls gave different messages")
	}
	few := map[string]string{}
	for _, s := range Samples(1) {
		few[s.Class] = s.Log
	}
	for _, s := range Samples(2) {
		if log, ok := few[s.Class]; ok && log != s.Log {
			t.Errorf("%s: its first message depends on how many are drawn", s.Class)
		}
		delete(few, s.Class)
	}
}

// TestSamplesAreWellFormed checks what every message promises, and that the
// numbers of a class vary.
func TestSamplesAreWellFormed(t *testing.T) {
	known := []string{idMulti, idJAXTF, idStarves, idLimit, idFragment, idTooBig, idRemat, idOccupied, idRace, idSecondPool, idOtherAllocator,
		idModule, idNCCL, idGraph, idLeak, idHost, idUnified, idQuota, idLimiter, idEstimate, idNonfatal, idMismatch, idNotMemory}
	logs := map[string][]string{}
	for _, s := range Samples(6) {
		logs[s.Class] = append(logs[s.Class], s.Log)
		if !strings.HasSuffix(s.Log, "\n") || s.Why == "" || len(s.Causes) == 0 && !s.Open {
			t.Errorf("%s: %+v", s.Class, s)
		}
		for _, id := range s.Causes {
			if !slices.Contains(known, id) {
				t.Errorf("%s: cause %s", s.Class, id)
			}
		}
	}
	for class, list := range logs {
		slices.Sort(list)
		if n := len(slices.Compact(list)); n < 2 {
			t.Errorf("%s: %d different messages of 6", class, n)
		}
	}
	t.Logf("%d classes", len(logs))
}

func TestBalanceCauses(t *testing.T) {
	for _, c := range []struct {
		name string
		b    balance
		want []string
	}{
		{"served", balance{total: 24 * gib, reserved: 8 * gib, inUse: 7 * gib, want: 3 * gib}, nil},
		{"others", balance{total: 24 * gib, others: 14 * gib, context: gib, reserved: 8 * gib, inUse: 7 * gib, want: 3 * gib}, []string{idOccupied}},
		{"limit", balance{total: 24 * gib, context: gib, reserved: 8 * gib, inUse: 7 * gib, limit: 9 * gib, want: 3 * gib}, []string{idLimit}},
		{"holes", balance{total: 24 * gib, context: gib, reserved: 22 * gib, inUse: 12 * gib, want: 5 * gib}, []string{idFragment}},
		{"holes and what is free", balance{total: 24 * gib, context: gib, reserved: 20 * gib, inUse: 18 * gib, want: 4 * gib}, []string{idFragment}},
		{"other allocator", balance{total: 24 * gib, context: gib, elsewhere: 20 * gib, reserved: 2 * gib, inUse: 2 * gib, want: 4 * gib}, []string{idOtherAllocator}},
		{"too big", balance{total: 24 * gib, context: gib, reserved: 22 * gib, inUse: 21 * gib, want: 4 * gib}, []string{idTooBig}},
		{"others and holes", balance{total: 24 * gib, context: gib, others: 8 * gib, reserved: 14 * gib, inUse: 8 * gib, want: 5 * gib}, []string{idOccupied, idFragment}},
		{"only both", balance{total: 24 * gib, context: gib, others: 4 * gib, reserved: 18 * gib, inUse: 12 * gib, want: 9 * gib}, nil},
	} {
		if got := c.b.causes(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// numbers are the runs of digits in a text, in their order of size.
func numbers(text string) []string {
	list := regexp.MustCompile(`\d+`).FindAllString(text, -1)
	slices.Sort(list)
	return list
}

// codes are the names in capitals, such as CUDA_ERROR_OUT_OF_MEMORY.
func codes(text string) []string {
	list := regexp.MustCompile(`\b[A-Z][A-Z0-9]*_[A-Z0-9_]+`).FindAllString(text, -1)
	slices.Sort(list)
	return list
}

// TestParaphraseKeepsNumbersAndCodes checks that other words add and lose none.
func TestParaphraseKeepsNumbersAndCodes(t *testing.T) {
	changed := 0
	samples := Samples(2)
	for i, s := range samples {
		text := Paraphrase(s.Log, i)
		if text != Paraphrase(s.Log, i) {
			t.Fatalf("%s: two calls gave different words", s.Class)
		}
		if text != s.Log {
			changed++
		}
		if !slices.Equal(numbers(text), numbers(s.Log)) {
			t.Errorf("%s: other numbers\n%s\nwas\n%s", s.Class, text, s.Log)
		}
		if !slices.Equal(codes(text), codes(s.Log)) {
			t.Errorf("%s: other codes %q, was %q", s.Class, codes(text), codes(s.Log))
		}
	}
	if changed < len(samples)/2 {
		t.Errorf("%d of %d changed", changed, len(samples))
	}
}

// TestParaphraseLeavesNames checks that words within names and settings stay.
func TestParaphraseLeavesNames(t *testing.T) {
	for _, text := range []string{
		"std::bad_alloc at memory.available=3 --failed-to=out-of-memory out_of_memory: 5\n",
		"CUDA_ERROR_OUT_OF_MEMORY torch.OutOfMemoryError RESOURCE_EXHAUSTED\n",
		"Limit: 5\nInUse: 4\n",
	} {
		for n := range 20 {
			got := strings.ReplaceAll(Paraphrase(text, n), " - ", ": ")
			if got != text {
				t.Errorf("%q became %q", text, got)
			}
		}
	}
}

// TestWrapsLoseNothing checks that joined pieces are the log again.
func TestWrapsLoseNothing(t *testing.T) {
	flat := func(text string) string { return strings.Join(strings.Fields(text), "") }
	for _, s := range Samples(1) {
		for _, width := range []int{60, 79, 120, 200} {
			if got := hardWrap(s.Log, width, plainPiece); strings.ReplaceAll(got, "\n", "") != strings.ReplaceAll(s.Log, "\n", "") {
				t.Errorf("%s: hard wrap at %d", s.Class, width)
			}
			got := wordWrap(s.Log, width, plainPiece)
			if flat(got) != flat(s.Log) {
				t.Errorf("%s: word wrap at %d", s.Class, width)
			}
			for line := range strings.Lines(got) {
				if len(line) > width+1 && strings.Contains(strings.TrimSpace(line[:width]), " ") {
					t.Errorf("%s: word wrap at %d left %q", s.Class, width, line)
				}
			}
		}
	}
}

func TestBreakages(t *testing.T) {
	const log = "E 1] <a_b> *c* 'd'\n  e\n"
	for _, b := range Breakages() {
		got := b.Apply(log, 3)
		if got != b.Apply(log, 3) {
			t.Errorf("%s: two calls differ", b.Name)
		}
		if got == log && !strings.Contains(b.Name, "wrap") {
			t.Errorf("%s: nothing changed", b.Name)
		}
	}
}
