package shim_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpumem"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/node/ledger"
	"gpumem/preload/internal/shim"
)

// fill has a program write blocks of a MiB.
func (s *seated) fill(bytes uint64) {
	s.t.Helper()
	for range bytes / mib {
		addr, err := s.pool.Alloc(mib)
		if err != nil {
			s.t.Fatalf("%v; %q", err, s.said())
		}
		s.live[addr] = mib
		s.gate.pass(func() { s.write(addr) })
	}
}

// mustPass fails the test where a call stands at the gate for too long.
func (s *seated) mustPass(work func()) {
	s.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.gate.pass(work)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		turn, err := s.lease.Turn()
		s.t.Fatalf("a call stands at the gate: %+v, %v; %q", turn, err, s.said())
	}
}

// saidOf reports whether a program has said a line with some words.
func (s *seated) saidOf(words string) bool {
	return slices.ContainsFunc(s.said(), func(line string) bool { return strings.Contains(line, words) })
}

// awaySeated returns a program whose memory is away, and the one that it left for.
func awaySeated(t *testing.T, path string) (away, other *seated) {
	t.Helper()
	away = newSeated(t, path, "elastic", 1, 20*time.Millisecond, 0)
	other = newSeated(t, path, "elastic", 2, 20*time.Millisecond, 0)
	away.fill(6 * mib)
	other.fill(12 * mib)
	away.until(isAway)
	return away, other
}

// TestReturnThatTheDriverRefuses: memory that the driver refuses on the way back is asked for again, in the
// same place of the queue. Without, the program hung for ever: it had a ticket no more.
func TestReturnThatTheDriverRefuses(t *testing.T) {
	s, other := awaySeated(t, newTurns(t, 16*mib))
	refused := 0
	var ticket uint64
	s.d.OnCall(func(_ uint64, call string, _ uint64) error {
		if call != "cuMemCreate" || refused == 3 {
			return nil
		}
		turn, err := s.lease.Turn()
		if refused++; refused == 1 {
			ticket = turn.Ticket
		}
		if err != nil || turn.State != ledger.Returning || ticket == 0 || turn.Ticket != ticket {
			t.Errorf("ticket %d; %+v, %v", ticket, turn, err)
		}
		return device.ErrOutOfMemory
	})
	s.mustPass(s.contents)
	if refused != 3 {
		t.Errorf("refused %d times", refused)
	}
	s.until(func(turn ledger.Turn) bool { return isIn(turn) && turn.Ticket == 0 })
	s.end()
	other.end()
}

// TestTwoThatWantMore: two programs that hold 46 % each and want 30 % more are both served, by turns.
func TestTwoThatWantMore(t *testing.T) {
	path := newTurns(t, 50*mib)
	var programs []*seated
	for seed := range uint64(2) {
		programs = append(programs, newSeated(t, path, "elastic", seed, 0, 100*time.Millisecond))
		programs[seed].fill(23 * mib)
	}
	var served, ended atomic.Int32
	done := make(chan error, 2)
	for _, s := range programs {
		go func() {
			defer ended.Add(1)
			_, err := s.pool.Alloc(15 * mib)
			served.Add(1)
			for served.Load() < 2 && err == nil { // work, while the other waits
				s.gate.pass(func() {})
			}
			done <- err
		}()
	}
	for range programs {
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("%v; %q and %q", err, programs[0].said(), programs[1].said())
			}
		case <-time.After(time.Minute):
			one, _ := programs[0].lease.Turn()
			two, _ := programs[1].lease.Turn()
			t.Fatalf("%d were served: %+v and %+v", served.Load(), one, two)
		}
	}
	for _, s := range programs {
		s.mustPass(s.contents)
		s.end()
	}
}

// TestServedThreadIsNotLeft: while a thread that was served takes what it asked for the memory does not leave,
// though the turn is over and another waits, and the place in the queue is kept. Without, it was moved out
// before it had anything.
func TestServedThreadIsNotLeft(t *testing.T) {
	path := newTurns(t, 16*mib)
	s := newSeated(t, path, "elastic", 1, 0, time.Millisecond)
	other := newSeated(t, path, "elastic", 2, 0, time.Millisecond)
	s.fill(10 * mib)
	wait := s.agent.WaitRoom(2 * mib)
	if !wait.Again() {
		t.Fatalf("refused; %q", s.said())
	}
	served := make(chan bool, 1)
	go func() {
		later := other.agent.WaitRoom(10 * mib)
		defer later.End()
		served <- later.Again()
	}()
	other.until(func(turn ledger.Turn) bool { return turn.Waits() })
	s.gate.await(5)
	if turn, err := s.lease.Turn(); err != nil || !isIn(turn) || turn.Ticket != 1 {
		t.Errorf("%+v, %v", turn, err)
	}
	if !wait.Again() { // it was refused all the same
		t.Errorf("refused; %q", s.said())
	}
	wait.End()
	if !<-served {
		t.Errorf("refused; %q", other.said())
	}
	s.mustPass(s.contents)
	s.end()
	other.end()
}

