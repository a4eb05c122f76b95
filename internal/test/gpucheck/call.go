//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"gpumem/internal/test/gpucheck/report"
)

// call is one run of a check, in its own process.
type call struct {
	check
	*bundle
	events  *os.File
	logs    atomic.Int64 // files opened
	running sync.Map     // each *program
	quits   atomic.Bool
	atQuit  atomic.Pointer[func()] // what beforeQuit set
	until   time.Time              // when the check's limit ends
}

// skipped is the error of a check that finds out that it cannot run here.
type skipped string

func (s skipped) Error() string { return string(s) }

func newCall(c check, events *os.File) (*call, error) {
	b := &bundle{root: os.Getenv(rootVar), scratch: os.Getenv(scratchVar)}
	b.python, b.simulated = os.Getenv(pythonVar), os.Getenv(simulatedVar) != ""
	if b.root == "" || b.scratch == "" {
		return nil, errors.New("--one is for check itself; --only NAME runs one check")
	}
	return &call{check: c, bundle: b, events: events, until: time.Now().Add(c.limit)}, nil
}

// beforeQuit sets what a check that is told to quit still does, in well below a second: to tell what it knows.
func (c *call) beforeQuit(f func()) { c.atQuit.Store(&f) }

// quitOnSignal lets SIGQUIT, which comes before a check is killed, end this process after it has written where
// it is, and has let its programs do so.
func (c *call) quitOnSignal() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGQUIT)
	go func() {
		<-signals
		if f := c.atQuit.Load(); f != nil {
			(*f)()
		}
		c.quits.Store(true)
		stacks := make([]byte, 1<<20)
		_, _ = fmt.Fprintf(os.Stderr, "check: told to quit\n\n%s\n", stacks[:runtime.Stack(stacks, true)])
		each := func(f func(*program)) {
			c.running.Range(func(r, _ any) bool { f(r.(*program)); return true })
		}
		each(func(r *program) { r.abort() })
		late := time.Now().Add(lastWordsIn)
		each(func(r *program) { r.within(time.Until(late)) })
		os.Exit(2)
	}()
}

// tell writes an event. A check that is told to quit ends its programs, of which nothing follows.
func (c *call) tell(e event) {
	if c.quits.Load() {
		select {}
	}
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
	c.tell(event{Fault: report.OneLine(fmt.Sprintf(format, args...))})
}

// note says what was not compared, and why, in one sentence: a claim that holds without a note was
// compared in full.
func (c *call) note(format string, args ...any) {
	c.tell(event{Note: report.OneLine(fmt.Sprintf(format, args...))})
}

// allAsked finds fault with what was asked for and is not answered: a comparison of the answers that
// there are would hold without them.
func (c *call) allAsked(who string, asked []string, isAnswered func(string) bool) {
	var missing []string
	for _, name := range asked {
		if !isAnswered(name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		c.fault("%s says nothing of %s", who, strings.Join(missing, ", "))
	}
}

// failed says why the check, or a part of it, could not run.
func (c *call) failed(err error) { c.tell(event{Failed: report.OneLine(err.Error())}) }

// report says what an error of a program means: that of one which was not started, or was too late, is
// no fault of what the claim is about.
func (c *call) report(err error) {
	if isUnanswered(err) {
		c.failed(err)
		return
	}
	c.fault("%v", err)
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

// gpumem runs the command and reads its JSON into answer, unless that is nil.
func (c *call) gpumem(answer any, env []string, args ...string) error {
	e, err := c.exec(process{args: append([]string{c.command()}, args...), env: env})
	if err != nil {
		return err
	}
	if answer == nil {
		if e.status != 0 {
			return fmt.Errorf("gpumem %s: exit status %d%s", strings.Join(args, " "), e.status, e.reason())
		}
		return nil
	}
	if err := json.Unmarshal([]byte(e.stdout), answer); err != nil {
		return fmt.Errorf("gpumem %s: %w%s", strings.Join(args, " "), err, e.reason())
	}
	return nil
}
