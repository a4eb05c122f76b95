package shim_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gpumem"
	"gpumem/device"
	"gpumem/node/ledger"
	"gpumem/preload/internal/shim"
)

// gate is a gate of one program.
type gate struct {
	mu      sync.Mutex
	changed *sync.Cond
	closed  bool
	in      int
	waiting int
	passed  uint64
	running error
	ends    bool   // what runs has ended when the gate is closed
	closing func() // is called before the gate closes; nil: nothing is
	looks   uint64 // number of times that an agent has looked
}

func newGate() *gate {
	g := &gate{}
	g.changed = sync.NewCond(&g.mu)
	return g
}

// pass is a call that submits work.
func (g *gate) pass(work func()) {
	g.mu.Lock()
	g.waiting++
	for g.closed {
		g.changed.Wait()
	}
	g.waiting--
	g.in++
	g.mu.Unlock()
	work()
	g.mu.Lock()
	g.in--
	g.passed++
	g.mu.Unlock()
	g.changed.Broadcast()
}

func (g *gate) Passed() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.looks++
	g.changed.Broadcast()
	return g.passed
}

func (g *gate) Close(time.Duration) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing != nil {
		g.closing()
	}
	g.closed = true
	for g.in > 0 {
		g.changed.Wait()
	}
	if g.ends {
		g.running = nil
	}
	return nil
}

// await waits until the agent has looked some times more.
func (g *gate) await(looks uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for until := g.looks + looks; g.looks < until; {
		g.changed.Wait()
	}
}

func (g *gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = false
	g.changed.Broadcast()
}

func (g *gate) Waiting(within time.Duration) int {
	for deadline := time.Now().Add(within); ; time.Sleep(time.Millisecond) {
		g.mu.Lock()
		n := g.waiting
		g.mu.Unlock()
		if n > 0 || time.Now().After(deadline) {
			return n
		}
	}
}

func (g *gate) Running() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running
}

func (g *gate) setRunning(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running = err
}

// seated is a program with an agent, in a ledger by turns.
type seated struct {
	*lender
	gate   *gate
	lease  *shim.Lease
	agent  *shim.Agent
	opened atomic.Pointer[shim.Pool] // the lender's pool, for the agent
	looks  atomic.Int32              // calls of Look
	found  atomic.Uint32             // the reason that it returns
	onHost func(bytes uint64) (shim.HostMemory, error)
	said   func() []string
	reason atomic.Uint32 // a ledger.Reason why it stays
	faults atomic.Bool   // a fault is planted in the agent
}

func (s *seated) setReason(r ledger.Reason) { s.reason.Store(uint32(r)) }

func (s *seated) whyItStays() ledger.Reason {
	if s.faults.Load() {
		panic("planted")
	}
	return ledger.Reason(s.reason.Load())
}

// newTurns makes a ledger by turns.
func newTurns(t *testing.T, limit uint64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ledger")
	if err := ledger.Create(path, ledger.Header{Limit: limit, Total: 1 << 40, Turns: true}); err != nil {
		t.Fatal(err)
	}
	return path
}

