package share

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gpumem/device"
	"gpumem/node/internal/registry"
)

// Requests for several GPUs.

// fixed is a GPU of 24 GiB that nobody uses.
var fixed = meterFunc(func() device.Status {
	return device.Status{Info: device.Info{Total: 24 * gib}, Free: 24 * gib}
})

// ask makes a request for some GiB of each GPU.
func ask(gibs uint64, wait bool, gpus ...string) []Request {
	var qs []Request
	for _, gpu := range gpus {
		q := Request{Device: gpu, Meter: fixed, Bytes: gibs * gib}
		if wait {
			q.Wait = func(Position) {}
		}
		qs = append(qs, q)
	}
	return qs
}

// asked is a request that runs in a goroutine.
type asked struct {
	cancel context.CancelFunc
	done   chan struct{}
	leases [][]*Lease
	err    error
}

func askLater(t *testing.T, r *Registry, qs []Request) *asked {
	ctx, cancel := context.WithCancel(t.Context())
	a := &asked{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.leases, a.err = r.AcquireAll(ctx, qs...)
	}()
	t.Cleanup(func() { cancel(); <-a.done; a.close() })
	return a
}

func (a *asked) served() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// wait waits until the request has ended, and fails the test if it is not served.
func (a *asked) wait(t *testing.T) {
	t.Helper()
	eventually(t, "the request has ended", a.served)
	must(t, a.err)
}

func (a *asked) close() {
	for _, ls := range a.leases {
		for _, l := range ls {
			_ = l.Close()
		}
	}
}

func newRegistry(t *testing.T) *Registry {
	t.Helper()
	noMovement(t)
	r, err := Open(t.TempDir())
	must(t, err)
	return r
}

// TestSeveralHoldNothingWhileTheyWait: a request for two GPUs that waits behind
// another on the second leaves the first to those who came later. When it is its turn
// on both it is passed by nobody, and is served when there is room on both.
func TestSeveralHoldNothingWhileTheyWait(t *testing.T) {
	r := newRegistry(t)
	holder, err := r.AcquireAll(t.Context(), ask(20, false, "B")...)
	must(t, err)
	before := askLater(t, r, ask(20, true, "B"))
	queued(t, r, "B", 1)
	both := askLater(t, r, ask(20, true, "A", "B"))
	queued(t, r, "A", 1)
	queued(t, r, "B", 2)

	// It has no lease on A, and lets others pass, those that wait and those that do not.
	passing, err := r.AcquireAll(t.Context(), ask(20, false, "A")...)
	must(t, err)
	must(t, passing[0][0].Close())
	passed := askLater(t, r, ask(20, true, "A"))
	<-passed.done
	must(t, passed.err)

	// Its turn on B comes: now it holds up those behind it on A, too.
	must(t, holder[0][0].Close())
	<-before.done
	must(t, before.err)
	eventually(t, "it is its turn on both", func() bool {
		ticket, err := r.r.GPU("A").ReadTicket(registry.TicketID(1))
		return err == nil && len(ticket.WaitsFor) == 0
	})
	if _, err := r.AcquireAll(t.Context(), ask(1, false, "A")...); err == nil || !strings.Contains(err.Error(), "waiting before") {
		t.Errorf("a request behind it: %v", err)
	}
	behind := askLater(t, r, ask(1, true, "A"))
	queued(t, r, "A", 2)
	before.close()
	if both.served() || behind.served() {
		t.Error("served without room on A")
	}
	passed.close()
	<-both.done
	must(t, both.err)
	<-behind.done // beside it there are 4 GiB
	must(t, behind.err)
}

// TestSeveralAreRefusedWhole: nothing is held after a refusal, whichever GPU it is on.
func TestSeveralAreRefusedWhole(t *testing.T) {
	r := newRegistry(t)
	full, err := r.AcquireAll(t.Context(), ask(20, false, "full")...)
	must(t, err)
	defer full[0][0].Close()
	mixed := ask(1, true, "A", "B")
	mixed[1].Wait = nil
	bad := ask(1, false, "A", "B")
	bad[1].Meter = failing{}
	for _, tc := range []struct {
		name string
		qs   []Request
		want string
	}{
		{"no room on the last", ask(5, false, "A", "full"), "not enough free memory on full"},
		{"no room on the first", ask(5, false, "full", "z"), "not enough free memory on full"},
		{"more than the GPU has", ask(25, true, "A", "B"), "more than can ever be shared"},
		{"twice", ask(1, false, "A", "B", "A"), "A is asked for twice"},
		{"some wait", mixed, "some requests wait"},
		{"unknown room", bad, "it is not known how much"},
		{"none", nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			leases, err := r.AcquireAll(t.Context(), tc.qs...)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, %v; want an error with %q", leases, err, tc.want)
			}
			if all, err := r.List(); err != nil || len(all) != 1 {
				t.Errorf("then there are %v, %v", all, err)
			}
		})
	}
}

