package doctortest

import (
	"reflect"
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
