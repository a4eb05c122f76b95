//go:build linux

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Programs that a check starts, and their logs. What a program writes is in its log at once, so that
// it can be read however the program, the check, or the machine ends.

// logLimit is the most of a program's output that its log, and that memory, has, in bytes.
const logLimit = 16 << 20

// logFile is what a process writes, at most logLimit. Writing never fails: a full disk ends no program.
type logFile struct {
	mu   sync.Mutex
	f    *os.File
	left int
	cut  bool
}

func openLog(path string) (*logFile, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &logFile{f: f, left: logLimit}, nil
}

func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := p[:min(len(p), l.left)]
	_, _ = l.f.Write(kept)
	l.left -= len(kept)
	if len(kept) < len(p) && !l.cut {
		l.cut = true
		_, _ = fmt.Fprintf(l.f, "\n--- cut here: the program wrote more than %d MiB\n", logLimit>>20)
	}
	return len(p), nil
}

// finish writes the last words, beyond the limit, and closes the file.
func (l *logFile) finish(words string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.f.WriteString(words)
	_ = l.f.Close()
}

// capture keeps a stream of a process in memory, at most logLimit, and copies it into a log. Lines
// that begin with answers go to lines, too, unless that is nil. All methods may be called at any time.
type capture struct {
	log     *logFile // nil: none
	answers string
	lines   chan string

	mu   sync.Mutex
	kept []byte
	line []byte // that has not ended
}

func (o *capture) Write(p []byte) (int, error) {
	if o.log != nil {
		_, _ = o.log.Write(p)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept = append(o.kept, p[:min(len(p), logLimit-len(o.kept))]...)
	for rest := p; o.lines != nil && len(rest) > 0; {
		part, after, ended := bytes.Cut(rest, []byte("\n"))
		rest = after
		o.line = append(o.line, part[:min(len(part), logLimit-len(o.line))]...)
		if !ended {
			break
		}
		if bytes.HasPrefix(o.line, []byte(o.answers)) {
			select {
			case o.lines <- string(o.line):
			default: // nobody asked for so many
			}
		}
		o.line = o.line[:0]
	}
	return len(p), nil
}

func (o *capture) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.kept)
}

// process is a program to run.
type process struct {
	args    []string
	env     []string      // beside the check's own
	limit   time.Duration // of exec; 0: a minute
	talks   bool          // it has an input, and lines of its output are read as they come:
	answers string        // those that begin so
}

// shown is the command line for people.
func (p process) shown() string { return strings.Join(p.args, " ") }

// program is a process that was started.
type program struct {
	process
	cmd            *exec.Cmd
	in             io.WriteCloser // nil unless it talks
	lines          chan string    // its answers; closed at its end
	stdout, stderr *capture
	log            *logFile
	begun          time.Time
	took           time.Duration // set at its end
	ended          chan struct{} // closed at its end, after cmd.Wait
	aborted        sync.Once
	finished       bool // by finish
}

// ended is what a program did.
type ended struct {
	stdout, stderr string
	status         int // -1: killed, or never started
	seconds        float64
}

// reason is the last line of what a program wrote, as the end of a sentence: of its errors, or, without
// any, of its output.
func (e ended) reason() string {
	if strings.TrimSpace(e.stderr) != "" {
		return lastLine(e.stderr)
	}
	return lastLine(e.stdout)
}

// unanswered is the error of a program that could not be started, or was too late. It shows nothing of
// the claim of a check.
type unanswered struct{ error }

func (u unanswered) Unwrap() error { return u.error }

// begin starts a program. Its log has what it writes as it writes it.
func (c *call) begin(p process) (*program, error) {
	log, err := openLog(filepath.Join(c.logFolder(), fmt.Sprintf("%s.%d.log", c.name, c.logs.Add(1))))
	if err != nil {
		return nil, unanswered{err}
	}
	_, _ = fmt.Fprintf(log, "$ %s\n", strings.Join(append(append([]string{}, p.env...), p.args...), " "))
	r := &program{process: p, log: log, stdout: &capture{log: log}, stderr: &capture{log: log}, ended: make(chan struct{})}
	r.cmd = exec.Command(p.args[0], p.args[1:]...)
	r.cmd.Env, r.cmd.Dir = append(os.Environ(), p.env...), c.scratch
	r.cmd.Stdout, r.cmd.Stderr = r.stdout, r.stderr
	r.cmd.WaitDelay = 2 * time.Second // gpumem run leaves a process that keeps the lease, until it is over
	if p.talks {
		r.lines = make(chan string, 100)
		r.stdout.answers, r.stdout.lines = p.answers, r.lines
		if r.in, err = r.cmd.StdinPipe(); err != nil {
			return nil, unanswered{err}
		}
	}
	r.begun = time.Now()
	if err := start(r.cmd); err != nil {
		log.finish(fmt.Sprintf("--- not started: %v\n", err))
		return nil, unanswered{err}
	}
	c.running.Store(r, nil)
	go func() {
		_ = r.cmd.Wait()
		r.took = time.Since(r.begun)
		if r.lines != nil {
			close(r.lines)
		}
		close(r.ended)
	}()
	return r, nil
}

