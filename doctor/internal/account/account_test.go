package account

import (
	"testing"

	"gpumem/doctor/internal/statement"
)

// TestSegmentsAreRounded: as PyTorch's pool does, whose c10/cuda/CUDACachingAllocator.h has
// kMinLargeAlloc of 10 MiB, kLargeBuffer of 20 and kRoundLarge of 2.
func TestSegmentsAreRounded(t *testing.T) {
	const mib = statement.Mib
	for n, want := range map[uint64]uint64{
		1: 2 * mib, mib: 2 * mib, mib + 1: 20 * mib, 10*mib - 1: 20 * mib, 10 * mib: 10 * mib, 10*mib + 1: 12 * mib,
	} {
		if got := roundUp(n); got != want {
			t.Errorf("%d bytes: %d, want %d", n, got, want)
		}
	}
}

// TestHintIsWrongBelowHalfOfTheRequest: PyTorch's hint at fragmentation is refuted where what
// the pool has unused is less than half of the request.
func TestHintIsWrongBelowHalfOfTheRequest(t *testing.T) {
	const gib = statement.Gib
	for idle, want := range map[uint64]bool{0: true, gib - 1: true, gib: false, 3 * gib / 2: false, 2 * gib: false} {
		hint := &statement.Statement{Words: map[string]bool{"fragmentation": true}}
		r := &Refusal{St: hint, Want: 2 * gib, hasIdle: true, idle: idle}
		if got := New(nil).HintIsWrong(r); len(got) > 0 != want {
			t.Errorf("%d bytes unused, 2 GiB requested: %q", idle, got)
		}
	}
}

// TestOwnProcessHoldsItsPoolToTheRounding: what a message says that a process holds is rounded
// to two digits of a GiB, so it may be a little less than its pool.
func TestOwnProcessHoldsItsPoolToTheRounding(t *testing.T) {
	const pool = 10 * statement.Gib
	for _, c := range []struct {
		name string
		used uint64
		want bool
	}{
		{"more", pool + statement.Gib, true}, {"less by the rounding", pool - 5*statement.Mib, true}, {"less by 1 %", pool - pool/100, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &Refusal{listed: []listedProcess{{pid: 1, used: c.used}}}
			if this, others, _ := r.owners(pool, true); this > 0 != c.want || others > 0 == c.want {
				t.Errorf("the program holds %d and others %d", this, others)
			}
		})
	}
}
