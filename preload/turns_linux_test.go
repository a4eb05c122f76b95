package preload

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gpumem/device/open"
	"gpumem/node/ledger"
	"gpumem/policy/frameworks"
)

var turnKills = flag.Int("turn-kills", 8, "how often TestKilledByTurns kills a program; 1000 for the long run")

var returns = flag.Int("returns", 6, "how often a program's memory leaves and returns in TestContents...; 1000 for the long run")

const mib = 1 << 20

// buildTurns makes a folder with turns.c, and a driver that loses and swaps pages.
var buildTurns = sync.OnceValues(func() (dir string, err error) {
	b, err := build()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(b.programs, "by-turns")
	driver := filepath.Join(dir, "driver.so")
	for _, c := range []string{
		"mkdir DIR",
		"gcc -O2 -Wall -o DIR/turns testdata/turns.c -ldl -lpthread",
		// Linked to an empty library of that path: the driver's own has the name of the front's.
		"gcc -shared -o DIR/driver.so -x c /dev/null",
		"gcc -O1 -Wall -shared -fPIC -DDRIVER=\"DIR/driver.so\" -o DIR/planted.so testdata/planted.c" +
			" -Wl,--no-as-needed DIR/driver.so -ldl -lpthread",
		"cp " + filepath.Join(b.driver, "libcuda.so.1") + " " + driver,
	} {
		words := strings.Fields(strings.ReplaceAll(c, "DIR", dir))
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w\n%s", c, err, out)
		}
	}
	return dir, nil
})

// table is a simulated GPU and a ledger by turns, for programs that are started on it.
type table struct {
	*ledger.Ledger
	t           *testing.T
	b           built
	dir         string // of the programs
	path        string // of the ledger
	device      string
	environment []string
}

// newTable makes one whose programs may hold limit bytes together.
func newTable(t *testing.T, limit uint64, environment ...string) *table {
	t.Helper()
	b := libraries(t)
	if *builtIn != "" {
		t.Skip("SKIPPED: -built: the machine of a bundle may have no C compiler, which the programs need")
	}
	dir, err := buildTurns()
	if err != nil {
		t.Fatal(err)
	}
	at := t.TempDir()
	tb := &table{t: t, b: b, dir: dir, path: filepath.Join(at, "ledger"), environment: environment}
	tb.device = "sim@" + filepath.Join(at, "gpu")
	spec, err := open.Parse(tb.device + ",total=4GiB,create")
	must(t, err)
	must(t, spec.Make())
	must(t, ledger.Create(tb.path, ledger.Header{Limit: limit, Total: 4 << 30, Turns: true}))
	tb.Ledger, err = ledger.Open(tb.path)
	must(t, err)
	t.Cleanup(func() { _ = tb.Close() })
	return tb
}

// policyOf is GPUMEM_POLICY of a policy's name.
func policyOf(t *testing.T, name string) string {
	t.Helper()
	p, err := frameworks.Parse(name)
	must(t, err)
	text, err := json.Marshal(p)
	must(t, err)
	return "GPUMEM_POLICY=" + string(text)
}

// turner is a program of a table.
type turner struct {
	*exec.Cmd
	t     *testing.T
	table *table
	name  string
	in    io.WriteCloser
	lines chan string // that it writes
	said  *lockedBuffer
}

// lockedBuffer is what a program and the library say.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start starts a program of the folder, or one that is named by its path, with turns or a time after which it
// lends in its environment.
func (tb *table) start(environment string, command ...string) *turner {
	tb.t.Helper()
	path := command[0]
	if !strings.Contains(path, "/") {
		path = filepath.Join(tb.dir, path)
	}
	c := &turner{Cmd: exec.Command(path, command[1:]...), t: tb.t, table: tb, name: strings.Join(command[1:], " ")}
	c.lines, c.said = make(chan string, 100), &lockedBuffer{}
	c.Env = append(os.Environ(), "LD_LIBRARY_PATH="+tb.b.front, "GPUMEM_LIBCUDA="+filepath.Join(tb.b.driver, "libcuda.so.1"),
		"GPUMEM_DEVICE="+tb.device, "GPUMEM_REPORT=0", "GPUMEM_LEDGER="+tb.path, "GPUMEM_SIM_CONTENTS=1GiB")
	c.Env = append(append(c.Env, tb.environment...), strings.Fields(environment)...)
	c.Stderr = c.said
	var err error
	c.in, err = c.StdinPipe()
	must(tb.t, err)
	out, err := c.StdoutPipe()
	must(tb.t, err)
	must(tb.t, c.Start())
	tb.t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.ended()
	})
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			c.lines <- lines.Text()
		}
		close(c.lines)
	}()
	return c
}

