//go:build linux

package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gpumem/internal/test/gpucheck/report"
)

// check is one thing to find out.
type check struct {
	name  string
	claim string   // the sentence that it settles; docs/gpu.md has it in its table
	doc   string   // where the sentence stands
	needs []string // "gpu" for a real one, or packages of Python: "jax", "torch"
	limit time.Duration
	run   func(*call) error
}

// A check's process tells what it found as it finds it, an event a line, so that what was
// measured before a hang or a crash is kept.
type event struct {
	Figure *report.Figure `json:"figure,omitempty"`
	Fault  string         `json:"fault,omitempty"`
	Note   string         `json:"note,omitempty"`
	Failed string         `json:"failed,omitempty"` // why it, or a part of it, could not run
	Skip   string         `json:"skip,omitempty"`
	Done   bool           `json:"done,omitempty"`
}

// eventsFD is the descriptor that a check's process writes events to.
const eventsFD = 3

// least is the shortest time that is worth to begin a check in.
const least = 3 * time.Second

// one runs a check in a process of its own, with at most left. It ends early when ctx does.
func (b *bundle) one(ctx context.Context, c check, left time.Duration) report.Result {
	r := report.Result{Name: c.name, Claim: c.claim, Doc: c.doc, Limit: c.limit.Seconds(), Repeat: b.repeat(c.name)}
	if why := b.lacks(c.needs); why != "" {
		r.Outcome, r.Why = report.Skipped, why
		return r
	}
	if ctx.Err() != nil {
		r.Outcome, r.Why = report.NotReached, context.Cause(ctx).Error()
		return r
	}
	if left < min(least, c.limit) {
		r.Outcome, r.Why = report.NotReached, "the time was up"
		return r
	}
	limit := min(c.limit, left)
	begun := time.Now()
	w := b.watch(ctx, c.name, limit)
	r.Seconds = time.Since(begun).Seconds()
	w.judge(&r, limit)
	r.Why = b.plain(r.Why)
	for _, lines := range [][]string{r.Faults, r.Notes} {
		for i, line := range lines {
			lines[i] = b.plain(line)
		}
	}
	r.Logs = b.logsOf(c.name)
	return r
}

// repeat is the command that runs a check again, alone.
func (b *bundle) repeat(name string) string {
	words := []string{"check", "--only", name, "--out", "again-" + name}
	if b.simulated {
		words = append(words, "--simulated")
	}
	if b.python != "" && b.python != defaultPython {
		words = append(words, "--python", b.python)
	}
	return strings.Join(words, " ")
}

// plain is a message as a line of a result, without the folders that may be gone when it is read.
func (b *bundle) plain(text string) string {
	return report.OneLine(strings.NewReplacer(b.logFolder()+"/", "", b.scratch+"/", "", b.root+"/", "").Replace(text))
}

// logsOf are the names of a check's logs, its own first and then in the order of their numbers.
func (b *bundle) logsOf(name string) (names []string) {
	entries, _ := os.ReadDir(b.logFolder())
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), name+".") {
			names = append(names, entry.Name())
		}
	}
	own := ownLog(name)
	slices.SortFunc(names, func(x, y string) int {
		if (x == own) != (y == own) {
			if x == own {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y))
	})
	return names
}

// ownLog is the log of what a check itself writes.
func ownLog(name string) string { return name + ".check.log" }

// watched is what became of a check's process.
type watched struct {
	events []event
	output string // beside the events
	err    error  // of starting it, of waiting for it, or why it was killed
	killed bool
	stuck  bool // it could not be killed
}

// judge fills in what a process of a check shows, which had limit.
func (w watched) judge(r *report.Result, limit time.Duration) {
	var failures []string
	done := false
	for _, e := range w.events {
		switch {
		case e.Figure != nil:
			r.Figures = append(r.Figures, *e.Figure)
		case e.Fault != "":
			r.Faults = append(r.Faults, e.Fault)
		case e.Note != "":
			r.Notes = append(r.Notes, e.Note)
		case e.Failed != "":
			failures = append(failures, "failed to run: "+e.Failed)
		case e.Skip != "":
			r.Why = e.Skip
		}
		done = done || e.Done
	}
	short := limit.Seconds() < r.Limit
	var signal signalError
	switch {
	case w.stuck:
		r.Outcome = report.Hung
		failures = append(failures, fmt.Sprintf("hung, and could not be killed, %.0f s after its start%s", r.Seconds, lastLine(w.output)))
	case errors.As(w.err, &signal):
		r.Outcome = report.NotReached
		failures = append(failures, w.err.Error())
	case w.killed && short:
		r.Outcome = report.NotReached
		failures = append(failures, fmt.Sprintf("the time was up after %.0f of its %.0f seconds", limit.Seconds(), r.Limit))
	case w.killed:
		r.Outcome = report.Hung
		failures = append(failures, fmt.Sprintf("killed after %.0f s", limit.Seconds()))
	case w.err != nil:
		r.Outcome = report.Crashed
		failures = append(failures, w.err.Error()+lastLine(w.output))
	case !done:
		r.Outcome = report.Crashed
		failures = append(failures, "it ended without an answer"+lastLine(w.output))
	case len(failures) > 0:
		r.Outcome = report.Crashed
	case len(r.Faults) > 0:
		r.Outcome = report.Wrong
	case r.Why != "":
		r.Outcome = report.Skipped
	default:
		r.Outcome = report.Held
	}
	if len(failures) > 0 {
		r.Why = strings.Join(failures, "; ")
	}
	// What is wrong is wrong, whatever came after it.
	if len(r.Faults) > 0 && (r.Outcome == report.NotReached || r.Outcome == report.Crashed && done) {
		r.Outcome = report.Wrong
	}
}

