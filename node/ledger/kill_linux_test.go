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
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
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
		_                    [40]byte
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
		case op < 50:
			err = m.Take(kind, n)
			var full *FullError
			if errors.As(err, &full) && full.Held+full.Wanted > full.Limit {
				err = nil
			}
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
		me.calls.Add(1)
	}
}

// child is a running process of a program.
type child struct {
	*exec.Cmd
	errs strings.Builder
}

// TestKilledAtRandom kills processes of four programs, and whole programs, while they
// take and give. Then the sum is that of the living, a request for all that is left is
// granted, and one byte more is refused.
func TestKilledAtRandom(t *testing.T) {
	const limit = 1500 // 16 processes hold 300 each if they may
	dir := t.TempDir()
	path, boardPath := filepath.Join(dir, "ledger"), filepath.Join(dir, "board")
	must(t, Create(path, Header{Limit: limit, Total: 2 * limit}))
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