// TestDriverRefusesWhatTheLeaseHas: a request that only the driver refuses is not others' to make room for.
// Without, it was tried for minutes.
func TestDriverRefusesWhatTheLeaseHas(t *testing.T) {
	s := newSeated(t, newTurns(t, 16*mib), "elastic", 1, 0, 0)
	calls := s.d.count(func(call string) error {
		if call == "cuMemCreate" {
			return device.ErrOutOfMemory
		}
		return nil
	})
	if _, err := s.pool.Alloc(2 * mib); !errors.Is(err, gpumem.ErrOutOfMemory) || calls["cuMemCreate"] > 50 {
		t.Errorf("%v, after %d calls", err, calls["cuMemCreate"])
	}
	s.end()
}

// TestCaptureThatBegins: a capture that begins while the gate closes is not spoilt by a wait for the
// context.
func TestCaptureThatBegins(t *testing.T) {
	path := newTurns(t, 16*mib)
	s := newSeated(t, path, "elastic", 1, 0, time.Millisecond)
	s.fill(10 * mib)
	s.gate.mu.Lock()
	s.gate.closing = func() { s.gate.running = shim.ErrCapture }
	s.gate.mu.Unlock()
	before := s.d.waits.Load()
	other := newSeated(t, path, "elastic", 2, 0, 0)
	served := make(chan error, 1)
	go func() {
		_, err := other.pool.Alloc(10 * mib)
		served <- err
	}()
	s.until(func(turn ledger.Turn) bool { return turn.Reason == ledger.Capturing })
	if n := s.d.waits.Load() - before; n > 0 {
		t.Errorf("%d waits for the context while a graph is captured", n)
	}
	s.mustPass(s.contents) // the gate is open
	s.end()
	if err := <-served; err != nil {
		t.Error(err)
	}
	other.end()
}

// TestAwayAndMoreThanFits: what is requested while the memory is away, and could never return with it
// beside what others keep, is refused. Without, it was granted on the books, and the program hung.
func TestAwayAndMoreThanFits(t *testing.T) {
	path := newTurns(t, 16*mib)
	s := newSeated(t, path, "elastic", 1, 20*time.Millisecond, 0)
	other := newSeated(t, path, "elastic", 2, 20*time.Millisecond, 0)
	other.lease.Count(shim.Outside, 4*mib) // its context
	s.fill(10 * mib)
	addr, err := other.pool.Alloc(6 * mib)
	if err != nil {
		t.Fatal(err)
	}
	s.until(isAway)
	if err := errors.Join(other.pool.Free(addr), other.pool.Trim()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pool.Alloc(5 * mib); !errors.Is(err, gpumem.ErrOutOfMemory) || !s.saidOf("is refused") {
		t.Errorf("%v; %q", err, s.said())
	}
	s.mustPass(s.contents)
	s.end()
	other.lease.Give(shim.Outside, 4*mib)
	other.end()
}

// TestChargeWhileAway: what a program takes beside its pool while that is away leaves room for its return.
func TestChargeWhileAway(t *testing.T) {
	d, account := newDriver(t, sim.Config{Total: 64 * mib}), newAccount(t, 20*mib)
	charges, err := shim.NewCharges(account, shim.Process{})
	if err != nil {
		t.Fatal(err)
	}
	pool := openOn(t, d, "elastic", shim.Config{Account: account, Charges: charges, Room: shim.Room})
	if _, err := pool.Alloc(10 * mib); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Leave(); err != nil {
		t.Fatal(err)
	}
	if err := charges.Take(12 * mib); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("12 MiB of 20 beside 10 that return: %v", err)
	}
	if err := charges.Take(10 * mib); err != nil {
		t.Error(err)
	}
	if _, err := pool.Return(); err != nil {
		t.Error(err)
	}
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
}

