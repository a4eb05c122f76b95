package shim_test

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/preload/internal/shim"
)

// contextsIn makes the charges of a process in a lease of 100 MiB, where a context takes
// 30 and each further one 20.
func contextsIn(t testing.TB) (*account, *shim.Charges) {
	t.Helper()
	a := newAccount(t, 100*mib)
	c, err := shim.NewCharges(a, shim.Process{Outside: 30 * mib, Context: 20 * mib})
	if err != nil {
		t.Fatal(err)
	}
	return a, c
}

// isOutside compares what is counted as outside, in MiB.
func isOutside(t testing.TB, a *account, when string, want uint64) {
	t.Helper()
	if _, _, n := a.counts(); n != want*mib {
		t.Errorf("%s: %d MiB are outside, want %d", when, n/mib, want)
	}
}

// endContext ends a context as a call that goes well does.
func endContext(c *shim.Charges, handle uint64) { c.RemovedContext(c.RemoveContext(handle), true) }

// TestContextsCount: each context beside the first one takes as much as a context does, and the
// last one's end is that of what is outside. Without, six contexts of 500 MiB were one.
func TestContextsCount(t *testing.T) {
	a, c := contextsIn(t)
	for handle, want := range []uint64{1: 30, 50, 70, 90} {
		if handle == 0 {
			continue
		}
		if err := c.TakeContext(); err != nil {
			t.Fatal(err)
		}
		c.TookContext(uint64(handle))
		isOutside(t, a, "one context more", want)
	}
	err := c.TakeContext()
	if isKnown := err != nil && strings.Contains(err.Error(), "the lease has no room for what a process takes"); !isKnown { // to the doctor
		t.Errorf("a context too many: %v", err)
	}
	if !errors.Is(err, device.ErrOutOfMemory) || len(a.refused) != 1 || a.refused[0] != 20*mib {
		t.Errorf("a context beyond the lease = %v; refused %d", err, a.refused)
	}
	isOutside(t, a, "one is refused", 90)
	c.RemovedContext(c.RemoveContext(2), false)
	isOutside(t, a, "the driver did not end one", 90)
	endContext(c, 9)
	isOutside(t, a, "the end of a context that was never counted", 90)
	for i, want := range []uint64{70, 50, 30, 0} {
		endContext(c, uint64(i)+1)
		endContext(c, uint64(i)+1) // which it is not a second time
		isOutside(t, a, "one has ended", want)
	}
	if err := c.TakeContext(); err != nil {
		t.Fatal(err)
	}
	isOutside(t, a, "another first one", 30)
	c.TookContext(0)
	isOutside(t, a, "the driver has not made it", 0)
}

// TestEndOfAContextCountsUntilTheDriverHasEndedIt: what the program took in it, too, whether
// it is ended, or another thread is releasing it at the same time.
func TestEndOfAContextCountsUntilTheDriverHasEndedIt(t *testing.T) {
	const handle = 7
	plain := shim.Key{Value: 8 * mib}
	for _, tc := range []struct {
		name  string
		do    func(c *shim.Charges, token uint64)
		want  uint64 // MiB of the plain memory in the end
		ended bool
	}{
		{"ended", func(c *shim.Charges, token uint64) { c.RemovedContext(token, true) }, 0, true},
		{"not ended", func(c *shim.Charges, token uint64) { c.RemovedContext(token, false) }, 4, false},
	} {
		for _, leaves := range []string{"", "released meanwhile", "not released before the end", "not released after it"} {
			t.Run(tc.name+" "+leaves, func(t *testing.T) {
				a, c := contextsIn(t)
				if err := errors.Join(c.TakeContext(), c.Take(4*mib)); err != nil {
					t.Fatal(err)
				}
				c.TookContext(handle)
				c.Done(plain, 4*mib, handle)
				free := uint64(0)
				if leaves != "" {
					free = c.Remove(plain)
				}
				token := c.RemoveContext(handle)
				if _, charged, out := a.counts(); charged != 4*mib || out != 30*mib {
					t.Errorf("before its end %d bytes are charged and %d outside", charged, out)
				}
				want := tc.want
				switch leaves {
				case "released meanwhile":
					c.Removed(free, true)
					tc.do(c, token)
					want = 0
				case "not released before the end":
					c.Removed(free, false)
					tc.do(c, token)
				case "not released after it":
					tc.do(c, token)
					c.Removed(free, false)
				default:
					tc.do(c, token)
				}
				if _, charged, out := a.counts(); charged != want*mib || (out == 0) != tc.ended || c.Bytes() != charged {
					t.Errorf("%d bytes are charged, %d shown and %d outside; want %d MiB", charged, c.Bytes(), out, want)
				}
				endContext(c, handle)
				if _, charged, out := a.counts(); charged != 0 || out != 0 {
					t.Errorf("in the end %d bytes are charged and %d outside", charged, out)
				}
			})
		}
	}
}