// TestSeveralNeverWaitForEachOther: many programs ask for random sets of GPUs, in
// random order, some give up. All others are served, and no GPU is ever given twice.
// Programs that ask for the same GPUs are served in the order in which they came.
func TestSeveralNeverWaitForEachOther(t *testing.T) {
	r := newRegistry(t)
	gpus := []string{"A", "B", "C", "D"}
	rounds, programs := 10, 12
	if testing.Short() {
		rounds = 4
	}
	for round := range rounds {
		rnd := rand.New(rand.NewPCG(uint64(round), 1))
		var mu sync.Mutex
		used := map[string]uint64{}
		var order []int // of those that want all GPUs
		var all sync.WaitGroup
		first, err := r.AcquireAll(t.Context(), ask(24, false, gpus...)...)
		must(t, err)
		for i := range programs {
			set := slices.Clone(gpus)
			rnd.Shuffle(len(set), func(i, j int) { set[i], set[j] = set[j], set[i] })
			if i%3 > 0 {
				set = set[:1+rnd.IntN(len(set))]
			}
			gibs := 1 + rnd.Uint64N(24)
			ctx, cancel := context.WithCancel(t.Context())
			gone := rnd.IntN(5) == 0
			waits, once := make(chan bool), sync.Once{}
			qs := ask(gibs, true, set...)
			for i := range qs {
				qs[i].Wait = func(Position) { once.Do(func() { close(waits) }) }
			}
			all.Go(func() {
				defer cancel()
				leases, err := r.AcquireAll(ctx, qs...)
				if err != nil {
					if !gone || !errors.Is(err, context.Canceled) {
						t.Errorf("program %d: %v", i, err)
					}
					return
				}
				mu.Lock()
				if len(set) == len(gpus) && gibs > 12 {
					order = append(order, i)
				}
				for _, gpu := range set {
					if used[gpu] += gibs; used[gpu] > 24 {
						t.Errorf("%d GiB of %s are given", used[gpu], gpu)
					}
				}
				mu.Unlock()
				runtime.Gosched() // others may be given what this one holds
				mu.Lock()
				for _, gpu := range set {
					used[gpu] -= gibs // before it is free, so that no other counts too much
				}
				mu.Unlock()
				for _, ls := range leases {
					must(t, ls[0].Close())
				}
			})
			<-waits
			if gone {
				cancel()
			}
		}
		for _, ls := range first {
			must(t, ls[0].Close())
		}
		all.Wait()
		if !slices.IsSorted(order) {
			t.Errorf("round %d: those that want all GPUs are served in the order %v", round, order)
		}
		if left, err := r.List(); err != nil || len(left) > 0 {
			t.Fatalf("round %d: left %v, %v", round, left, err)
		}
	}
}

// TestSeveralWaitInAChain: of many requests for the same GPUs each waits for the one
// before it, on every GPU, so an arrival reads one ticket of each queue and the end of
// one wakes one. They are served in their order.
func TestSeveralWaitInAChain(t *testing.T) {
	r := newRegistry(t)
	first, err := r.AcquireAll(t.Context(), ask(24, false, "A", "B", "C")...)
	must(t, err)
	const n = 40
	var all []*asked
	for i := range n {
		all = append(all, askLater(t, r, ask(24, true, "C", "A", "B")))
		for _, gpu := range []string{"A", "B", "C"} {
			queued(t, r, gpu, i+1)
		}
	}
	for _, gpu := range []string{"A", "B", "C"} {
		for i := 2; i <= n; i++ {
			ticket, err := r.r.GPU(gpu).ReadTicket(registry.TicketID(uint64(i)))
			must(t, err)
			var want []string
			for _, other := range []string{"A", "B", "C"} {
				if other != gpu {
					want = append(want, registry.KeyOf(other)+"."+registry.TicketID(uint64(i-1)))
				}
			}
			slices.Sort(want)
			if !slices.Equal(slices.Sorted(slices.Values(ticket.WaitsFor)), want) {
				t.Fatalf("ticket %d on %s waits for %q; want %q", i, gpu, ticket.WaitsFor, want)
			}
		}
	}
	for _, ls := range first {
		must(t, ls[0].Close())
	}
	for i, a := range all {
		a.wait(t)
		if i+1 < n && all[i+1].served() {
			t.Fatalf("%d was served before %d had ended", i+1, i)
		}
		a.close()
	}
}