// tell writes a line, which is to be answered.
func (c *turner) tell(line string) {
	_, _ = io.WriteString(c.in, line+"\n") // one that has ended has no answer
}

const late = 2 * time.Minute // for what hangs only

// answer waits for a line, and returns what is wrong with it.
func (c *turner) answer() error {
	select {
	case line := <-c.lines:
		if !strings.HasPrefix(line, "ok ") {
			return fmt.Errorf("%s: %q; said %q", c.name, line, c.said)
		}
		return nil
	case <-time.After(late):
		return fmt.Errorf("%s: no answer within %v; said %q; turns %+v", c.name, late, c.said, c.table.Turns())
	}
}

func (c *turner) mustAnswer() {
	c.t.Helper()
	must(c.t, c.answer())
}

// ended waits for the program's end, and all that it says.
func (c *turner) ended() error {
	hung := time.AfterFunc(late, func() { _ = c.Process.Kill() })
	defer hung.Stop()
	for range c.lines {
	}
	return c.Wait()
}

// end has the program end by itself, as it has found nothing wrong.
func (c *turner) end() {
	c.t.Helper()
	_ = c.in.Close()
	if err := c.ended(); err != nil || c.said.String() != "" {
		c.t.Errorf("%s: %v; said %q", c.name, err, c.said)
	}
}

// entry is the program's in the ledger.
func (c *turner) entry() (e ledger.Entry, ok bool) {
	for _, e := range c.table.Turns() {
		if e.PID == c.Process.Pid {
			return e, true
		}
	}
	return e, false
}

// until waits for what the ledger shows of the program.
func (c *turner) until(what string, ok func(e ledger.Entry) bool) ledger.Entry {
	c.t.Helper()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		e, there := c.entry()
		if there && ok(e) {
			return e
		}
		if time.Since(begin) > late {
			c.t.Fatalf("%s is not %s after %v; %v %+v; said %q", c.name, what, late, there, e, c.said)
		}
	}
}

func (c *turner) ask(what ledger.Ask) {
	c.t.Helper()
	e, ok := c.entry()
	if !ok {
		c.t.Fatalf("%s is not in the ledger", c.name)
	}
	must(c.t, c.table.Ask(e, what))
}

func isIn(e ledger.Entry) bool   { return e.State == ledger.In }
func isAway(e ledger.Entry) bool { return e.State == ledger.Away }

// swap has the memory of a program leave and return, and the program check its blocks once: before it
// leaves, with a thread at the gate, or after it has returned. It returns what the program finds wrong.
func (c *turner) swap(r *rand.Rand) error {
	c.t.Helper()
	when := r.IntN(3)
	tellIf := func(now int) {
		if when == now {
			c.tell("")
		}
	}
	tellIf(0)
	c.ask(ledger.Pause)
	c.until("away", isAway)
	tellIf(1)
	c.ask(ledger.Resume)
	c.until("in", isIn)
	tellIf(2)
	if err := c.answer(); err != nil {
		return err
	}
	c.tell("")
	return c.answer()
}

const lendNever = "GPUMEM_LEND=3600000000000" // an hour: only what is asked by hand

// contentsPrograms are the two programs, with their first words.
func contentsPrograms(t *testing.T) map[string][]string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil || exec.Command(python, "-c", "import ctypes").Run() != nil {
		t.Log("SKIPPED: Python: no python3 with ctypes")
		return map[string][]string{"C": {"turns", "contents"}}
	}
	return map[string][]string{"C": {"turns", "contents"}, "Python": {python, "testdata/contents.py"}}
}

