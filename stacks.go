package gpumem

import (
	"cmp"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"gpumem/alloc"
)

// stacks numbers the stacks from which memory is asked for, so that a block
// carries four bytes of it.
type stacks struct {
	mu      sync.Mutex
	byID    []stack               // number-1 of a site
	ids     map[stack]alloc.Site  // every stack seen
	printed map[alloc.Site]string // of sites that were printed
}

// stack is the innermost return addresses of a call, as many as fit.
type stack [32]uintptr

func newStacks() *stacks {
	return &stacks{ids: map[stack]alloc.Site{}, printed: map[alloc.Site]string{}}
}

// caller is the site of the code that called the pool's method which calls
// this.
func (t *stacks) caller() alloc.Site {
	var s stack
	runtime.Callers(3, s[:])
	t.mu.Lock()
	defer t.mu.Unlock()
	id, ok := t.ids[s]
	if !ok {
		t.byID = append(t.byID, s)
		id = alloc.Site(len(t.byID))
		t.ids[s] = id
	}
	return id
}

// text is the stack of a site, innermost first, a line for each frame:
// "function (file:line)".
func (t *stacks) text(id alloc.Site) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s, ok := t.printed[id]; ok {
		return s
	}
	var b strings.Builder
	for _, f := range t.frames(id) {
		fmt.Fprintf(&b, "%s (%s:%d)\n", f.Function, filepath.Base(f.File), f.Line)
	}
	t.printed[id] = b.String()
	return t.printed[id]
}

// frames are those of a site's stack, innermost first. The pool's own methods
// and the runtime's are left out. Caller holds t.mu.
func (t *stacks) frames(id alloc.Site) []runtime.Frame {
	if id == 0 || int(id) > len(t.byID) {
		return nil
	}
	s := t.byID[id-1]
	n := slices.Index(s[:], 0)
	if n < 0 {
		n = len(s)
	}
	var out []runtime.Frame
	frames := runtime.CallersFrames(s[:n])
	for {
		f, more := frames.Next()
		own := strings.HasPrefix(f.Function, "gpumem.(*Pool).") || strings.HasPrefix(f.Function, "runtime.")
		if f.Function != "" && !own {
			out = append(out, f)
		}
		if !more {
			return out
		}
	}
}

// Use is what one allocation site holds.
type Use struct {
	Site   alloc.Site
	Stack  string // a line for each frame, innermost first
	Blocks int
	Bytes  uint64 // of whole blocks
}

// Live returns what is allocated by allocation site, largest first. Without stacks
// (see WithStacks) it is one entry for all.
func (p *Pool) Live() []Use {
	p.mu.Lock()
	live := p.live()
	p.mu.Unlock()
	return p.named(live)
}

// live is Live without the stacks' texts. Caller holds p.mu.
func (p *Pool) live() []Use {
	uses := map[alloc.Site]*Use{}
	p.a.Walk(func(c alloc.Chunk) bool {
		if !c.Live {
			return true
		}
		u := uses[c.Site]
		if u == nil {
			u = &Use{Site: c.Site}
			uses[c.Site] = u
		}
		u.Blocks++
		u.Bytes += c.Size
		return true
	})
	out := make([]Use, 0, len(uses))
	for _, u := range uses {
		out = append(out, *u)
	}
	slices.SortFunc(out, func(a, b Use) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Site, b.Site))
	})
	return out
}

// named fills in the stacks' texts. It needs no lock of the pool.
func (p *Pool) named(uses []Use) []Use {
	if p.stacks != nil {
		for i := range uses {
			uses[i].Stack = p.stacks.text(uses[i].Site)
		}
	}
	return uses
}
