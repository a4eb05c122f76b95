package preload

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpumem/node/ledger"
)

var terminal = compiled("terminal")

// terminals starts programs on one simulated GPU of 256 MiB, each by a run of its own.
type terminals struct {
	t       *testing.T
	gpumem  func(args ...string) *exec.Cmd
	device  string
	program string
}

func newTerminals(t *testing.T) *terminals {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped: builds the command")
	}
	b := libraries(t)
	program, err := terminal()
	if err != nil {
		t.Fatal(err)
	}
	gpumem, device := command(t, b)
	device += "-of-turns"
	if out, err := output(gpumem("devices", "--device", device+",total=256MiB,create")); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return &terminals{t, gpumem, device, program}
}

// terminalRun is a run of the program, and what it has written.
type terminalRun struct {
	*exec.Cmd
	in   io.Closer
	out  bytes.Buffer
	done chan struct{} // closed at its end
	err  error         // of its end
}

// start starts a program of 150 MiB, which is more than half of the GPU.
func (s *terminals) start(seed int) *terminalRun {
	s.t.Helper()
	r := &terminalRun{Cmd: s.gpumem("run", "--simulate", s.device, "--pool", "elastic", "--turns=200ms", "--mem", "180MiB", "--",
		s.program, fmt.Sprint(seed), "150")}
	r.Env = append(r.Env, "GPUMEM_SIM_CONTENTS=1GiB")
	r.Stdout, r.Stderr = &r.out, &r.out
	r.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r.WaitDelay = time.Second
	in, err := r.StdinPipe()
	if err == nil {
		err = r.Start()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	r.in, r.done = in, make(chan struct{})
	go func() {
		defer close(r.done)
		r.err = r.Wait()
	}()
	s.t.Cleanup(func() { _ = syscall.Kill(-r.Process.Pid, syscall.SIGKILL) })
	return r
}

// mustEndWell ends a run's input and waits for its end. Its memory must be as the program left it.
func (s *terminals) mustEndWell(r *terminalRun) {
	s.t.Helper()
	_ = r.in.Close()
	if <-r.done; r.err != nil || !strings.Contains(r.out.String(), "\nall is right\n") {
		s.t.Errorf("%v\n%s", r.err, &r.out)
	}
}

// mustBeFree fails unless all of the GPU is free, and nothing is left in the registry once somebody
// has looked.
func (s *terminals) mustBeFree() {
	s.t.Helper()
	c := s.gpumem("run", "--device", s.device, "--mem", "256MiB", "--wait=1m", "--", "sh", "-c", "ls $GPUMEM_RUN_DIR")
	if out, err := output(c); err != nil || strings.Contains(out, ".turns") {
		s.t.Errorf("%v\n%s", err, out)
	}
}

// TestTerminalsShareByTurns: two programs of 70 % of a GPU, each of a run of its own. Each leaves
// and comes back several times, and what is in its memory stays.
func TestTerminalsShareByTurns(t *testing.T) {
	s := newTerminals(t)
	one, two := s.start(1), s.start(2)
	for moved := 0; moved < 2; {
		moved = 0
		for _, e := range s.mustBeWithinTheLimit() {
			if e.Swaps >= 3 {
				moved++
			}
		}
		select {
		case <-one.done:
			t.Fatalf("%v\n%s", one.err, &one.out)
		case <-two.done:
			t.Fatalf("%v\n%s", two.err, &two.out)
		default:
		}
	}
	s.mustEndWell(one)
	s.mustEndWell(two)
	s.mustBeFree()
}

// TestKilledTerminals kills runs, programs and all of a run's processes at random moments. Others go
// on, with what is in their memory, what all hold is never more than the limit, and in the end all is
// free.
func TestKilledTerminals(t *testing.T) {
	s := newTerminals(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	living := make([]*terminalRun, 2)
	for i := range living {
		living[i] = s.start(i + 1)
	}
	witness := s.start(200)
	var last *terminalRun // what is left of it lives on until the next kill
	end := func(r *terminalRun) {
		_ = syscall.Kill(-r.Process.Pid, syscall.SIGKILL)
		if <-r.done; strings.Contains(r.out.String(), "wrong") {
			t.Fatalf("%s", &r.out)
		}
	}
	for range *kills {
		for moment := time.Now().Add(time.Duration(random.IntN(300)) * time.Millisecond); time.Now().Before(moment); {
			s.mustBeWithinTheLimit()
		}
		if last != nil {
			end(last)
		}
		i := random.IntN(len(living))
		last = living[i]
		pid := last.Process.Pid
		_ = syscall.Kill([]int{pid, programOf(pid), -pid}[random.IntN(3)], syscall.SIGKILL)
		living[i] = s.start(i + 1)
	}
	s.mustEndWell(witness)
	for _, r := range append(living, last) {
		end(r)
	}
	s.mustBeFree()
}

// mustBeWithinTheLimit fails if the ledger by turns has more than its limit, and returns the processes
// in it. A request that is refused says what is held, to the byte.
func (s *terminals) mustBeWithinTheLimit() (list []ledger.Entry) {
	s.t.Helper()
	paths, _ := filepath.Glob(filepath.Join(filepath.Dir(strings.TrimPrefix(s.device, "sim@")), "registry", "*.turns"))
	time.Sleep(5 * time.Millisecond) // who looks all the time holds the others up
	for _, path := range paths {
		l, err := ledger.Open(path)
		if err != nil {
			continue // it has gone meanwhile
		}
		m, err := l.Join()
		var full *ledger.FullError
		if err == nil && errors.As(m.Take(ledger.Held, 1<<30), &full) && full.Held > full.Limit {
			s.t.Fatalf("%d bytes are held of %d", full.Held, full.Limit)
		}
		if err == nil {
			err = m.Leave()
		}
		list = append(list, l.Turns()...)
		if err = errors.Join(err, l.Close()); err != nil {
			s.t.Fatal(err)
		}
	}
	return list
}

// programOf returns the first child of a run, or the run.
func programOf(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	child := pid
	_, _ = fmt.Sscan(string(text), &child)
	return child
}