// TestContextsOfThreads: threads make contexts and end them at random, of a driver that fails at
// times. What is counted is never less than what the driver has, nor more than the lease, and
// is equal to it in the end. Without, the room was looked at in one step and counted in
// another: of 64 MiB that the lease did not have contexts were made.
func TestContextsOfThreads(t *testing.T) {
	a, c := contextsIn(t)
	var made atomic.Int64 // contexts of the driver
	var handles atomic.Uint64
	has := func() uint64 {
		if n := made.Load(); n > 0 {
			return 30*mib + uint64(n-1)*20*mib
		}
		return 0
	}
	var refused atomic.Int64
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 0))
			var mine []uint64
			for range 500 {
				if len(mine) > 0 && r.IntN(2) == 0 {
					token := c.RemoveContext(mine[0])
					if r.IntN(8) == 0 {
						c.RemovedContext(token, false)
						continue
					}
					made.Add(-1)
					c.RemovedContext(token, true)
					mine = mine[1:]
					continue
				}
				if err := c.TakeContext(); err != nil {
					refused.Add(1)
					continue
				}
				if r.IntN(8) == 0 {
					c.TookContext(0)
					continue
				}
				made.Add(1)
				if n := has(); n > 100*mib {
					t.Errorf("%d MiB of contexts in a lease of 100", n/mib)
				}
				runtime.Gosched()
				handle := handles.Add(1)
				c.TookContext(handle)
				mine = append(mine, handle)
			}
			for _, handle := range mine {
				made.Add(-1)
				endContext(c, handle)
			}
		})
	}
	group.Wait()
	isOutside(t, a, "in the end", 0)
	if refused.Load() == 0 {
		t.Error("nothing was refused: the lease was never full")
	}
}

// TestWhatIsOutsideWaitsForItsAnswer: of two threads in a process without a context one asks for
// what is outside, and the other's memory waits for the answer. Without, the second one had
// memory before it was known whether there is room for its context.
func TestWhatIsOutsideWaitsForItsAnswer(t *testing.T) {
	a, c := contextsIn(t)
	if err := c.TakeContext(); err != nil {
		t.Fatal(err)
	}
	c.TookContext(1)
	endContext(c, 1)
	a.others = 80 * mib
	second := make(chan error, 1)
	a.want = func(uint64) error { // is called by the first one while it asks
		a.want = nil
		go func() { second <- c.Take(2 * mib) }()
		for range 10000 {
			if len(second) > 0 {
				t.Error("memory is there before there is room for the context")
				break
			}
			runtime.Gosched()
		}
		return device.ErrNotSupported
	}
	if err := c.Enter(); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("without room for the context: %v", err)
	}
	if err := <-second; !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("memory without room for the context: %v", err)
	}
	isOutside(t, a, "in the end", 0)
}