// TestContentsAfterEachReturn: a program has all that it wrote whenever its memory has left and
// returned, in blocks of all sizes that are allocated and freed between.
func TestContentsAfterEachReturn(t *testing.T) {
	for name, words := range contentsPrograms(t) {
		policies := []string{"elastic", "vmm", "platform"}
		if name != "C" || testing.Short() {
			policies = policies[:1]
		}
		for _, policy := range policies {
			t.Run(name+" "+policy, func(t *testing.T) {
				tb := newTable(t, 512*mib, policyOf(t, policy))
				c := tb.start(lendNever, append(slices.Clone(words), "7", "24")...)
				c.mustAnswer()
				r := rand.New(rand.NewPCG(1, 2))
				for range *returns {
					must(t, c.swap(r))
				}
				if e, _ := c.entry(); e.Swaps != uint64(*returns) {
					t.Errorf("%d ways out, want %d", e.Swaps, *returns)
				}
				c.end()
			})
		}
	}
}

// TestContentsFindsAPlantedFault: a page that is lost on the way back, and two that are swapped, are found by
// each program of TestContentsAfterEachReturn; without a fault the driver of this test has none.
func TestContentsFindsAPlantedFault(t *testing.T) {
	for name, words := range contentsPrograms(t) {
		for plant, wrong := range map[string]bool{"": false, "lost": true, "swapped": true} {
			t.Run(name+" "+plant, func(t *testing.T) {
				tb := newTable(t, 512*mib)
				environment := lendNever + " PLANT=" + plant + " GPUMEM_LIBCUDA=" + filepath.Join(tb.dir, "planted.so")
				c := tb.start(environment, append(slices.Clone(words), "7", "24")...)
				c.mustAnswer()
				err := c.swap(rand.New(rand.NewPCG(1, 2)))
				if found := err != nil && strings.Contains(err.Error(), "block "); found != wrong || !found && err != nil {
					t.Errorf("%v; want a fault found: %t", err, wrong)
				}
			})
		}
	}
}

// TestContentsByTurns: programs whose memory exceeds the lease run by turns, and each has what it wrote.
func TestContentsByTurns(t *testing.T) {
	tb := newTable(t, 40*mib)
	var all []*turner
	for _, words := range contentsPrograms(t) {
		all = append(all, tb.start("GPUMEM_TURNS=50000000", append(slices.Clone(words), fmt.Sprint(len(all)+1), "16")...))
	}
	all = append(all, tb.start("GPUMEM_TURNS=50000000", "turns", "contents", "9", "16"))
	swaps := make([]atomic.Uint64, len(all))
	isDone := func() bool { // together: one that goes on alone has no reason to leave
		sum := uint64(0)
		for i := range swaps {
			sum += swaps[i].Load()
		}
		return sum >= uint64(*returns)
	}
	var group sync.WaitGroup
	for i, c := range all {
		group.Go(func() {
			err := c.answer()
			for err == nil && !isDone() {
				c.tell("")
				err = c.answer()
				if e, ok := c.entry(); ok {
					swaps[i].Store(e.Swaps)
				}
			}
			if err != nil {
				t.Error(err)
				swaps[i].Store(uint64(*returns)) // the others need not go on
			}
			_ = c.in.Close() // or the others wait for its turn to end
		})
	}
	group.Wait()
	for _, c := range all {
		c.end()
	}
}

