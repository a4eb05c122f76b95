package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"gpumem/report"
	"gpumem/size"
)

// progress is one line on a terminal that says what takes so long. It begins
// after half a second and is gone when the work is done; where the output is no
// terminal it writes nothing.
type progress struct {
	w     io.Writer
	on    bool
	mu    sync.Mutex // guards the rest: work that was interrupted may still tell of itself
	shown bool
	start time.Time
	last  time.Time
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w, start: time.Now()}
	if f, ok := w.(*os.File); ok {
		if st, err := f.Stat(); err == nil {
			p.on = st.Mode()&os.ModeCharDevice != 0
		}
	}
	return p
}

// show says what is being done and which part of it, 0 to 1, is over.
func (p *progress) show(doing string, part float64) {
	p.line("%s %3.0f %%", doing, part*100)
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
	fmt.Fprint(p.w, "\r\x1b[K"+shorten(fmt.Sprintf(format, args...), progressWidth))
}

// progressWidth is below that of the narrowest usual terminal: a line that
// breaks cannot be taken away.
const progressWidth = 78

func shorten(s string, width int) string { return report.Shorten(s, width) }

// clear takes the line away.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		p.shown = false
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
