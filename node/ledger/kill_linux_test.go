package ledger

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"gpumem/internal/crashpoint"
)

var kills = flag.Int("kills", 50, "how often TestKilledAtRandom kills; 1000 for the long run")

// Tests with several processes run this binary again, with asChild in its environment.
const asChild = "GPUMEM_LEDGER_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(asChild) == "" {
		os.Exit(m.Run())
	}
	if err := walk(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const (
	programs  = 4
	processes = 4 // of each program
)

// board is what the processes of the test share besides the ledger: what each believes
// to hold, so that it can be compared.
type board struct {
	pause   atomic.Uint64 // not 0: stop, and acknowledge this number
	members [programs * processes]struct {
		stopped, held, calls atomic.Uint64
		ticket, mark         atomic.Uint64 // by turns: what its record has
		_                    [24]byte
	}
}

func openBoard(path string) (*board, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := syscall.Mmap(int(f.Fd()), 0, int(unsafe.Sizeof(board{})), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*board)(unsafe.Pointer(&data[0])), nil
}

// walk LEDGER BOARD INDEX SEED takes and gives at random until standard input ends.
func walk(args []string) error {
	b, err := openBoard(args[1])
	if err != nil {
		return err
	}
	index, _ := strconv.Atoi(args[2])
	seed, _ := strconv.ParseUint(args[3], 10, 64)
	r := rand.New(rand.NewPCG(seed, 0))
	me := &b.members[index]
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	l, err := Open(args[0])
	if err != nil {
		return err
	}
	m, err := l.Join()
	if err != nil {
		return err
	}
	for {
		for n := b.pause.Load(); n != 0; n = b.pause.Load() {
			me.stopped.Store(n)
			time.Sleep(20 * time.Microsecond)
		}
		kind, n := Kind(r.IntN(int(kinds))), r.Uint64N(200)
		switch op := r.IntN(100); {
		case l.h.Turns && op < 50 && r.IntN(2) == 0:
			err = walkInTurn(m, r, kind, n)
		case op < 50:
			err = m.Take(kind, n)
			err = unlessFull(m, err)
		case op < 95:
			own := m.Own()
			err = m.Give(kind, min(n, *own.word(kind)))
		case op < 98:
			m.Publish(Figures{InUse: m.Own().Held})
			if left := m.Left(); left > l.Header().Limit-m.Own().Sum() {
				err = fmt.Errorf("%d left of %d, and I hold %d", left, l.Header().Limit, m.Own().Sum())
			}
		default:
			if err = m.Leave(); err == nil {
				m, err = l.Join()
			}
		}
		if err != nil {
			return err
		}
		me.held.Store(m.Own().Sum())
		me.ticket.Store(m.turn.Ticket)
		me.mark.Store(m.turn.Swaps)
		me.calls.Add(1)
	}
}

// unlessFull returns the error of a request, if it is not that the lease is full or that it is
// another's turn.
func unlessFull(m *Member, err error) error {
	var full *FullError
	if errors.As(err, &full) && full.Held+full.Wanted > full.Limit || err == ErrTurn && m.turn.Ticket != 0 {
		return nil
	}
	return err
}

// walkInTurn waits, is served or gives up, or says something whose words belong together.
func walkInTurn(m *Member, r *rand.Rand, kind Kind, n uint64) error {
	switch wants := m.turn.Wants; r.IntN(4) {
	case 0:
		_, err := m.Queue(n)
		return err
	case 1:
		return unlessFull(m, m.Take(kind, wants))
	case 2:
		return m.Unqueue()
	}
	return m.SetTurn(func(t *Turn) {
		t.Swaps++
		t.State, t.OnHost, t.Cost, t.Worked = State(t.Swaps%uint64(states)), t.Swaps, time.Duration(t.Swaps), Moment(t.Swaps)
	})
}

// child is a running process of a program.
type child struct {
	*exec.Cmd
	errs strings.Builder
}

// TestKilledAtRandom kills processes of four programs, and whole programs, while they
// take and give. Then the sum is that of the living, a request for all that is left is
// granted, and one byte more is refused. By turns, what the living say and wait for is as they
// have left it, and nobody else waits.
func TestKilledAtRandom(t *testing.T) {
	for _, turns := range []bool{false, true} {
		t.Run(fmt.Sprintf("turns=%t", turns), func(t *testing.T) { killAtRandom(t, turns) })
	}
}

func killAtRandom(t *testing.T, turns bool) {
	const limit = 1500 // 16 processes hold 300 each if they may
	dir := t.TempDir()
	path, boardPath := filepath.Join(dir, "ledger"), filepath.Join(dir, "board")
	must(t, Create(path, Header{Limit: limit, Total: 2 * limit, Turns: turns}))
	must(t, os.WriteFile(boardPath, make([]byte, unsafe.Sizeof(board{})), 0o600))
	b, err := openBoard(boardPath)
	must(t, err)
	l := openLedger(t, path)
	me := join(t, l)

	var children [programs * processes]*child
	start := func(i int) {
		c := &child{Cmd: exec.Command("/proc/self/exe", path, boardPath, strconv.Itoa(i), strconv.FormatUint(rand.Uint64(), 10))}
		c.Env = append(os.Environ(), asChild+"=1")
		c.Stderr = &c.errs
		_, err := c.StdinPipe()
		must(t, err)
		b.members[i].stopped.Store(0)
		b.members[i].held.Store(0)
		b.members[i].calls.Store(0)
		must(t, c.Start())
		children[i] = c
	}
	end := func(i int) {
		c := children[i]
		_ = c.Wait()
		if s, _ := c.ProcessState.Sys().(syscall.WaitStatus); !s.Signaled() {
			t.Fatalf("process %d ended by itself: %v, %s", i, c.ProcessState, &c.errs)
		}
		children[i] = nil
	}
	defer func() {
		for _, c := range children {
			if c != nil {
				_ = c.Process.Kill()
				_ = c.Wait()
			}
		}
	}()
	eventually := func(what string, is func() bool) time.Duration {
		begin := time.Now()
		for !is() {
			if time.Since(begin) > time.Minute {
				for i, c := range children {
					if c != nil && syscall.Kill(c.Process.Pid, 0) == nil {
						t.Logf("process %d: %s", i, &c.errs)
					}
				}
				t.Fatalf("after a minute still not: %s", what)
			}
			time.Sleep(20 * time.Microsecond)
		}
		return time.Since(begin)
	}

	for i := range children {
		start(i)
	}
	f := writable(t, l)
	var longest time.Duration
	for round := range *kills {
		for i := range children {
			eventually("all are at work", func() bool { return b.members[i].calls.Load() > 0 })
		}
		for range rand.IntN(50) { // no request is granted meanwhile, so the sum is exact
			must(t, f.locked(func() error {
				return f.view(-1, func(slots []slot) error {
					if sum, err := f.sum(slots, 0); err != nil || sum > limit {
						t.Fatalf("sum %d of %d, %v", sum, limit, err)
					}
					return nil
				})
			}))
		}
		victims := []int{rand.IntN(len(children))}
		if rand.IntN(8) == 0 {
			first := victims[0] / processes * processes
			victims = []int{first, first + 1, first + 2, first + 3}
		}
		for _, i := range victims {
			must(t, children[i].Process.Kill())
		}
		longest = max(longest, eventually("the killed hold nothing", func() bool {
			for _, f := range l.Members() {
				for _, i := range victims {
					if f.PID == children[i].Process.Pid {
						return false
					}
				}
			}
			return true
		}))
		for _, i := range victims {
			end(i)
		}
		b.pause.Store(uint64(round + 1))
		var held uint64
		for i, c := range children {
			if c != nil {
				eventually("all have stopped", func() bool { return b.members[i].stopped.Load() == uint64(round+1) })
				held += b.members[i].held.Load()
			}
		}
		if got := l.Held(); got != held || me.Left() != limit-held {
			t.Fatalf("round %d: held %d, left %d; the processes hold %d", round, got, me.Left(), held)
		}
		if turns {
			checkTurns(t, l.Turns(), children[:], b)
		}
		must(t, me.Take(Held, limit-held))
		if err := me.Take(Held, 1); !errors.Is(err, ErrFull) {
			t.Fatalf("one byte beyond the limit: %v", err)
		}
		must(t, me.Give(Held, limit-held))
		b.pause.Store(0)
		for _, i := range victims {
			start(i)
		}
	}
	t.Logf("%d kills; the longest until a killed process holds nothing: %v", *kills, longest)
}

// checkTurns compares what the living say with what they believe to say.
func checkTurns(t *testing.T, all []Entry, children []*child, b *board) {
	t.Helper()
	living := 1 // this process
	for i, c := range children {
		if c == nil {
			continue
		}
		living++
		k := slices.IndexFunc(all, func(e Entry) bool { return e.PID == c.Process.Pid })
		if k < 0 {
			t.Fatalf("process %d is not among %+v", i, all)
		}
		ticket, mark := b.members[i].ticket.Load(), b.members[i].mark.Load()
		e := all[k].Turn
		want := Turn{State: State(mark % uint64(states)), Ticket: ticket, Wants: e.Wants, Since: e.Since, Seen: e.Seen,
			OnHost: mark, Movable: e.Movable, Cost: time.Duration(mark), Worked: Moment(mark), Swaps: mark}
		if e.Ticket == 0 {
			want.Wants = 0
		}
		if e.State == Returning { // it was Waiting, and was served
			want.State = e.State
		}
		if e != want {
			t.Fatalf("process %d: %+v, want %+v", i, e, want)
		}
	}
	if len(all) != living {
		t.Fatalf("%d processes, and %d live", len(all), living)
	}
}

// victim is a process that is killed in between: it is a member of this process's that ends in a
// panic, and whose file is closed then, as the kernel does.
type victim struct {
	l *Ledger
	m *Member
}

// steps are what it does until then, and a process that died before it has held 50 of 100.
func (v *victim) steps(living Entry) []func() error {
	queue := func(n uint64) func() error {
		return func() error {
			_, err := v.m.Queue(n)
			return err
		}
	}
	say := func(s State) func() error {
		return func() error {
			return v.m.SetTurn(func(t *Turn) { t.State, t.Movable, t.LendAfter, t.Since = s, v.m.own.Held, 1, 1 })
		}
	}
	return []func() error{
		func() error { return v.m.f.locked(v.m.claim) },
		say(Waiting),
		queue(70),
		func() error { return v.m.Take(Held, 70) }, // which clears the dead one, and ends the wait
		say(In),
		queue(20),
		queue(30),
		func() error { return v.m.Unqueue() },
		say(Leaving),
		func() error { return v.m.Give(Held, 70) },
		say(Away),
		queue(70),
		func() error { return v.l.Ask(living, Resume) },
		func() error { return v.l.SetLimit(100) },
		func() error { return v.m.Leave() },
	}
}

// runUpTo makes the steps up to a write, and reports whether there are so many.
func (v *victim) runUpTo(t *testing.T, write int, living Entry) (killed bool) {
	n := 0
	crashpoint.Hook = func(string) {
		if n++; n == write {
			panic(v)
		}
	}
	defer func() {
		crashpoint.Hook = nil
		if r := recover(); r != nil && r != v {
			panic(r)
		} else if r != nil {
			killed = true
			must(t, v.m.f.Close())
		}
	}()
	for i, step := range v.steps(living) {
		if err := step(); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	return false
}

// TestKilledBetweenTwoWrites kills a process after each of its writes. The living are as they were
// but for what they are asked, the killed one holds up nobody, and who has its slot is nobody's
// heir.
func TestKilledBetweenTwoWrites(t *testing.T) {
	writes := 1
	for ; ; writes++ {
		l := byTurns(t)
		dead, a, b := join(t, l), join(t, l), join(t, l)
		must(t, dead.Take(Held, 50))
		_, err := dead.Queue(1)
		must(t, errors.Join(err, dead.Forget()))
		must(t, a.Take(Held, 20))
		must(t, a.SetTurn(func(t *Turn) { t.Reason, t.OnHost = Capturing, 3 }))
		must(t, b.SetTurn(func(t *Turn) { t.State, t.OnHost = Away, 80 }))
		before := []Entry{entry(t, l, a), entry(t, l, b)}

		m, err := l.newMember(nil)
		must(t, err)
		v := &victim{l: l, m: m}
		killed := v.runUpTo(t, writes, before[0])
		all := l.Turns()
		for i := range all {
			all[i].Asked, all[i].Asks = 0, 0
		}
		if !slices.Equal(all, before) {
			t.Fatalf("write %d: %+v, want %+v", writes, all, before)
		}
		ticket, err := b.Queue(80)
		if err != nil || ticket <= m.turn.Ticket {
			t.Fatalf("write %d: ticket %d after %d, %v", writes, ticket, m.turn.Ticket, err)
		}
		if err := b.Take(Held, 80); err != nil {
			t.Fatalf("write %d: the killed one holds up another: %v", writes, err)
		}
		for range 2 { // one of them has its slot
			heir := join(t, l)
			if e := entry(t, l, heir); e.Turn != (Turn{Since: e.Since, Seen: e.Seen}) || e.Sum() != 0 {
				t.Fatalf("write %d: who comes after it has %+v", writes, e)
			}
		}
		if !killed {
			break
		}
	}
	if writes < 20 {
		t.Errorf("only %d writes", writes)
	}
	t.Logf("killed after each of %d writes", writes-1)
}