// watch runs this program with --one. At the end, whatever it was, no process that it started is
// left but those that the kernel does not let go.
func (b *bundle) watch(ctx context.Context, name string, limit time.Duration) (w watched) {
	// Processes that outlive their parents become this one's children, so that they can be
	// found and killed.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return watched{err: err}
	}
	read, write, err := os.Pipe()
	if err != nil {
		return watched{err: err}
	}
	self, err := os.Executable()
	if err != nil {
		return watched{err: err}
	}
	log, err := openLog(filepath.Join(b.logFolder(), ownLog(name)))
	if err != nil {
		return watched{err: err}
	}
	out := &capture{log: log}
	cmd := exec.Command(self, "--one", name)
	cmd.Env = b.environ()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{write}
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second // what it started may hold its output open
	err = start(cmd)
	write.Close()
	if err != nil {
		read.Close()
		log.finish(fmt.Sprintf("--- not started: %v\n", err))
		return watched{err: err}
	}
	events := readEvents(read)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	w.err, w.stuck = await(ctx, cmd, true)
	w.killed = ctx.Err() != nil && w.err != nil && errors.Is(w.err, context.Cause(ctx))
	w.stuck = killOrphans() || w.stuck
	w.events, w.output = events(), out.String()
	words := "ended"
	if w.err != nil {
		words = w.err.Error()
	}
	if out.String() == "" && !w.stuck && w.err == nil {
		_ = os.Remove(filepath.Join(b.logFolder(), ownLog(name)))
	}
	log.finish(fmt.Sprintf("\n--- %s\n", words))
	return w
}

// grace is how long a process that was killed may take to end: the kernel does not let go one that
// waits in a driver.
var grace = 5 * time.Second

// kill sends a signal.
var kill = unix.Kill

// stuck are the processes that did not end when they were killed, by pid. Nobody waits for them again.
var stuck sync.Map

// await waits for a process that leads a group, and ends the group then. When ctx is done it kills the
// process, and err is the cause; quits, it is first asked to write where it is. It is left if it
// does not end then.
func await(ctx context.Context, cmd *exec.Cmd, quits bool) (err error, left bool) {
	pid := cmd.Process.Pid
	waited := make(chan error, 1)
	go func() { waited <- cmd.Wait() }()
	select {
	case err = <-waited:
		_ = kill(-pid, unix.SIGKILL)
		if errors.Is(err, exec.ErrWaitDelay) {
			err = nil // the process itself has ended well
		}
		return err, false
	case <-ctx.Done():
	}
	err = context.Cause(ctx)
	if quits && errors.Is(err, context.DeadlineExceeded) {
		_ = kill(pid, unix.SIGQUIT)
		select {
		case <-waited:
			_ = kill(-pid, unix.SIGKILL)
			return err, false
		case <-time.After(2 * lastWordsIn):
		}
	}
	_ = kill(-pid, unix.SIGKILL)
	select {
	case <-waited:
		return err, false
	case <-time.After(grace):
		stuck.Store(pid, true)
		return err, true
	}
}

// readEvents reads events in the background. The function that it returns gives those until the end, which
// is near; it does not wait for ever for the end. A line that is cut short, by the writer's death, is
// the last and is dropped.
func readEvents(r io.ReadCloser) func() []event {
	var mu sync.Mutex
	var events []event
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer r.Close()
		lines := bufio.NewReader(r)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			var e event
			if json.Unmarshal(line, &e) == nil {
				mu.Lock()
				events = append(events, e)
				mu.Unlock()
			}
		}
	}()
	return func() []event {
		select {
		case <-ended:
		case <-time.After(time.Second):
		}
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(events)
	}
}

// killOrphans kills this process's children until there are none. It reports whether some could not
// be killed; those are stuck.
func killOrphans() (left bool) {
	for late := time.Now().Add(grace); ; time.Sleep(time.Millisecond) {
		// One after the other: the children of a killed one come here next.
		pids := children()
		if len(pids) == 0 {
			return false
		}
		for _, pid := range pids {
			_ = kill(pid, unix.SIGKILL)
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
		if time.Now().After(late) {
			for _, pid := range pids {
				stuck.Store(pid, true)
			}
			return true
		}
	}
}

// children are this process's children but those that are stuck.
func children() (pids []int) {
	tasks, _ := filepath.Glob("/proc/self/task/*/children")
	for _, path := range tasks {
		text, _ := os.ReadFile(path)
		for _, word := range strings.Fields(string(text)) {
			var pid int
			if _, err := fmt.Sscan(word, &pid); err != nil {
				continue
			}
			if _, known := stuck.Load(pid); !known {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// child is the process of one check.
func child(name string) error {
	c, ok := find(name)
	if !ok {
		return fmt.Errorf("--one %q: no check has that name", name)
	}
	events := os.NewFile(eventsFD, "events")
	unix.CloseOnExec(eventsFD)
	// A program that is aborted, to say where it is, is to leave no core file as large as its memory.
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	call, err := newCall(c, events)
	if err != nil {
		return err
	}
	call.quitOnSignal()
	var skip skipped
	switch err := c.run(call); {
	case errors.As(err, &skip):
		call.tell(event{Skip: string(skip)})
	case err != nil:
		call.failed(err)
	}
	call.tell(event{Done: true})
	return nil
}
