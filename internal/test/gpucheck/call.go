//go:build linux

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"gpumem/internal/test/gpucheck/report"
)

// call is one run of a check, in its own process.
type call struct {
	check
	*bundle
	events *os.File
	logs   atomic.Int64 // files written
	until  time.Time    // when the check's limit ends
}

// skipped is the error of a check that finds out that it cannot run here.
type skipped string

func (s skipped) Error() string { return string(s) }

func newCall(c check, events *os.File) (*call, error) {
	b := &bundle{root: os.Getenv(rootVar), out: os.Getenv(outVar), scratch: os.Getenv(scratchVar)}
	b.python, b.simulated = os.Getenv(pythonVar), os.Getenv(simulatedVar) != ""
	if b.root == "" || b.out == "" || b.scratch == "" {
		return nil, errors.New("--one is for check itself; --only NAME runs one check")
	}
	return &call{check: c, bundle: b, events: events, until: time.Now().Add(c.limit)}, nil
}

// tell writes an event.
func (c *call) tell(e event) {
	line, err := json.Marshal(e)
	if err == nil {
		_, err = c.events.Write(append(line, '\n'))
	}
	if err != nil {
		panic(err) // the check counts as crashed
	}
}

// fault says what is wrong, in one sentence.
func (c *call) fault(format string, args ...any) {
	c.tell(event{Fault: strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " | ")})
}

// figure keeps a measurement.
func (c *call) figure(name string, value float64, unit string) {
	c.tell(event{Figure: &report.Figure{Name: name, Value: value, Unit: unit}})
}

// compare keeps a measurement of which the claim says what it is, and says so where it is
// off by more than tolerance, a part of want; 0: they must be equal.
func (c *call) compare(name string, value, want float64, unit string, tolerance float64) {
	c.figureWant(name, value, want, unit)
	if math.Abs(value-want) > tolerance*math.Abs(want) {
		is, says := quantities(value, want, unit)
		c.fault("%s: measured %s, the documents say %s", name, is, says)
	}
}

// estimate keeps a measurement that the claim knows within a factor, and says so where it is
// off by more.
func (c *call) estimate(name string, value, want float64, unit string, factor float64) {
	c.figureWant(name, value, want, unit)
	if value > want*factor || value < want/factor {
		c.fault("%s: measured %s, the documents say %s", name, quantity(value, unit), quantity(want, unit))
	}
}

// figureWant keeps a measurement with what the claim says that it is.
func (c *call) figureWant(name string, value, want float64, unit string) {
	c.tell(event{Figure: &report.Figure{Name: name, Value: value, Unit: unit, Want: want}})
}

// quantity is a figure for people.
func quantity(value float64, unit string) string {
	if unit == "bytes" && math.Abs(value) >= 1<<20 {
		return fmt.Sprintf("%.2f MiB", value/(1<<20))
	}
	return strings.TrimSpace(fmt.Sprintf("%.6g %s", value, unit))
}

// quantities are two figures for people that show where they differ.
func quantities(a, b float64, unit string) (string, string) {
	if x, y := quantity(a, unit), quantity(b, unit); x != y {
		return x, y
	}
	return fmt.Sprintf("%.17g %s", a, unit), fmt.Sprintf("%.17g %s", b, unit)
}

// process is a program to run.
type process struct {
	args  []string
	env   []string      // beside the check's own
	limit time.Duration // 0: a minute
}

// ended is what a program did.
type ended struct {
	stdout, stderr string
	status         int
	seconds        float64
}

// run runs a program to its end, and logs what it wrote. err is a program that cannot be started,
// or one that was killed at its limit; a status other than 0 is none.
func (c *call) exec(p process) (ended, error) {
	p.limit = c.atMost(cmp.Or(p.limit, time.Minute)).Round(time.Millisecond)
	ctx, cancel := context.WithTimeout(context.Background(), p.limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.args[0], p.args[1:]...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Dir = c.scratch
	cmd.WaitDelay = time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	begun := time.Now()
	err := cmd.Run()
	e := ended{out.String(), errs.String(), cmd.ProcessState.ExitCode(), time.Since(begun).Seconds()}
	c.log(p, e)
	var status *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return e, fmt.Errorf("%s: no end after %v", strings.Join(p.args, " "), p.limit)
	case errors.As(err, &status), errors.Is(err, exec.ErrWaitDelay):
		return e, nil
	}
	return e, err
}

// must is exec of a program whose status is to be 0.
func (c *call) must(p process) (ended, error) {
	e, err := c.exec(p)
	if err == nil && e.status != 0 {
		err = fmt.Errorf("%s: exit status %d%s", strings.Join(p.args, " "), e.status, lastLine([]byte(e.stderr)))
	}
	return e, err
}

// log keeps what a program did.
func (c *call) log(p process, e ended) {
	n := c.logs.Add(1)
	text := fmt.Sprintf("$ %s %s\n%s\n--- stderr\n%s\n--- exit status %d, %.2f s\n", strings.Join(p.env, " "), strings.Join(p.args, " "), e.stdout, e.stderr, e.status, e.seconds)
	_ = os.WriteFile(filepath.Join(c.logFolder(), fmt.Sprintf("%s.%d.log", c.name, n)), []byte(text), 0o644)
}

// gpumem runs the command and reads its JSON into answer, unless that is nil.
func (c *call) gpumem(answer any, env []string, args ...string) error {
	e, err := c.exec(process{args: append([]string{c.command()}, args...), env: env})
	if err != nil {
		return err
	}
	if answer == nil {
		if e.status != 0 {
			return fmt.Errorf("gpumem %s: exit status %d%s", strings.Join(args, " "), e.status, lastLine([]byte(e.stderr)))
		}
		return nil
	}
	if err := json.Unmarshal([]byte(e.stdout), answer); err != nil {
		return fmt.Errorf("gpumem %s: %w%s", strings.Join(args, " "), err, lastLine([]byte(e.stderr)))
	}
	return nil
}