// TestFaultEndsTurns: a fault of this package is not the program's end. Its memory stays, it goes on, and
// who waits for memory is refused; or it is away, and that is said.
func TestFaultEndsTurns(t *testing.T) {
	for _, isOut := range []bool{false, true} {
		path := newTurns(t, 16*mib)
		s, other := awaySeated(t, path)
		want := "cannot come back: end the program"
		if !isOut {
			s.mustPass(s.contents)
			want = "its memory stays on the GPU from now on"
		}
		s.faults.Store(true)
		for !s.saidOf(want) {
			time.Sleep(time.Millisecond)
		}
		if !isOut {
			s.mustPass(s.contents)
			if _, err := s.pool.Alloc(12 * mib); !errors.Is(err, gpumem.ErrOutOfMemory) {
				t.Error(err)
			}
		}
		if !s.saidOf("planted") || !s.saidOf("whyItStays") {
			t.Errorf("said %q", s.said())
		}
		s.end()
		other.end()
	}
}

// TestContextEndsWhileAway: a program that ends its context while its memory is away, or waits to return,
// goes on.
func TestContextEndsWhileAway(t *testing.T) {
	for _, waits := range []bool{false, true} {
		s, other := awaySeated(t, newTurns(t, 16*mib))
		passed := make(chan struct{})
		if waits {
			other.setReason(ledger.Communicating)
			go func() {
				defer close(passed)
				s.gate.pass(func() {})
			}()
			s.until(func(turn ledger.Turn) bool { return turn.State == ledger.Waiting })
		}
		if err := s.opened.Swap(nil).Close(); err != nil {
			t.Error(err)
		}
		s.until(func(turn ledger.Turn) bool { return isIn(turn) && turn.Ticket == 0 && turn.OnHost == 0 })
		if waits {
			<-passed
		}
		s.agent.Close()
		other.end()
	}
}

// TestLedgerDamagedWhileAway: a program whose memory cannot come back, as its ledger cannot be used, says
// so.
func TestLedgerDamagedWhileAway(t *testing.T) {
	for _, waits := range []bool{false, true} {
		path := newTurns(t, 16*mib)
		s, other := awaySeated(t, path)
		if waits {
			other.setReason(ledger.Communicating)
			go s.gate.pass(func() {})
			s.until(func(turn ledger.Turn) bool { return turn.State == ledger.Waiting })
		}
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
		for !s.saidOf("the ledger of its lease cannot be used") {
			time.Sleep(time.Millisecond)
		}
		s.agent.Close()
		s.gate.Open()
		other.agent.Close()
	}
}

// TestNobodyWaitsForTheLock: an agent looks without the lock of the ledger, which another process may have
// that is stopped.
func TestNobodyWaitsForTheLock(t *testing.T) {
	path := newTurns(t, 16*mib)
	s := newSeated(t, path, "elastic", 1, 20*time.Millisecond, 0)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	whole := unix.Flock_t{Type: unix.F_WRLCK, Start: 1<<40 - 1, Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLKW, &whole); err != nil {
		t.Fatal(err)
	}
	s.gate.await(5)
	whole.Type = unix.F_UNLCK
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &whole); err != nil {
		t.Error(err)
	}
	s.end()
}

// TestMemoryThatSeemsToBeKept: another process that takes memory while this one's leaves is not taken for
// one that keeps it: for good it is only where it happens time and again.
func TestMemoryThatSeemsToBeKept(t *testing.T) {
	l := newLender(t, "elastic", 1)
	addr, err := l.pool.Alloc(4 * mib)
	if err != nil {
		t.Fatal(err)
	}
	l.live[addr] = 4 * mib
	l.write(addr)
	takes := true
	var taken device.Range
	l.d.count(func(call string) (err error) {
		if call == "cuMemUnmap" && takes {
			takes = false
			taken, err = l.d.Alloc(10 * mib)
		}
		return err
	})
	for _, c := range []struct{ keeps, leaves bool }{
		{true, false}, {true, false}, {false, true}, {true, false}, {true, false}, {true, false}, {false, false},
	} {
		takes, taken = c.keeps, device.Range{}
		_, err := l.pool.Leave()
		if (err == nil) != c.leaves || !c.leaves && !errors.Is(err, shim.ErrKept) {
			t.Errorf("%+v: %v", c, err)
		}
		if taken.Bytes > 0 {
			if err := l.d.Free(taken.Addr); err != nil {
				t.Error(err)
			}
		}
		if _, err := l.pool.Return(); err != nil {
			t.Error(err)
		}
		l.contents()
	}
}
