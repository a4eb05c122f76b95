//go:build linux

package main

import (
	"bufio"
	"bytes"
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
	Skip   string         `json:"skip,omitempty"`
	Done   bool           `json:"done,omitempty"`
}

// eventsFD is the descriptor that a check's process writes events to.
const eventsFD = 3

// least is the shortest time that is worth to begin a check in.
const least = 3 * time.Second

// one runs a check in a process of its own, with at most left.
func (b *bundle) one(c check, left time.Duration) report.Result {
	r := report.Result{Name: c.name, Claim: c.claim, Doc: c.doc, Limit: c.limit.Seconds()}
	if why := b.lacks(c.needs); why != "" {
		r.Outcome, r.Why = report.Skipped, why
		return r
	}
	if left < min(least, c.limit) {
		r.Outcome, r.Why = report.NotReached, "the time was up"
		return r
	}
	limit := min(c.limit, left)
	begun := time.Now()
	events, output, err := b.watch(c.name, limit)
	r.Seconds = time.Since(begun).Seconds()
	done := false
	for _, e := range events {
		switch {
		case e.Figure != nil:
			r.Figures = append(r.Figures, *e.Figure)
		case e.Fault != "":
			r.Faults = append(r.Faults, e.Fault)
		case e.Skip != "":
			r.Why = e.Skip
		}
		done = done || e.Done
	}
	logs, _ := filepath.Glob(filepath.Join(b.logFolder(), c.name+".*"))
	for _, path := range logs {
		r.Logs = append(r.Logs, filepath.Base(path))
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded) && limit < c.limit && len(r.Faults) == 0:
		r.Outcome, r.Why = report.NotReached, fmt.Sprintf("the time was up after %.0f of its %.0f seconds", limit.Seconds(), c.limit.Seconds())
	case errors.Is(err, context.DeadlineExceeded):
		r.Outcome, r.Why = report.Hung, fmt.Sprintf("killed after %.0f s%s", limit.Seconds(), lastLine(output))
	case err != nil || !done:
		r.Outcome, r.Why = report.Crashed, fmt.Sprintf("%v%s", err, lastLine(output))
	case len(r.Faults) > 0:
		r.Outcome = report.Wrong
	case r.Why != "":
		r.Outcome = report.Skipped
	default:
		r.Outcome = report.Held
	}
	return r
}

// lastLine is the last line of a process's output, or the first of a panic, as the end of a sentence.
func lastLine(output []byte) string {
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	last := lines[len(lines)-1]
	if i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "panic: ") }); i >= 0 {
		last = lines[i]
	}
	if last != "" {
		return ": " + last
	}
	return ""
}

// watch runs this program with --one and returns its events and what it wrote otherwise. At
// the end, whatever it was, no process that it started is left. err wraps
// context.DeadlineExceeded where it was killed at the limit.
func (b *bundle) watch(name string, limit time.Duration) (events []event, output []byte, err error) {
	// Processes that outlive their parents become this one's children, so that they can be
	// found and killed.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer read.Close()
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	var out bytes.Buffer
	cmd := exec.Command(self, "--one", name)
	cmd.Env = append(os.Environ(), b.environ()...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.ExtraFiles = []*os.File{write}
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second // what it started may hold its output open
	err = cmd.Start()
	write.Close()
	if err != nil {
		return nil, nil, err
	}
	all := make(chan []event)
	go func() { all <- readEvents(read) }()
	timer := time.AfterFunc(limit, func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
	err = cmd.Wait()
	if late := !timer.Stop(); late {
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // the check itself has ended well
	}
	_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	killOrphans()
	return <-all, out.Bytes(), err
}

// readEvents reads events to the end. A line that is cut short, by the writer's death, is
// the last and is dropped.
func readEvents(r io.Reader) (events []event) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return events
		}
		var e event
		if json.Unmarshal(line, &e) == nil {
			events = append(events, e)
		}
	}
}

// killOrphans kills this process's children until there are none.
func killOrphans() {
	for {
		// One after the other: the children of a killed one come here next.
		tasks, _ := filepath.Glob("/proc/self/task/*/children")
		var children []int
		for _, path := range tasks {
			text, _ := os.ReadFile(path)
			for _, word := range strings.Fields(string(text)) {
				var pid int
				if _, err := fmt.Sscan(word, &pid); err == nil {
					children = append(children, pid)
				}
			}
		}
		if len(children) == 0 {
			return
		}
		for _, pid := range children {
			_ = unix.Kill(pid, unix.SIGKILL)
			_, _ = unix.Wait4(pid, nil, 0, nil)
		}
	}
}

// child is the process of one check.
func child(name string) error {
	c, ok := find(name)
	if !ok {
		return fmt.Errorf("--one %q: no check has that name", name)
	}
	events := os.NewFile(eventsFD, "events")
	unix.CloseOnExec(eventsFD)
	call, err := newCall(c, events)
	if err != nil {
		return err
	}
	var skip skipped
	switch err := c.run(call); {
	case errors.As(err, &skip):
		call.tell(event{Skip: string(skip)})
	case err != nil:
		call.fault("%v", err)
	}
	call.tell(event{Done: true})
	return nil
}
