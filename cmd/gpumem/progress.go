package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/term"

	"gpumem/internal/report"
	"gpumem/record/replay"
	"gpumem/size"
)

// progress is one line on a terminal that says what takes so long. It begins
// after half a second and is gone when the work is done; where the output is no
// terminal it writes nothing.
type progress struct {
	w     io.Writer
	on    bool
	term  *os.File   // nil if w is none
	mu    sync.Mutex // guards the rest: work that was interrupted may still tell of itself
	width int        // of the terminal: a line that breaks cannot be taken away
	shown bool
	start time.Time
	last  time.Time
	doing string    // what is being done
	since time.Time // when it began
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w, start: time.Now(), width: 78}
	if f, ok := w.(*os.File); ok && term.IsTerminal(f.Fd()) {
		p.on, p.term = true, f
	}
	return p
}

// show says what is being done and which part of it, 0 to 1, is over, and from three
// seconds on how long the rest takes at the same speed.
func (p *progress) show(doing string, part float64) {
	if doing = strings.TrimPrefix(doing, ": "); doing == "" {
		doing = "working"
	}
	_, left := p.times(doing, part)
	p.line("%s %3.0f %%%s", doing, part*100, left)
}

// replay is show for a replay: the part that is over, the time so far, what is left, and
// the policies that run. Where nobody knows how many passes there will be, it counts the
// events of all so far.
func (p *progress) replay(r replay.Progress) {
	if r.Total == 0 && r.Done == 0 {
		p.show(r.Doing, r.Part)
		return
	}
	passed, left := p.times("replay", r.Part)
	how := fmt.Sprintf("%3.0f %%, %s%s", r.Part*100, passed.Truncate(time.Second), left)
	if r.Total == 0 {
		how = fmt.Sprintf("%s events replayed, %s", report.Count(r.Done), passed.Truncate(time.Second))
	}
	p.line("%s: %s", how, r.Doing)
}

// times returns the time since something began, and in words how long the rest takes.
func (p *progress) times(doing string, part float64) (passed time.Duration, left string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if doing != p.doing {
		p.doing, p.since = doing, now
	}
	if passed = now.Sub(p.since); passed > 3*time.Second && part > 0.01 && part < 1 {
		left = ", " + (time.Duration(float64(passed)*(1/part-1)) + time.Second).Truncate(time.Second).String() + " left"
	}
	return passed, left
}

// bytes is show for a file; total 0 means unknown.
func (p *progress) bytes(doing string, done, total int64) {
	if total > 0 {
		p.show(doing, float64(done)/float64(total))
		return
	}
	p.line("%s %s", doing, size.Format(uint64(done)))
}

func (p *progress) line(format string, args ...any) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.on || now.Sub(p.start) < 500*time.Millisecond || now.Sub(p.last) < 100*time.Millisecond {
		return
	}
	p.last, p.shown = now, true
	if p.term != nil {
		if width, _, err := term.GetSize(p.term.Fd()); err == nil && width > 0 {
			p.width = max(width-2, 10)
		}
	}
	fmt.Fprint(p.w, "\r\x1b[K"+report.Shorten(fmt.Sprintf(format, args...), p.width))
}

// clear takes the line away.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		p.shown = false
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
