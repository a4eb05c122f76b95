package shim_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gpumem"
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
	return g.passed
}

func (g *gate) Close(time.Duration) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for g.in > 0 {
		g.changed.Wait()
	}
	return nil
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
	said   func() []string
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
	reason := ledger.NoReason
	if len(stays) > 0 {
		reason = stays[0]
	}
	lease, err := shim.Join(path, "", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &seated{lender: newLender(t, spec, seed), gate: newGate(), lease: lease}
	var mu sync.Mutex
	var lines []string
	s.said = func() []string {
		mu.Lock()
		defer mu.Unlock()
		return lines
	}
	s.agent = shim.NewAgent(shim.AgentConfig{
		Gate: s.gate, Seat: lease.Member, LendAfter: lend, Quantum: quantum,
		Pool: s.opened.Load, Reason: func() ledger.Reason { return reason },
		Say: func(line string) {
			mu.Lock()
			defer mu.Unlock()
			lines = append(lines, line)
		},
	})
	s.pool = openOn(t, s.d, spec, shim.Config{Account: lease, Room: shim.Room, WaitRoom: s.agent.WaitRoom})
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
	for _, spec := range []string{"elastic", "vmm", "platform"} {
		t.Run(spec, func(t *testing.T) {
			path := newTurns(t, 16*mib)
			var programs []*seated
			for i := range 3 {
				programs = append(programs, newSeated(t, path, spec, uint64(i), 0, 30*time.Millisecond))
			}
			var all sync.WaitGroup
			for _, s := range programs {
				all.Go(func() {
					if err := s.work(10*mib, 30); err != nil {
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
	if turn, err := notebook.lease.Turn(); err != nil || turn.State != ledger.Away || turn.OnHost < 6*mib {
		t.Errorf("%+v, %v; %q", turn, err, notebook.said())
	}
	training.gate.pass(training.contents)
	notebook.gate.pass(notebook.contents) // waits until the training is idle
	if turn, err := training.lease.Turn(); err != nil || turn.State != ledger.Away {
		t.Errorf("%+v, %v", turn, err)
	}
	training.gate.pass(training.contents)
	notebook.end()
	training.end()
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
	for seen := int64(0); ; { // until it was seen at work while the other waits
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
	if turn, err := busy.lease.Turn(); err != nil || turn.Swaps != 1 {
		t.Errorf("%+v, %v", turn, err)
	}
	busy.end()
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