// TestWorkThatDoesNotEnd: a program whose work waits for a thread at the gate, or for nothing that comes, is
// not made to leave for longer than the deadline: it goes on, its record says why it stays, and who waits
// for its memory says so. When the work has ended both have what they wrote.
func TestWorkThatDoesNotEnd(t *testing.T) {
	for mode, reason := range map[string]ledger.Reason{
		"host-function": ledger.NotDrained, "kernel": ledger.NotDrained, "value": ledger.NotDrained,
		"capture": ledger.Capturing,
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel() // most of it is a wait for the next try
			tb := newTable(t, 100*mib, "GPUMEM_SIM_KERNEL=1us")
			c := tb.start("GPUMEM_TURNS=20000000", "turns", mode, "60")
			c.mustAnswer()
			other := tb.start("GPUMEM_TURNS=20000000", "turns", "idle", "60")
			if mode == "host-function" { // it is told while its thread is at the gate
				c.until("leaving", func(e ledger.Entry) bool { return e.State == ledger.Leaving })
				c.tell("go")
			}
			e := c.until("refusing", func(e ledger.Entry) bool { return e.Reason != ledger.NoReason })
			if e.Reason != reason || e.State != ledger.In {
				t.Errorf("%v, because %v; want in, because %v", e.State, e.Reason, reason)
			}
			waits := "a request of 60 MiB waits: another process holds "
			for begin := time.Now(); !strings.Contains(other.said.String(), waits); time.Sleep(time.Millisecond) {
				if time.Since(begin) > late {
					t.Fatalf("said %q, want that it waits", other.said)
				}
			}
			if mode != "host-function" {
				c.tell("go")
			}
			c.mustAnswer()
			if said := c.said.String(); !strings.Contains(said, "its memory stays on the GPU: ") || strings.Count(said, "\n") != 1 {
				t.Errorf("said %q", said)
			}
			other.mustAnswer() // it has what it waits for
			c.tell("")         // and so has the first one
			other.tell("")
			c.mustAnswer()
			other.mustAnswer()
			for _, p := range []*turner{c, other} {
				must(t, p.in.Close())
				must(t, p.ended())
			}
		})
	}
}

// TestStoppedByTurns: a program whose memory is away waits while the one that holds the GPU is stopped, also for
// longer than others wait for a sign of life, and both go on when that goes on.
func TestStoppedByTurns(t *testing.T) {
	tb := newTable(t, 24*mib)
	first := tb.start("GPUMEM_TURNS=20000000", "turns", "contents", "1", "16")
	first.mustAnswer()
	second := tb.start("GPUMEM_TURNS=20000000", "turns", "contents", "2", "16")
	second.mustAnswer()
	first.until("away", isAway)
	must(t, second.Process.Signal(syscall.SIGSTOP))
	first.tell("")
	second.until("silent", func(e ledger.Entry) bool { return ledger.Now().Sub(e.Seen) > ledger.Silence })
	first.until("waiting", func(e ledger.Entry) bool { return e.State == ledger.Waiting && e.Ticket != 0 })
	must(t, second.Process.Signal(syscall.SIGCONT))
	first.mustAnswer()
	second.tell("")
	second.mustAnswer()
	_ = first.in.Close()
	const says = "gpumem: GPU 0: its memory cannot come back: others cannot make room for it\n" // it may, as long as the other is stopped
	if err := first.ended(); err != nil || strings.Replace(first.said.String(), says, "", 1) != "" {
		t.Errorf("%v; said %q", err, first.said)
	}
	second.end()
}

// TestKilledByTurns kills and stops programs whose memory leaves and returns all the time, mostly while it is
// on its way.
// The others lose no byte, and go on; the books are right when the process is gone: the ledger and the GPU
// have, of each process that lives, the same bytes, and nothing of others. What left lies in memory of
// the host without a name, and so nothing is left of it.
func TestKilledByTurns(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	tb := newTable(t, 40*mib)
	temporary := t.TempDir()
	started := 0
	start := func() *feeder {
		started++
		return tb.start("GPUMEM_TURNS=1000000 TMPDIR="+temporary, "turns", "contents", fmt.Sprint(started), "16").feed()
	}
	all := []*feeder{start(), start(), start()}
	latest := time.Duration(0)
	kills, stops := 0, 0
	for kills < *turnKills && !t.Failed() {
		victim := all[r.IntN(len(all))]
		tb.moment(r, all, victim)
		if r.IntN(4) == 0 { // stopped, not killed
			stops++
			tb.stop(victim, time.Duration(r.IntN(1000))*time.Millisecond)
			continue
		}
		victim.kill()
		kills++
		latest = max(latest, tb.balance(fmt.Sprintf("kill %d, of process %d", kills, victim.Process.Pid), all))
		all[slices.Index(all, victim)] = start()
	}
	for _, f := range all {
		f.checkMappings(temporary)
		f.finish()
	}
	tb.balance("end", nil)
	left, err := os.ReadDir(temporary)
	if err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
	t.Logf("%d kills and %d stops; the books were right %v after a kill at most", kills, stops, latest)
}