// within waits for the program's end, and reports whether it came in time.
func (r *program) within(limit time.Duration) bool {
	select {
	case <-r.ended:
		return true
	case <-time.After(limit):
	}
	select {
	case <-r.ended: // just then
		return true
	default:
		return false
	}
}

// abort ends the program with a signal at which Python, as frameworkEnviron has it, and Go write
// where they are.
func (r *program) abort() { r.aborted.Do(func() { _ = r.cmd.Process.Signal(unix.SIGABRT) }) }

// kill ends the program, and waits until it has ended; not for ever, for the kernel may hold it.
func (r *program) kill() {
	r.abort()
	if !r.within(lastWordsIn) {
		_ = r.cmd.Process.Kill()
		r.within(grace)
	}
}

// lastWordsIn is how long a process may take to write where it is before it is killed.
var lastWordsIn = time.Second

// finish returns what a program did that has ended, or was killed, and ends its log.
func (c *call) finish(r *program) ended {
	c.running.Delete(r)
	e := ended{stdout: r.stdout.String(), stderr: r.stderr.String(), status: -1}
	words := "still there, it could not be killed"
	if r.within(0) {
		e.status, e.seconds = r.cmd.ProcessState.ExitCode(), r.took.Seconds()
		words = r.cmd.ProcessState.String()
	}
	if !r.finished {
		r.log.finish(fmt.Sprintf("\n--- %s, %.2f s\n", words, time.Since(r.begun).Seconds()))
	}
	r.finished = true
	return e
}

// exec runs a program to its end. err is unanswered; a status other than 0 is none.
func (c *call) exec(p process) (ended, error) {
	p.limit = c.atMost(cmp.Or(p.limit, time.Minute)).Round(time.Millisecond)
	r, err := c.begin(p)
	if err != nil {
		return ended{status: -1}, err
	}
	if !r.within(p.limit) {
		r.kill()
		err = unanswered{fmt.Errorf("%s: no end after %v", p.shown(), p.limit)}
	}
	return c.finish(r), err
}

// must is exec of a program whose status is to be 0.
func (c *call) must(p process) (ended, error) {
	e, err := c.exec(p)
	if err == nil && e.status != 0 {
		err = fmt.Errorf("%s: exit status %d%s", p.shown(), e.status, e.reason())
	}
	return e, err
}

// answer reads the next answer of a program that talks.
func (r *program) answer(limit time.Duration) (string, error) {
	select {
	case <-time.After(limit):
		return "", unanswered{fmt.Errorf("no answer after %v", limit)}
	case line, ok := <-r.lines:
		if !ok {
			<-r.ended
			e := ended{stdout: r.stdout.String(), stderr: r.stderr.String()}
			return "", fmt.Errorf("the program ended without an answer, with %v%s", r.cmd.ProcessState, e.reason())
		}
		return line, nil
	}
}

// starter is the thread that starts processes. They are killed when their parent dies, and for the
// kernel a process's parent is the thread that started it: this one never ends.
var starter = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// start starts a process that is killed when this one dies.
func start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &unix.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	started := make(chan error)
	starter() <- func() { started <- cmd.Start() }
	return <-started
}

// lastLine is the last line of a process's output, or the first of a panic, as the end of a sentence.
func lastLine(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	last := lines[len(lines)-1]
	for _, line := range lines {
		if strings.HasPrefix(line, "panic: ") {
			last = line
			break
		}
	}
	if last != "" {
		return ": " + last
	}
	return ""
}

// isUnanswered reports whether an error shows nothing of the claim.
func isUnanswered(err error) bool {
	var u unanswered
	return errors.As(err, &u)
}
