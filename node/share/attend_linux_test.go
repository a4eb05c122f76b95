package share

import (
	"errors"
	"os"
	"testing"

	"gpumem/device"
	"gpumem/node/internal/registry"
)

// TestLeaseThatOnlyItsKeeperHoldsIsWaitedFor: the program has ended, and its keeper is
// about to see that. Nothing else moves. Without a keeper the answer is no, at once.
func TestLeaseThatOnlyItsKeeperHoldsIsWaitedFor(t *testing.T) {
	noMovement(t)
	for _, tc := range []struct{ marked, ended, given bool }{{true, true, true}, {true, false, false}, {false, true, false}} {
		r, err := Open(t.TempDir())
		must(t, err)
		looks := 0
		var old *Lease
		m := meterFunc(func() device.Status {
			if looks++; looks == 3 { // the keeper lets go
				must(t, old.File().Close())
			}
			return device.Status{Info: device.Info{Total: 100}, Free: 100}
		})
		q := Request{Device: "x", Meter: m, Bytes: 60}
		leases, err := r.Acquire(t.Context(), q)
		must(t, err)
		old = leases[0]
		program := start(t, "step", "nothing")
		must(t, old.Tell(program.Process.Pid))
		if tc.ended {
			program.kill(t)
		}
		if tc.marked {
			again, err := os.OpenFile(leaseGPU(r, old).Path(old.ID(), registry.LockKind), os.O_RDWR, 0)
			must(t, err)
			defer again.Close()
			must(t, registry.Attend(again))
		}
		got, err := r.Acquire(t.Context(), q)
		var no *InsufficientMemoryError
		switch {
		case tc.given && (err != nil || looks < 3):
			t.Errorf("%+v: after %d looks %v; want the lease", tc, looks, err)
		case !tc.given && (!errors.As(err, &no) || looks != 2):
			t.Errorf("%+v: after %d looks %v; want no at the second", tc, looks, err)
		}
		for _, l := range got {
			must(t, l.Close())
		}
		if !tc.ended {
			program.kill(t)
		}
	}
}

// TestKeeperIsNotTheProgramOfItsLease: it has the lock, too, but lists and the count of
// memory mean the program.
func TestKeeperIsNotTheProgramOfItsLease(t *testing.T) {
	r, gpu := newGPU(t)
	leases, err := take(r, gpu, 5, 1)
	must(t, err)
	if by := holdersOf(t, r, leases[0].ID()); len(by) != 1 || by[0] != os.Getpid() {
		t.Errorf("before: %v", by)
	}
	again, err := os.OpenFile(leaseGPU(r, leases[0]).Path(leases[0].ID(), registry.LockKind), os.O_RDWR, 0)
	must(t, err)
	must(t, registry.Attend(again))
	if by := holdersOf(t, r, leases[0].ID()); len(by) != 0 {
		t.Errorf("the keeper counts: %v", by)
	}
	must(t, again.Close())
	must(t, leases[0].Close())
}