func newSeated(t *testing.T, path, spec string, seed uint64, lend, quantum time.Duration, stays ...ledger.Reason) *seated {
	t.Helper()
	lease, err := shim.Join(path, "", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &seated{lender: newLender(t, spec, seed), gate: newGate(), lease: lease, onHost: shim.Room}
	if len(stays) > 0 {
		s.setReason(stays[0])
	}
	var mu sync.Mutex
	var lines []string
	s.said = func() []string {
		mu.Lock()
		defer mu.Unlock()
		return lines
	}
	s.agent = shim.NewAgent(shim.AgentConfig{
		Gate: s.gate, Seat: lease.Member, LendAfter: lend, Quantum: quantum,
		Pool: s.opened.Load, Reason: s.whyItStays,
		Look: func() ledger.Reason {
			s.looks.Add(1)
			return ledger.Reason(s.found.Load())
		},
		Say: func(line string) {
			mu.Lock()
			defer mu.Unlock()
			lines = append(lines, line)
		},
	})
	s.pool = openOn(t, s.d, spec, shim.Config{
		Account: lease, WaitRoom: s.agent.WaitRoom,
		Room: func(bytes uint64) (shim.HostMemory, error) { return s.onHost(bytes) },
	})
	s.opened.Store(s.pool)
	return s
}

func (s *seated) end() {
	s.t.Helper()
	s.agent.Close()
	if err := errors.Join(s.pool.Close(), s.lease.Leave()); err != nil {
		s.t.Error(err)
	}
}

// work allocates up to bytes in blocks, writes and checks them, step by step, and frees some of them.
func (s *seated) work(bytes uint64, steps int) error {
	for step := range steps {
		var live uint64
		for _, n := range s.live {
			live += n
		}
		for live < bytes {
			n := min(bytes-live, 2*mib)
			addr, err := s.pool.Alloc(n)
			if err != nil {
				return fmt.Errorf("step %d, with %d bytes: %w", step, live, err)
			}
			s.live[addr] = n
			s.gate.pass(func() { s.write(addr) })
			live += n
		}
		s.gate.pass(func() {
			if needs, away := s.pool.IsAway(); away {
				s.t.Errorf("work while the memory is away; it needs %d", needs)
			}
			s.contents()
		})
		for addr := range s.live {
			if s.r.IntN(8) == 0 {
				delete(s.live, addr)
				delete(s.written, addr)
				if err := s.pool.Free(addr); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// TestTurns: three programs of which two do not fit together all do their work, keep their memory, and find
// what they wrote at each step and at the end.
func TestTurns(t *testing.T) {
	rounds := 30
	if testing.Short() { // as with the race detector, under which writing and comparing takes long
		rounds = 10
	}
	for _, spec := range []string{"elastic", "vmm", "platform"} {
		t.Run(spec, func(t *testing.T) {
			t.Parallel() // mostly they wait for turns
			path := newTurns(t, 16*mib)
			var programs []*seated
			for i := range 3 {
				programs = append(programs, newSeated(t, path, spec, uint64(i), 0, 30*time.Millisecond))
			}
			var all sync.WaitGroup
			for _, s := range programs {
				all.Go(func() {
					if err := s.work(10*mib, rounds); err != nil {
						t.Errorf("%v; %q", err, s.said())
					}
				})
			}
			all.Wait()
			swaps := uint64(0)
			for _, s := range programs {
				s.gate.pass(s.contents)
				turn, err := s.lease.Turn()
				if err != nil {
					t.Error(err)
				}
				swaps += turn.Swaps
				s.end()
			}
			if swaps < 2 {
				t.Errorf("%d ways out", swaps)
			}
		})
	}
}

// TestLendWhenIdle: a program that idles lends its memory to another, and has it again when it goes on; one that is at work
// does not, and the other is refused nothing while both fit.
func TestLendWhenIdle(t *testing.T) {
	path := newTurns(t, 16*mib)
	notebook := newSeated(t, path, "elastic", 1, 50*time.Millisecond, 0)
	training := newSeated(t, path, "elastic", 2, 50*time.Millisecond, 0)
	fill := func(s *seated, bytes uint64) {
		t.Helper()
		for range bytes / mib {
			addr, err := s.pool.Alloc(mib)
			if err != nil {
				t.Fatalf("%v; %q", err, s.said())
			}
			s.live[addr] = mib
			s.gate.pass(func() { s.write(addr) })
		}
	}
	fill(notebook, 6*mib)
	fill(training, 6*mib)
	if turn, err := notebook.lease.Turn(); err != nil || turn.Swaps > 0 {
		t.Errorf("both fit, and it has left: %+v, %v", turn, err)
	}
	fill(training, 8*mib)
	notebook.until(func(t ledger.Turn) bool { return t.State == ledger.Away && t.OnHost >= 6*mib })
	training.gate.pass(training.contents)
	notebook.gate.pass(notebook.contents) // waits until the training is idle
	training.until(func(t ledger.Turn) bool { return t.State == ledger.Away })
	training.gate.pass(training.contents)
	notebook.end()
	training.end()
}

func isAway(t ledger.Turn) bool { return t.State == ledger.Away }

func isIn(t ledger.Turn) bool { return t.State == ledger.In }

// TestPauseAndResume: a program that is asked to pause leaves, though it lends nothing and is at work, and
// stays away with work at the gate until it is resumed. What it takes while it holds nothing leaves, too.
func TestPauseAndResume(t *testing.T) {
	path := newTurns(t, 64*mib)
	s := newSeated(t, path, "elastic", 1, 0, 0)
	s.ask(path, ledger.Pause) // it holds nothing
	s.gate.await(3)
	addr, err := s.pool.Alloc(4 * mib)
	if err != nil {
		t.Fatal(err)
	}
	s.live[addr] = 4 * mib
	s.until(isAway)
	s.ask(path, ledger.Resume)
	s.until(isIn)
	s.gate.pass(func() { s.write(addr) })

	s.gate.mu.Lock()
	s.gate.running, s.gate.ends = shim.ErrRunning, true
	s.gate.mu.Unlock()
	s.ask(path, ledger.Pause)
	s.ask(path, ledger.Pause) // as two who do not know of each other
	s.until(isAway)
	passed := make(chan struct{})
	go func() {
		defer close(passed)
		s.gate.pass(s.contents)
	}()
	s.gate.await(5)
	select {
	case <-passed:
		t.Error("work was let pass while the program was paused")
	default:
	}
	if turn, err := s.lease.Turn(); err != nil || turn.State != ledger.Away || turn.Ticket != 0 {
		t.Errorf("%+v, %v", turn, err)
	}
	s.ask(path, ledger.Resume)
	<-passed
	s.until(isIn)
	if n := s.agent.Totals(); n.Swaps != 2 || n.Bytes != 8*mib || n.Moving <= 0 || n.Waited <= 0 {
		t.Errorf("%+v", n)
	}
	s.end()
}

// TestTotalsInWords: nothing is said of what did not happen.
func TestTotalsInWords(t *testing.T) {
	for _, c := range []struct {
		totals shim.Totals
		want   string
	}{
		{shim.Totals{}, ""},
		{shim.Totals{Waited: 1234 * time.Microsecond}, "; waited 1ms for its turn"},
		{shim.Totals{Swaps: 3, Bytes: 3 << 29, Moving: 1251 * time.Millisecond}, "; memory moved to the host 3 times (1.50 GiB) and back, in 1.3s"},
		{shim.Totals{Swaps: 1, Bytes: 1 << 30, Moving: time.Second, Waited: time.Minute},
			"; memory moved to the host 1 time (1 GiB) and back, in 1s; waited 1m0s for its turn"},
	} {
		if got := c.totals.String(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestWaitsWithoutIdleMemory: a program that waits keeps nothing of what was left for its request, for which there would never be
// room beside that.
func TestWaitsWithoutIdleMemory(t *testing.T) {
	for _, spec := range []string{"elastic", "vmm"} {
		path := newTurns(t, 16*mib)
		first := newSeated(t, path, spec, 1, 0, 20*time.Millisecond)
		second := newSeated(t, path, spec, 2, 0, 20*time.Millisecond)
		first.lease.Count(shim.Charged, 2*mib)
		if _, err := first.pool.Alloc(8 * mib); err != nil {
			t.Fatal(err)
		}
		if _, err := second.pool.Alloc(12 * mib); err != nil {
			t.Errorf("%s: %v; %q", spec, err, second.said())
		}
		first.lease.Give(shim.Charged, 2*mib)
		first.end()
		second.end()
	}
}

// TestDamagedLedger: who waits for memory of a ledger that is cut short is refused, and does not wait for ever.
func TestDamagedLedger(t *testing.T) {
	path := newTurns(t, 16*mib)
	holds := newSeated(t, path, "elastic", 1, time.Hour, 0)
	waits := newSeated(t, path, "elastic", 2, 0, 0)
	if _, err := holds.pool.Alloc(10 * mib); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		_, err := waits.pool.Alloc(10 * mib)
		served <- err
	}()
	for turn := (ledger.Turn{}); turn.Ticket == 0; time.Sleep(time.Millisecond) {
		var err error
		if turn, err = waits.lease.Turn(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if err := <-served; !errors.Is(err, gpumem.ErrOutOfMemory) {
		t.Errorf("%v; want a refusal", err)
	}
	holds.agent.Close()
	waits.agent.Close()
}

// TestAtWork: a program whose streams are at work lends nothing, however long ago it submitted that; when they are done it does.
func TestAtWork(t *testing.T) {
	path := newTurns(t, 16*mib)
	busy := newSeated(t, path, "elastic", 1, 20*time.Millisecond, 0)
	other := newSeated(t, path, "elastic", 2, 0, 0)
	if _, err := busy.pool.Alloc(10 * mib); err != nil {
		t.Fatal(err)
	}
	busy.gate.setRunning(shim.ErrRunning)
	served := make(chan error, 1)
	go func() {
		_, err := other.pool.Alloc(10 * mib)
		served <- err
	}()
	for seen := ledger.Moment(0); ; { // until it was seen at work while the other waits
		turn, err := busy.lease.Turn()
		waits, err2 := other.lease.Turn()
		if err != nil || err2 != nil || turn.Swaps > 0 || turn.State != ledger.In {
			t.Fatalf("%+v, %v, %v", turn, err, err2)
		}
		if seen != 0 && turn.Worked > seen {
			break
		}
		if waits.Ticket != 0 && seen == 0 {
			seen = turn.Worked
		}
		time.Sleep(time.Millisecond)
	}
	busy.gate.setRunning(nil)
	if err := <-served; err != nil {
		t.Error(err)
	}
	busy.until(func(t ledger.Turn) bool { return t.State == ledger.Away && t.Swaps == 1 }) // it says so after others can take
	busy.end()
	other.end()
}

// TestLooksWhenItIsToLeave: what takes time to find out is looked at when the memory is to leave, and not before; what is found
// keeps it, is said, and holds for a while.
func TestLooksWhenItIsToLeave(t *testing.T) {
	path := newTurns(t, 16*mib)
	first := newSeated(t, path, "elastic", 1, 0, 20*time.Millisecond)
	second := newSeated(t, path, "elastic", 2, 0, 20*time.Millisecond)
	first.found.Store(uint32(ledger.RegisteredMemory))
	if _, err := first.pool.Alloc(10 * mib); err != nil {
		t.Fatal(err)
	}
	if _, err := second.pool.Alloc(4 * mib); err != nil || first.looks.Load() != 0 {
		t.Errorf("%d looks while both fit; %v", first.looks.Load(), err)
	}
	if _, err := second.pool.Alloc(8 * mib); !errors.Is(err, gpumem.ErrOutOfMemory) {
		t.Errorf("%v; want a refusal", err)
	}
	turn, err := first.lease.Turn()
	if n := first.looks.Load(); err != nil || turn.Reason != ledger.RegisteredMemory || turn.Swaps > 0 || n < 1 || n > 3 {
		t.Errorf("%+v, %v, %d looks", turn, err, n)
	}
	first.end()
	second.end()
}

// TestDrainAfterOneThatWasLate: a wait for the program's work that was not over at its deadline says nothing of what is
// submitted after. The next drain waits for that, too; else memory would leave under work of the legacy
// stream, for which the gate's streams are not asked.
func TestDrainAfterOneThatWasLate(t *testing.T) {
	l := newLender(t, "elastic", 1)
	work := make(chan struct{}, 2) // an item ends a wait
	l.d.waited = func() { <-work }
	a := shim.NewDrainer(newGate())
	for range 2 { // the second one waits for the first one's wait
		if err := a.Drain(l.pool); err == nil {
			t.Error("drained while work is under way")
		}
	}
	if n := l.d.waits.Load(); n != 1 {
		t.Errorf("%d waits, want 1", n)
	}
	work <- struct{}{} // that ends, and there is new work
	if err := a.Drain(l.pool); err == nil {
		t.Error("drained while work is under way that came after the wait")
	}
	work <- struct{}{}
	work <- struct{}{}
	if err := a.Drain(l.pool); err != nil {
		t.Error(err)
	}
	close(work)
	if err := l.pool.Close(); err != nil {
		t.Error(err)
	}
}

// TestWaitsForWhatPasses: a request waits while the one that holds the memory cannot leave for a reason that
// passes, says so once, and is refused with that reason where it does not pass; and is served where it has.
func TestWaitsForWhatPasses(t *testing.T) {
	for _, isOver := range []bool{false, true} {
		back := shim.SetPassesIn(3 * time.Second)
		path := newTurns(t, 16*mib)
		busy := newSeated(t, path, "elastic", 1, 0, 20*time.Millisecond, ledger.Capturing)
		other := newSeated(t, path, "elastic", 2, 0, 20*time.Millisecond)
		if _, err := busy.pool.Alloc(10 * mib); err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() {
			_, err := other.pool.Alloc(10 * mib)
			served <- err
		}()
		for len(other.said()) == 0 {
			time.Sleep(time.Millisecond)
		}
		if isOver {
			busy.setReason(ledger.NoReason)
		}
		if err := <-served; (err == nil) != isOver {
			t.Errorf("the reason has passed: %t; %v", isOver, err)
		}
		const why = "another process holds 10 MiB, and a stream capture is under way"
		want := []string{"a request of 10 MiB waits: " + why}
		if !isOver {
			want = append(want, "a request of 10 MiB is refused: "+why)
		}
		if said := other.said(); !slices.Equal(said, want) {
			t.Errorf("said %q, want %q", said, want)
		}
		busy.end()
		other.end()
		back()
	}
}

// lateRefusal is an account that refuses once what is free when the refusal is looked at.
type lateRefusal struct {
	*shim.Lease
	refusals atomic.Int32 // that are left
}

func (a *lateRefusal) Take(k shim.Part, bytes uint64) error {
	if a.refusals.Add(-1) >= 0 {
		return fmt.Errorf("%w: what others held a moment ago", device.ErrOutOfMemory)
	}
	return a.Lease.Take(k, bytes)
}

// TestRoomAfterTheRefusal: a request that is refused because of what others hold, and release before that is
// looked at, is tried again.
func TestRoomAfterTheRefusal(t *testing.T) {
	path := newTurns(t, 16*mib)
	s := newSeated(t, path, "elastic", 1, time.Hour, 0)
	account := &lateRefusal{Lease: s.lease}
	pool := openOn(t, s.d, "elastic", shim.Config{Account: account, Room: shim.Room, WaitRoom: s.agent.WaitRoom})
	account.refusals.Store(3) // the request is tried some times before
	if _, err := pool.Alloc(mib); err != nil {
		t.Errorf("%v; %q", err, s.said())
	}
	if n := account.refusals.Load(); n >= 0 {
		t.Errorf("%d refusals are left: the request was not refused", n+1)
	}
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
	s.end()
}

// TestWaitsForWholePages: a request for less than is left, and for more than the pages that fit into it, waits
// until another has left.
func TestWaitsForWholePages(t *testing.T) {
	path := newTurns(t, 17*mib-4096)
	holds := newSeated(t, path, "elastic", 1, 0, 20*time.Millisecond)
	other := newSeated(t, path, "elastic", 2, 0, 20*time.Millisecond)
	if _, err := holds.pool.Alloc(16 * mib); err != nil {
		t.Fatal(err)
	}
	if _, err := other.pool.Alloc(mib - 8192); err != nil {
		t.Errorf("%v; %q", err, other.said())
	}
	holds.end()
	other.end()
}

// TestStays: what cannot leave is not waited for, and says why.
func TestStays(t *testing.T) {
	path := newTurns(t, 64*mib)
	fixed := newSeated(t, path, "async", 1, 20*time.Millisecond, 20*time.Millisecond, ledger.OtherPolicy)
	other := newSeated(t, path, "elastic", 2, 20*time.Millisecond, 20*time.Millisecond)
	addr, err := fixed.pool.AllocAsync(40*mib, uint64(fixed.stream))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.pool.Alloc(40 * mib); !errors.Is(err, gpumem.ErrOutOfMemory) {
		t.Errorf("%v; want a refusal: what is held does not leave", err)
	}
	if err := fixed.pool.FreeAsync(addr, uint64(fixed.stream)); err != nil {
		t.Error(err)
	}
	fixed.end()
	other.end()
}

// TestMoveShowsLife: a process whose move lasts gives signs of life meanwhile. Without, who waited for its
// memory was refused after [ledger.Silence], in which a few GiB leave.
func TestMoveShowsLife(t *testing.T) {
	path := newTurns(t, 16*mib)
	slow := newSeated(t, path, "elastic", 1, 0, time.Millisecond)
	other := newSeated(t, path, "elastic", 2, 0, time.Millisecond)
	slow.onHost = func(bytes uint64) (shim.HostMemory, error) {
		first, err := slow.lease.Turn()
		for deadline := time.Now().Add(ledger.Silence); err == nil; time.Sleep(time.Millisecond) {
			var turn ledger.Turn
			if turn, err = slow.lease.Turn(); turn.Seen > first.Seen {
				break
			} else if time.Now().After(deadline) {
				err = errors.New("no sign of life while it moves")
			}
		}
		if err != nil {
			t.Error(err)
		}
		return shim.Room(bytes)
	}
	for _, s := range []*seated{slow, other} {
		if _, err := s.pool.Alloc(10 * mib); err != nil {
			t.Errorf("%v; %q", err, s.said())
		}
	}
	slow.end()
	other.end()
}

// TestTurnBeginsWhenServed: a process for which another has left begins a turn. Without, its turn, which is
// over, ended before it could use what it got: who left comes back at once.
func TestTurnBeginsWhenServed(t *testing.T) {
	path := newTurns(t, 16*mib)
	asks := newSeated(t, path, "elastic", 1, 0, time.Millisecond)
	leaves := newSeated(t, path, "elastic", 2, 0, time.Millisecond)
	var asked ledger.Moment
	for _, s := range []*seated{asks, leaves, asks} {
		asked = ledger.Now()
		if _, err := s.pool.Alloc(7 * mib); err != nil {
			t.Fatalf("%v; %q", err, s.said())
		}
	}
	if turn, err := asks.lease.Turn(); err != nil || turn.Since < asked {
		t.Errorf("asked at %d: %+v, %v", asked, turn, err)
	}
	leaves.until(func(t ledger.Turn) bool { return t.State == ledger.Away && t.Swaps == 1 })
	asks.end()
	leaves.end()
}

// until waits until a program's record is as wanted.
func (s *seated) until(ok func(t ledger.Turn) bool) {
	s.t.Helper()
	for {
		turn, err := s.lease.Turn()
		if err != nil {
			s.t.Fatal(err)
		}
		if ok(turn) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// ask asks a program by hand.
func (s *seated) ask(path string, what ledger.Ask) {
	s.t.Helper()
	l, err := ledger.Open(path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer l.Close()
	for _, e := range l.Turns() {
		if e.Slot == s.lease.Slot() {
			err = l.Ask(e, what)
		}
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// TestRequestKeepsItsPlace: a program leaves while a thread waits for memory, and another begins to wait then. When
// the program is back the thread is served before that. Without, it had the last place in the queue, and its program
// left at once, each time anew.
func TestRequestKeepsItsPlace(t *testing.T) {
	path := newTurns(t, 16*mib)
	var programs [3]*seated
	for i := range programs {
		programs[i] = newSeated(t, path, "vmm", uint64(i), 0, time.Hour)
	}
	first, holds, later := programs[0], programs[1], programs[2]
	alloc := func(s *seated, bytes uint64) chan error {
		done := make(chan error, 1)
		go func() {
			_, err := s.pool.Alloc(bytes)
			done <- err
		}()
		return done
	}
	if err := errors.Join(<-alloc(first, 6*mib), <-alloc(holds, 10*mib)); err != nil {
		t.Fatal(err)
	}
	isQueued := func(t ledger.Turn) bool { return t.Ticket != 0 }
	firstServed := alloc(first, 4*mib)
	first.until(isQueued)
	first.ask(path, ledger.Pause)
	first.until(func(t ledger.Turn) bool { return t.State == ledger.Away })
	laterServed := alloc(later, 12*mib)
	later.until(isQueued)
	first.ask(path, ledger.Resume)
	first.until(func(t ledger.Turn) bool { return t.State == ledger.Waiting && t.Wants == 10*mib })
	holds.end()
	if err := <-firstServed; err != nil {
		t.Errorf("%v; %q", err, first.said())
	}
	if turn, err := first.lease.Turn(); err != nil || turn.Swaps != 1 {
		t.Errorf("%+v, %v: want no way out but the one by hand", turn, err)
	}
	first.end()
	if err := <-laterServed; err != nil {
		t.Errorf("%v; %q", err, later.said())
	}
	later.end()
}

// TestResumeHoldsOnce: a program that was resumed by hand leaves for another, and stays away as it has no work. Without,
// it came back at once whenever it had left.
func TestResumeHoldsOnce(t *testing.T) {
	path := newTurns(t, 16*mib)
	idle, other := newSeated(t, path, "elastic", 1, 0, time.Millisecond), newSeated(t, path, "elastic", 2, 0, time.Millisecond)
	if _, err := idle.pool.Alloc(10 * mib); err != nil {
		t.Fatal(err)
	}
	idle.ask(path, ledger.Pause)
	idle.until(isAway)
	idle.ask(path, ledger.Resume)
	idle.until(func(t ledger.Turn) bool { return t.State == ledger.In })
	if _, err := other.pool.Alloc(10 * mib); err != nil {
		t.Fatal(err)
	}
	var left ledger.Turn
	idle.until(func(t ledger.Turn) bool { left = t; return isAway(t) })
	idle.until(func(t ledger.Turn) bool { return t.Seen > left.Seen })
	if turn, err := idle.lease.Turn(); err != nil || turn.State != ledger.Away || turn.Ticket != 0 {
		t.Errorf("%+v, %v", turn, err)
	}
	idle.end()
	other.end()
}

// TestServedIsNotTaken: who has left for a request wants its memory back before the thread has taken what it waited
// for, and waits. Without, it took all, and had left for nothing.
func TestServedIsNotTaken(t *testing.T) {
	path := newTurns(t, 16*mib)
	asks, leaves := newSeated(t, path, "vmm", 1, 0, time.Hour), newSeated(t, path, "vmm", 2, 0, time.Millisecond)
	for s, bytes := range map[*seated]uint64{asks: 6 * mib, leaves: 10 * mib} {
		if _, err := s.pool.Alloc(bytes); err != nil {
			t.Fatal(err)
		}
	}
	wait := asks.agent.WaitRoom(4 * mib)
	if !wait.Again() {
		t.Fatalf("refused; %q", asks.said())
	}
	var worked sync.WaitGroup
	worked.Go(func() { leaves.gate.pass(func() {}) })
	var queued ledger.Turn
	leaves.until(func(t ledger.Turn) bool { queued = t; return t.Ticket != 0 })
	leaves.until(func(t ledger.Turn) bool { return t.Seen > queued.Seen.Add(time.Second) || t.State != ledger.Waiting })
	if turn, err := leaves.lease.Turn(); err != nil || turn.State != ledger.Waiting {
		t.Errorf("%+v, %v: want that it waits", turn, err)
	}
	if _, err := asks.pool.Alloc(4 * mib); err != nil {
		t.Error(err)
	}
	wait.End()
	asks.until(func(turn ledger.Turn) bool { return turn.Ticket == 0 })
	if turn, err := asks.lease.Turn(); err != nil || turn.Swaps != 0 {
		t.Errorf("%+v, %v", turn, err)
	}
	asks.end()
	worked.Wait()
	leaves.end()
}

// TestRefusedForOthers: what a program says that is refused is the lease's limit only where that is it, and else what others hold.
func TestRefusedForOthers(t *testing.T) {
	const mib = 1 << 20
	for _, tc := range []struct {
		name          string
		theirs, wants uint64
		want          string
	}{
		{"others hold it", 56 * mib, 10 * mib, "others hold 56 MiB of the 64 MiB that programs share by turns"},
		{"the lease is smaller", 8 * mib, 40 * mib, "32 MiB are left of the lease of 32 MiB"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := newTurns(t, 64*mib)
			other, err := shim.Join(path, "", "", nil)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Leave()
			if err := other.Member.Take(ledger.Charged, tc.theirs); err != nil {
				t.Fatal(err)
			}
			own, err := shim.Join(path, "1=33554432", "", nil)
			if err != nil {
				t.Fatal(err)
			}
			defer own.Leave()
			l := newLender(t, "elastic", 1)
			var said string
			p := openOn(t, l.d, "elastic", shim.Config{Account: own, Say: func(line string) { said += line + "\n" }})
			defer p.Close()
			if _, err := p.Alloc(tc.wants); err == nil || !strings.Contains(said, tc.want) {
				t.Errorf("%v: %q", err, said)
			}
		})
	}
}
