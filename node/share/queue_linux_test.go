package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gpumem/device"
	"gpumem/internal/crashpoint"
	"gpumem/internal/ofd"
	"gpumem/node/internal/account"
	"gpumem/node/internal/registry"
)

// noMovement makes the GPU count as settled at once, for a test.
func noMovement(t *testing.T) {
	old := account.Recently
	account.Recently = 0
	t.Cleanup(func() { account.Recently = old })
}

// queued waits until a number of waiters are in the queue.
func queued(t *testing.T, r *Registry, gpu string, n int) {
	t.Helper()
	eventually(t, fmt.Sprint(n, " wait"), func() bool {
		ids, err := r.r.GPU(gpu).Tickets()
		must(t, err)
		return len(ids) == n
	})
}

// TestManyWaitersAreServedInOrder: 200 wait for the whole GPU, each in the kernel for
// the one before it. Some give up. The others are served one after another by their
// numbers, none fails, and the looks at the GPU grow with their number only.
func TestManyWaitersAreServedInOrder(t *testing.T) {
	noMovement(t)
	const waiters = 200
	r, gpu := newGPU(t)
	var looks, places atomic.Int64
	m := meterFunc(func() device.Status {
		looks.Add(1)
		return device.Status{Info: device.Info{Total: 24 * gib}, Free: 24 * gib}
	})
	first, err := r.Acquire(t.Context(), Request{Device: gpu, Meter: m})
	must(t, err)
	var mu sync.Mutex
	var served []int
	var all sync.WaitGroup
	var giveUp []context.CancelFunc
	for i := range waiters {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		giveUp = append(giveUp, cancel)
		all.Go(func() {
			l, err := r.Acquire(ctx, Request{Device: gpu, Meter: m, Wait: func(Position) { places.Add(1) }})
			if err != nil {
				if !errors.Is(err, context.Canceled) || i%7 != 3 {
					t.Errorf("waiter %d: %v", i, err)
				}
				return
			}
			mu.Lock()
			served = append(served, i)
			mu.Unlock()
			must(t, l[0].Close())
		})
		queued(t, r, gpu, i+1)
	}
	for i, cancel := range giveUp {
		if i%7 == 3 {
			cancel()
		}
	}
	queued(t, r, gpu, waiters-(waiters+3)/7)
	before := looks.Load()
	must(t, first[0].Close())
	all.Wait()
	if !slices.IsSorted(served) || len(served) != waiters-(waiters+3)/7 {
		t.Errorf("%d served, in the order %v", len(served), served)
	}
	if n := looks.Load() - before; n > 4*waiters {
		t.Errorf("%d looks at the GPU for %d waiters", n, waiters)
	}
	if left := files(t, r); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// TestOnlyTheNextLooks: of many waiters one asks the GPU how it stands, and takes
// its lock to do so.
func TestOnlyTheNextLooks(t *testing.T) {
	noMovement(t)
	r, gpu := newGPU(t)
	first, err := take(r, gpu, 24, 1)
	must(t, err)
	var looks [5]atomic.Int64
	var turns atomic.Int64
	crashpoint.Hook = func(step string) {
		if step == "lock: locked" {
			turns.Add(1)
		}
	}
	defer func() { crashpoint.Hook = nil }()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range looks {
		m := meterFunc(func() device.Status {
			looks[i].Add(1)
			st, _ := simulated(gpu).Status()
			return st
		})
		all.Go(func() {
			if _, err := r.Acquire(ctx, Request{Device: gpu, Meter: m, Wait: func(Position) {}}); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		queued(t, r, gpu, i+1)
	}
	eventually(t, "the next one looks again and again", func() bool { return looks[0].Load() > 20 })
	if n := turns.Load() - looks[0].Load(); n > int64(len(looks))+1 {
		t.Errorf("%d turns under the lock beside those of the next one", n)
	}
	for i := range looks[1:] {
		if n := looks[i+1].Load(); n != 1 {
			t.Errorf("waiter %d looked %d times at the GPU, want once as it came", i+1, n)
		}
	}
	cancel()
	all.Wait()
	must(t, first[0].Close())
}

// TestNobodyFailsByContention: many ask at once, and their turns under the lock
// take, all together, longer than one process may keep the lock.
func TestNobodyFailsByContention(t *testing.T) {
	noMovement(t)
	defer func(old time.Duration) { registry.Patience = old }(registry.Patience)
	registry.Patience = time.Second
	r, gpu := newGPU(t)
	slow := meterFunc(func() device.Status { // as a driver that is slow to answer
		<-time.After(30 * time.Millisecond)
		return device.Status{Info: device.Info{Total: 24 * gib}, Free: 24 * gib}
	})
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			l, err := r.Acquire(t.Context(), Request{Device: gpu, Meter: slow, Bytes: gib / 100})
			if err != nil {
				t.Error(err)
				return
			}
			if err := l[0].Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// TestRemovedTicketKeepsItsPlace: the tickets of two waiters are removed. They are
// made again with their numbers, and the order holds.
func TestRemovedTicketKeepsItsPlace(t *testing.T) {
	defer func(old time.Duration) { registry.Silence = old }(registry.Silence)
	registry.Silence = 60 * time.Millisecond // which also is how often a waiter looks
	r, gpu := newGPU(t)
	first, err := take(r, gpu, 24, 1)
	must(t, err)
	order := make(chan int, 2)
	var all sync.WaitGroup
	for i := range 2 {
		all.Go(func() {
			l, err := r.Acquire(t.Context(), Request{Device: gpu, Meter: simulated(gpu), Wait: func(Position) {}})
			if err != nil {
				t.Error(err)
				return
			}
			order <- i
			if err := l[0].Close(); err != nil {
				t.Error(err)
			}
		})
		queued(t, r, gpu, i+1)
	}
	for _, id := range []string{registry.TicketID(1), registry.TicketID(2)} {
		must(t, os.Remove(r.r.GPU(gpu).Path(id, registry.TicketKind)))
	}
	eventually(t, "both are in the queue again", func() bool {
		ids, err := r.r.GPU(gpu).Tickets()
		must(t, err)
		return slices.Equal(ids, []string{registry.TicketID(1), registry.TicketID(2)})
	})
	must(t, first[0].Close())
	all.Wait()
	if a, b := <-order, <-order; a != 0 || b != 1 {
		t.Errorf("served: %d, %d", a, b)
	}
}

// TestFileWithNameOfTicketDoesNotStopTheQueue: other users' files of any name, dead
// or locked. Those who wait are numbered and served in order all the same.
func TestFileWithNameOfTicketDoesNotStopTheQueue(t *testing.T) {
	noMovement(t)
	const most = "ffffffffffffffff"
	empty := func(path string) error { return os.WriteFile(path, nil, 0o644) }
	folder := func(path string) error { return os.MkdirAll(filepath.Join(path, "x"), 0o755) }
	locked := func(path string) error {
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		t.Cleanup(func() { f.Close() })
		return ofd.Lock{FD: f.Fd()}.Try(ofd.Write)
	}
	for _, tc := range []struct {
		name, id string
		put      func(path string) error
		first    uint64 // number that is given then
	}{
		{"no number and empty", "zzz", empty, 1},
		{"no number and a folder", "zzz", folder, 1},
		{"no number and locked", "zzz", locked, 1},
		{"number of other length and locked", "1", locked, 1},
		{"upper case and locked", "00000000000000AA", locked, 1},
		{"number 0 and locked", registry.TicketID(0), locked, 1},
		{"largest number and empty", most, empty, 1},
		{"largest number and a folder", most, folder, 1},
		{"largest number and locked", most, locked, 1},
		{"nearly the largest and locked", most[:15] + "e", locked, 1},
		{"first number and a folder", registry.TicketID(1), folder, 2},
		{"far number and a folder", registry.TicketID(1 << 40), folder, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, gpu := newGPU(t)
			first, err := take(r, gpu, 20, 1)
			must(t, err)
			must(t, tc.put(r.r.GPU(gpu).Path(tc.id, registry.TicketKind)))
			order := make(chan int, 2)
			var all sync.WaitGroup
			for i := range 2 {
				all.Go(func() {
					l, err := r.Acquire(t.Context(), Request{Device: gpu, Meter: simulated(gpu), Bytes: 20 * gib, Wait: func(Position) {}})
					if err != nil {
						t.Error(err)
						order <- -1
						return
					}
					order <- i
					if err := l[0].Close(); err != nil {
						t.Error(err)
					}
				})
				eventually(t, "it waits", func() bool {
					_, err := r.r.GPU(gpu).ReadTicket(registry.TicketID(tc.first + uint64(i)))
					return err == nil || len(order) > 0
				})
			}
			if waits := len(listed(t, r)) - 1; waits != 2 {
				t.Errorf("%d wait, want 2", waits)
			}
			must(t, first[0].Close())
			all.Wait()
			if a, b := <-order, <-order; a != 0 || b != 1 {
				t.Errorf("served: %d, %d", a, b)
			}
			l, err := take(r, gpu, 24, 1) // without waiting
			must(t, err)
			must(t, l[0].Close())
		})
	}
}

// TestTicketOfAnotherVersionTakesItsTurn: nothing of it can be read, so it is an
// unknown waiter until its lock is gone.
func TestTicketOfAnotherVersionTakesItsTurn(t *testing.T) {
	noMovement(t)
	r, gpu := newGPU(t)
	f, err := os.Create(r.r.GPU(gpu).Path(registry.TicketID(1), registry.TicketKind))
	must(t, err)
	_, err = f.WriteString("gpumem-share 1 of another shape\n")
	must(t, err)
	must(t, ofd.Lock{FD: f.Fd()}.Try(ofd.Write))
	if all := listed(t, r); len(all) != 1 || all[0].State != Waits || all[0].PID != 0 {
		t.Errorf("listed: %+v", all)
	}
	places := make(chan int, 100)
	got := make(chan error, 1)
	go func() {
		l, err := r.Acquire(t.Context(), Request{Device: gpu, Meter: simulated(gpu), Bytes: gib, Wait: func(p Position) { places <- p.Place }})
		if err == nil {
			err = l[0].Close()
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("it did not wait: %v", err)
	case place := <-places:
		if place != 1 {
			t.Errorf("place %d, want 1", place)
		}
	}
	f.Close()
	must(t, <-got)
}