// TestContextThatEndsWhileAnotherIsAskedFor: the last context ends while a thread waits for room
// for a second one. What is outside stays counted for that, which is the first one then, or
// ends with the refusal.
func TestContextThatEndsWhileAnotherIsAskedFor(t *testing.T) {
	for _, served := range []bool{true, false} {
		a, c := contextsIn(t)
		if err := c.TakeContext(); err != nil || a.uncertain != 0 {
			t.Fatal(err, a.uncertain)
		}
		c.TookContext(1)
		a.others = 60 * mib
		a.want = func(uint64) error {
			endContext(c, 1)
			if !served {
				return device.ErrNotSupported
			}
			a.release(60 * mib)
			return nil
		}
		err, want := c.TakeContext(), uint64(0)
		if served {
			want = 30
		}
		if (err == nil) != served {
			t.Errorf("the second context: %v", err)
		}
		isOutside(t, a, "after the first one's end", want)
	}
	a, c := contextsIn(t)
	if err := errors.Join(c.TakeContext(), c.TakeContext()); err != nil || a.uncertain == 0 {
		t.Errorf("two contexts: %v, and others may learn from this process", err)
	}
}

// TestEndOfThePoolKeepsOtherContexts: with its context the memory of the driver's own pool is
// no longer the pool's, and counts while another context is there.
func TestEndOfThePoolKeepsOtherContexts(t *testing.T) {
	for _, others := range []int{0, 1} {
		a, c := contextsIn(t)
		d := newDriver(t, sim.Config{Total: 1 << 30})
		p := openOn(t, d, "async", shim.Config{Account: a, Charges: c})
		for i := range 1 + others {
			if err := c.TakeContext(); err != nil {
				t.Fatal(err)
			}
			c.TookContext(uint64(i) + 1)
		}
		if _, err := p.Alloc(mib); err != nil {
			t.Fatal(err)
		}
		own, err := d.DefaultPool()
		if err != nil {
			t.Fatal(err)
		}
		if others > 0 { // which have a block in it
			_, err := d.Device.AllocAsync(own, mib, d.stream(t))
			reserved, e := d.Device.PoolGetAttribute(own, device.PoolReservedCurrent)
			if err := errors.Join(err, e, c.ReservedPooled(uint64(own), reserved, 0)); err != nil {
				t.Fatal(err)
			}
		}
		token := c.RemoveContext(1)
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		c.RemovedContext(token, true)
		left := uint64(others) * 32 * mib
		if held, charged, out := a.counts(); held != 0 || charged != left || c.Bytes() != left || out != uint64(others)*30*mib {
			t.Errorf("with %d other contexts %d bytes are the pool's, %d charged, %d shown and %d outside", others, held, charged, c.Bytes(), out)
		}
	}
}

// TestMemoryOfWhichNothingIsLearned: others learn what lies outside from processes that take
// nothing past the pool but handles, whose bytes the driver is given.
func TestMemoryOfWhichNothingIsLearned(t *testing.T) {
	for kind, uncertain := range map[shim.Kind]int{shim.Plain: 1, shim.Handle: 0, shim.Array: 1} {
		a := newAccount(t, 100*mib)
		c := newCharges(t, a)
		if err := c.Take(2 * mib); err != nil {
			t.Fatal(err)
		}
		c.Done(shim.Key{Kind: kind, Value: 2 * mib}, 2*mib, 0)
		if a.uncertain != uncertain {
			t.Errorf("kind %d: it is said %d times that the process is uncertain, want %d", kind, a.uncertain, uncertain)
		}
	}
}

// TestContextThatIsThereCountsBeyondTheLease: the driver has made it, and nobody asked before.
func TestContextThatIsThereCountsBeyondTheLease(t *testing.T) {
	for _, there := range []bool{false, true} {
		a := newAccount(t, 100*mib)
		c, err := shim.NewCharges(a, shim.Process{Outside: 300 * mib, There: there})
		full := errors.Is(err, device.ErrOutOfMemory)
		held := a.held[shim.Outside]
		isCounted, isRefused := err == nil && held == 300*mib, full && held == 0
		if there && !isCounted || !there && !isRefused {
			t.Errorf("there %v: %d bytes are held, %v", there, held, err)
		}
		if c != nil && !errors.Is(c.Take(1), device.ErrOutOfMemory) {
			t.Error("memory is served beyond the lease")
		}
	}
}
