// Several copies of a program at once: their parent.
//
// A signal that reaches the parent was sent to it alone (by docker stop, or by a
// supervisor that knows one number) and is meant for the copies, or it was sent to
// all: to the process group by a terminal or timeout(1), to the whole job by Slurm or
// systemd. Then the copies have it already. The kernel does not show which it was. So
// there is a witness, a process in the same group and control group that only reports
// the signals that it gets. A signal that the witness gets too was sent to all; the
// others are passed on.

package launch

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"gpumem/node/share"
)

// grace is how long the witness may take. A signal that was sent to the parent alone
// is passed on this much later.
const grace = 100 * time.Millisecond

// patience is how long the witness may take to start; after that, as of one that was
// stopped, copies do without it. Tests are less patient.
var patience = 5 * time.Second

// meant are the signals that may be meant for the copies: those that a process can
// catch, except those that its own actions cause and those that stop it.
func meant() []syscall.Signal {
	own := []syscall.Signal{
		syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGURG, syscall.SIGPIPE, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU,
		syscall.SIGPROF, syscall.SIGTRAP, syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGILL,
	}
	var list []syscall.Signal
	for n := syscall.Signal(1); n <= 64; n++ {
		isLibraries := n >= 32 && n <= 34 // the C library's, and Go's runtime leaves them alone
		if !isLibraries && !slices.Contains(own, n) {
			list = append(list, n)
		}
	}
	return list
}

// catchMeant has a channel get them.
func catchMeant(caught chan<- os.Signal) {
	for _, s := range meant() {
		signal.Notify(caught, s)
	}
}

// witnessArg is the one argument of the keeper's command that makes it the witness.
const witnessArg = "witness"

// reportSignals reports the signals that this process gets as bytes on standard output,
// after a first byte 0, until standard input ends.
func reportSignals() {
	caught := make(chan os.Signal, 64)
	catchMeant(caught)
	_, _ = os.Stdout.Write([]byte{0})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for sig := range caught {
		_, _ = os.Stdout.Write([]byte{byte(sig.(syscall.Signal))})
	}
}

// A witness is the process that runs reportSignals, as its parent has it.
type witness struct {
	p    *os.Process
	in   *os.File // its standard input
	seen chan sighting
}

// A sighting is one signal that the witness got.
type sighting struct {
	sig  os.Signal
	when time.Time
}

// startWitness starts the witness and waits until it catches signals, at most for
// patience. Without a witness every signal counts as sent to the parent alone.
func startWitness(command []string) (*witness, error) {
	if len(command) == 0 {
		return nil, nil
	}
	theirs, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	out, reports, err := os.Pipe()
	if err != nil {
		in.Close()
		return nil, err
	}
	defer reports.Close()
	w := &witness{in: in, seen: make(chan sighting, 64)}
	args := append(command[:len(command):len(command)], witnessArg)
	if w.p, err = os.StartProcess(command[0], args, &os.ProcAttr{Files: []*os.File{theirs, reports, nil}}); err != nil {
		in.Close()
		out.Close()
		return nil, err
	}
	ready := make(chan struct{})
	go func() {
		defer out.Close()
		defer close(w.seen)
		var b [1]byte
		for first := true; ; first = false {
			if n, _ := out.Read(b[:]); n == 0 {
				if first {
					close(ready)
				}
				return
			}
			if first {
				close(ready)
				continue
			}
			w.seen <- sighting{syscall.Signal(b[0]), time.Now()}
		}
	}()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-ready:
	case <-t.C:
		_ = w.p.Kill() // the copies run without it
	}
	return w, nil
}

// saw reports whether the witness got a signal at about the time that this process
// got it.
func (w *witness) saw(sig os.Signal, when time.Time) bool {
	if w == nil {
		return false
	}
	t := time.NewTimer(grace)
	defer t.Stop()
	for {
		select {
		case s, ok := <-w.seen:
			if !ok {
				return false
			}
			if s.sig == sig && when.Sub(s.when) < grace {
				return true
			}
		case <-t.C:
			return false
		}
	}
}

// stop ends the witness, also one that is stopped.
func (w *witness) stop() {
	if w != nil {
		w.in.Close()
		_ = w.p.Kill()
		_, _ = w.p.Wait()
	}
}