// TestSeveralTakeTicketsAgain: a request whose ticket on one GPU is removed goes to the
// end of the queue on all of its GPUs.
func TestSeveralTakeTicketsAgain(t *testing.T) {
	defer func(old time.Duration) { registry.Silence = old }(registry.Silence)
	registry.Silence = 60 * time.Millisecond
	r := newRegistry(t)
	full, err := r.AcquireAll(t.Context(), ask(24, false, "A", "B")...)
	must(t, err)
	var all []*asked
	for i := range 3 {
		all = append(all, askLater(t, r, ask(24, true, "A", "B")))
		queued(t, r, "B", i+1)
	}
	must(t, os.Remove(r.r.GPU("A").Path(registry.TicketID(2), registry.TicketKind)))
	for _, gpu := range []string{"A", "B"} {
		eventually(t, "it is last on "+gpu, func() bool {
			_, gone := r.r.GPU(gpu).ReadTicket(registry.TicketID(2))
			_, last := r.r.GPU(gpu).ReadTicket(registry.TicketID(4))
			return gone != nil && last == nil
		})
	}
	for _, ls := range full {
		must(t, ls[0].Close())
	}
	for _, i := range []int{0, 2, 1} {
		all[i].wait(t)
		all[i].close()
	}
}

// TestAbandonedWaitsShareOneThread: requests that give up behind a waiter leave one
// wait in the kernel, not one each, and none when that waiter has left.
func TestAbandonedWaitsShareOneThread(t *testing.T) {
	r := newRegistry(t)
	waits := func() int {
		stacks := make([]byte, 1<<20)
		return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "registry.WaitTicket(")
	}
	eventually(t, "the waits of other tests have ended", func() bool { return waits() == 0 })
	full, err := r.AcquireAll(t.Context(), ask(24, false, "A")...)
	must(t, err)
	before := askLater(t, r, ask(24, true, "A"))
	queued(t, r, "A", 1)
	for range 50 {
		a := askLater(t, r, ask(24, true, "A"))
		queued(t, r, "A", 2)
		a.cancel()
		<-a.done
	}
	if n := waits(); n > 1 {
		t.Errorf("%d waits", n)
	}
	must(t, full[0][0].Close())
	before.wait(t)
	eventually(t, "the wait has ended", func() bool { return waits() == 0 })
}

// TestSeveralNameTheGPUThatTheyLack: the wait ends while a request waits for its turn on
// one GPU, and has all that it wants on the other.
func TestSeveralNameTheGPUThatTheyLack(t *testing.T) {
	for _, lacks := range []string{"A", "B"} {
		t.Run(lacks, func(t *testing.T) {
			r := newRegistry(t)
			holder, err := r.AcquireAll(t.Context(), ask(10, false, lacks)...)
			must(t, err)
			defer holder[0][0].Close()
			askLater(t, r, ask(20, true, lacks))
			queued(t, r, lacks, 1)
			both := askLater(t, r, ask(1, true, "A", "B"))
			queued(t, r, lacks, 2)
			both.cancel()
			<-both.done
			var no *InsufficientMemoryError
			if !errors.As(both.err, &no) || no.Device != lacks || !errors.Is(both.err, context.Canceled) {
				t.Errorf("%v; want one that names %s", both.err, lacks)
			}
		})
	}
}