// feeder has a program check its blocks again and again.
type feeder struct {
	*turner
	stop, fed chan struct{}
	killed    atomic.Bool
}

func (c *turner) feed() *feeder {
	f := &feeder{turner: c, stop: make(chan struct{}), fed: make(chan struct{})}
	go func() {
		defer close(f.fed)
		for {
			if err := c.answer(); err != nil {
				if !f.killed.Load() {
					c.t.Errorf("%v", err)
				}
				return
			}
			select {
			case <-f.stop:
				return
			default:
				c.tell("")
			}
		}
	}()
	return f
}

func (f *feeder) kill() {
	f.killed.Store(true)
	_ = f.Process.Kill()
	<-f.fed
	_ = f.ended()
}

// finish has the program end by itself.
func (f *feeder) finish() {
	f.t.Helper()
	close(f.stop)
	<-f.fed
	if !f.t.Failed() {
		f.end()
	}
}

// moment waits for a time at random: mostly for one at which the victim's memory is moving.
func (tb *table) moment(r *rand.Rand, all []*feeder, victim *feeder) {
	tb.t.Helper()
	for _, f := range all { // those that have just begun
		f.until("at work", func(e ledger.Entry) bool { return e.Held+e.OnHost > 0 })
	}
	if want := []ledger.State{ledger.Leaving, ledger.Returning, ledger.Waiting, ledger.In}[r.IntN(4)]; want != ledger.In {
		victim.until(want.String(), func(e ledger.Entry) bool { return e.State == want })
	}
	time.Sleep(time.Duration(r.IntN(20_000)) * time.Microsecond)
}

// stop stops a program for a while.
func (tb *table) stop(victim *feeder, d time.Duration) {
	tb.t.Helper()
	must(tb.t, victim.Process.Signal(syscall.SIGSTOP))
	time.Sleep(d)
	must(tb.t, victim.Process.Signal(syscall.SIGCONT))
}

// balance waits until the ledger and the GPU have the same, of those that live, and returns how long that took.
// As these go on all the time, it is so at some moment; what is wrong stays wrong.
func (tb *table) balance(when string, living []*feeder) time.Duration {
	tb.t.Helper()
	spec, err := open.Parse(tb.device)
	must(tb.t, err)
	for begin := time.Now(); ; {
		counted, granted := map[int]uint64{}, map[int]uint64{}
		for _, m := range tb.Members() {
			counted[m.PID] = m.Sum()
		}
		list, err := spec.Status()
		must(tb.t, err)
		for _, p := range list[0].Processes {
			granted[p.PID] = p.Used
		}
		isDead := func(pid int, bytes uint64) bool {
			return !slices.ContainsFunc(living, func(f *feeder) bool { return f.Process.Pid == pid && !f.killed.Load() })
		}
		gone := len(counted) + len(granted)
		maps.DeleteFunc(counted, isDead)
		maps.DeleteFunc(granted, isDead)
		gone -= len(counted) + len(granted)
		maps.DeleteFunc(counted, func(_ int, bytes uint64) bool { return bytes == 0 })
		maps.DeleteFunc(granted, func(_ int, bytes uint64) bool { return bytes == 0 })
		took := time.Since(begin)
		if gone == 0 && maps.Equal(counted, granted) {
			return took
		}
		if took > late {
			tb.t.Fatalf("%s: after %v the ledger has %v, and the GPU %v, with %d that have ended", when, took, counted, granted, gone)
		}
	}
}

// checkMappings finds fault with files that the process has mapped, or open, where what left could lie.
func (f *feeder) checkMappings(temporary string) {
	f.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", f.Process.Pid))
	must(f.t, err)
	for _, of := range []string{temporary, "/dev/shm", "memfd:"} {
		if bytes.Contains(text, []byte(of)) {
			f.t.Errorf("%s has mapped files of %s", f.name, of)
		}
	}
}