// copies runs the copies of a plan, waits for them and returns the status of each: the
// exit status, or 128 and the number of the signal that ended it. What they leave behind
// has their leases, and becomes no zombie of this process.
func (p *Plan) copies(ctx context.Context, envs [][]string, leases [][]*share.Lease) (statuses []int, err error) {
	path, err := lookPath(p.Command[0])
	if err != nil {
		return nil, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	w, err := startWitness(p.witness)
	if err != nil {
		return nil, err
	}
	defer w.stop()
	caught := make(chan os.Signal, 64)
	catchMeant(caught) // before there is a copy: none is lost
	defer signal.Stop(caught)
	if err := p.release(); err != nil {
		return nil, err
	}

	if p.gpu != nil { // the program ends with the thread that started it
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	r := &copiesRun{p: p, path: path, null: null, statuses: make([]int, len(envs)), waitedFor: map[int]chan struct{}{}}
	for c, env := range envs {
		if err := r.startCopy(c, env, leases[c]); err != nil {
			closeAll(leases[c:]) // the copies that run keep theirs
			r.signal(syscall.SIGTERM)
			r.all.Wait()
			return r.statuses, notStarted(p.Command[0], err)
		}
	}
	if adoptsOrphans() {
		go reapOrphans(r.waitedFor)
	}
	r.passSignals(ctx, caught, w)
	return r.statuses, nil
}

// copiesRun are the copies of a plan that run.
type copiesRun struct {
	p         *Plan
	path      string   // of the program
	null      *os.File // standard input of all but the first
	statuses  []int    // by copy
	running   []*os.Process
	waitedFor map[int]chan struct{} // closed when a copy was waited for; by its process
	all       sync.WaitGroup        // of the copies
}

// startCopy starts a copy in its leases, which end with it and what it leaves behind.
func (r *copiesRun) startCopy(c int, env []string, leases []*share.Lease) error {
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	if c > 0 { // one of them has the keyboard
		files[0] = r.null
	}
	held := holdings(leases)
	family := r.p.newFamily(held)
	attr, inherits := &os.ProcAttr{Env: env, Files: files}, held
	if r.p.gpu != nil {
		attr.Sys = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // as if this process had become the program
		inherits = append(inherits, holding{file: r.p.gpu.Lock()})
	}
	undo := family.put()
	process, err := startWith(r.path, r.p.Command, attr, inherits)
	undo()
	if err != nil {
		return err
	}
	r.running = append(r.running, process)
	for _, l := range leases {
		_ = l.Tell(process.Pid) // for lists; it may have ended already
	}
	r.p.startKeeper(env, process.Pid, family, held)
	over := make(chan struct{})
	r.waitedFor[process.Pid] = over
	r.all.Go(func() {
		r.statuses[c] = statusOf(process)
		close(over)
		closeAll([][]*share.Lease{leases}) // the keeper has them, until the family has ended
	})
	return nil
}

// signal sends a signal to all copies, of which some may have ended.
func (r *copiesRun) signal(sig os.Signal) {
	for _, process := range r.running {
		_ = process.Signal(sig)
	}
}

// passSignals waits for the end of all copies, passes on the signals that were meant for this
// process alone, and asks the copies to end once ctx is done.
func (r *copiesRun) passSignals(ctx context.Context, caught <-chan os.Signal, w *witness) {
	ended := make(chan struct{})
	go func() { r.all.Wait(); close(ended) }()
	over := ctx.Done()
	for {
		select {
		case <-ended:
			return
		case <-over:
			over = nil // asked once
			r.signal(syscall.SIGTERM)
		case sig := <-caught:
			if !w.saw(sig, time.Now()) {
				r.signal(sig)
			}
		}
	}
}

// reapOrphans takes the status of every child that ends, but of those that somebody else
// waits for, whose channel is closed when that is done. It returns when no child is left.
func reapOrphans(waitedFor map[int]chan struct{}) {
	for {
		switch pid, err := endedChild(); {
		case err == syscall.EINTR:
		case err != nil:
			return
		case waitedFor[pid] != nil:
			<-waitedFor[pid]
			delete(waitedFor, pid) // an orphan may come to have the number
		default:
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
	}
}

// endedChild waits until a child has ended, and leaves its status where it is.
func endedChild() (pid int, err error) {
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		return 0, err
	}
	// Behind three words, and a hole where pointers have two, is the number.
	const at = 8 + unsafe.Sizeof(uintptr(0))
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), at))), nil
}

// startWith starts a program that inherits lock files, those of its leases.
func startWith(path string, argv []string, attr *os.ProcAttr, leases []holding) (*os.Process, error) {
	// Copies are started one after the other, so that none has another's lease.
	for _, l := range leases {
		fd, err := dupHigh(l.file)
		if err != nil {
			return nil, err
		}
		defer syscall.Close(fd)
	}
	p, err := os.StartProcess(path, argv, attr)
	if errors.Is(err, syscall.ENOEXEC) {
		path, argv = byShell(path, argv)
		p, err = os.StartProcess(path, argv, attr)
	}
	return p, err
}

// statusOf waits for a process and returns its status as a shell has it.
func statusOf(p *os.Process) int {
	state, err := p.Wait()
	if err != nil {
		return 1
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return state.ExitCode()
}