// TestThoseThatLetPassAreNotBefore: the only waiter before a request waits for another
// GPU, so what is missing is memory, and the refusal says so.
func TestThoseThatLetPassAreNotBefore(t *testing.T) {
	r := newRegistry(t)
	holder, err := r.AcquireAll(t.Context(), ask(20, false, "A", "B")...)
	must(t, err)
	defer holder[0][0].Close()
	defer holder[1][0].Close()
	askLater(t, r, ask(20, true, "B"))
	queued(t, r, "B", 1)
	askLater(t, r, ask(1, true, "A", "B"))
	queued(t, r, "A", 1)
	_, err = r.AcquireAll(t.Context(), ask(6, false, "A")...)
	var no *InsufficientMemoryError
	if !errors.As(err, &no) || no.Before != 0 || len(no.Ahead) != 0 || !strings.Contains(err.Error(), "ask for at most 4 GiB") {
		t.Errorf("refused: %v", err)
	}
	q := ask(6, false, "A")
	positions := make(chan Position, 10)
	q[0].Wait = func(p Position) { positions <- p }
	askLater(t, r, q)
	if p := <-positions; p.Place != 0 || p.Missing != 2*gib {
		t.Errorf("place %d, %d bytes missing; want to be the next, and 2 GiB", p.Place, p.Missing)
	}
}

// TestNumberOfAWaiterThatHasJustLeft: a request reads a waiter before it, which leaves
// before the request takes its ticket. It does not take that one's number, or it would
// watch the ticket that it waits for, which is its own where the file system gives the
// inode again.
func TestNumberOfAWaiterThatHasJustLeft(t *testing.T) {
	r := newRegistry(t)
	full, err := r.AcquireAll(t.Context(), ask(24, false, "A")...)
	must(t, err)
	before := askLater(t, r, ask(24, true, "A"))
	queued(t, r, "A", 1)
	qs := ask(24, true, "A")
	qs[0].Meter = meterFunc(func() device.Status { // called after the queue is read
		before.cancel()
		<-before.done
		st, _ := fixed.Status()
		return st
	})
	a := askLater(t, r, qs)
	eventually(t, "it has a number after that one's", func() bool {
		_, err := r.r.GPU("A").ReadTicket(registry.TicketID(2))
		return err == nil
	})
	must(t, full[0][0].Close())
	a.wait(t)
}

// TestLocksOfSeveralAreNotKept: while one process lease.KeepEvery the lock of B, requests for A
// and B do not keep that of A, which others take at once.
func TestLocksOfSeveralAreNotKept(t *testing.T) {
	r := newRegistry(t)
	g, err := r.r.GPU("B").Lock(t.Context(), nil)
	must(t, err)
	var both []*asked
	for range 3 {
		both = append(both, askLater(t, r, ask(1, true, "A", "B")))
	}
	for range 20 {
		ls, err := r.AcquireAll(t.Context(), ask(24, false, "A")...)
		must(t, err)
		must(t, ls[0][0].Close())
	}
	for _, a := range both {
		if a.served() {
			t.Error("served without the lock of B")
		}
	}
	g.Unlock()
	for _, a := range both {
		a.wait(t)
	}
}

// TestNothingToTakeWithEndedContext: a request for no GPU, or for parts of enclosing leases
// alone, takes nothing, so it does not matter that its context has ended.
func TestNothingToTakeWithEndedContext(t *testing.T) {
	r := newRegistry(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if leases, err := r.AcquireAll(ctx); err != nil || len(leases) != 0 {
		t.Errorf("%v, %v", leases, err)
	}
}

// TestLockOfOneOfSeveralRemovedUnderADecision: the lock file of one GPU is removed while a
// request for two is decided. Nothing of what was decided stands; it is decided anew.
func TestLockOfOneOfSeveralRemovedUnderADecision(t *testing.T) {
	for _, gpu := range []string{"A", "B"} {
		t.Run(gpu, func(t *testing.T) {
			r := newRegistry(t)
			looks := 0
			qs := ask(20, false, "A", "B")
			for i := range qs {
				qs[i].Meter = meterFunc(func() device.Status {
					if looks++; looks == 2 { // both locks are held
						must(t, os.Remove(lockFile(r, gpu)))
					}
					st, _ := fixed.Status()
					return st
				})
			}
			leases, err := r.AcquireAll(t.Context(), qs...)
			must(t, err)
			if looks < 4 {
				t.Errorf("decided with %d looks", looks)
			}
			if all, err := r.List(); err != nil || len(all) != 2 {
				t.Errorf("%v, %v; want the two leases", all, err)
			}
			for _, ls := range leases {
				must(t, ls[0].Close())
			}
		})
	}
}
