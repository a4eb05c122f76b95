// Package callsite numbers the stacks from which memory is requested, so that a block
// carries four bytes of one. It prints them, and writes profiles of what they hold.
package callsite

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// Table numbers call stacks from 1. It is safe for concurrent use.
type Table struct {
	own string // part of the names of functions that are left out

	mu      sync.Mutex
	byID    []stack           // number-1 of a site
	ids     map[stack]uint32  // every stack seen
	printed map[uint32]string // of sites that were printed
}

// stack is the innermost return addresses of a call, as many as fit.
type stack [32]uintptr

// New returns an empty table. Functions whose names contain own are left out of stacks:
// those of the caller's own methods.
func New(own string) *Table {
	return &Table{own: own, ids: map[stack]uint32{}, printed: map[uint32]string{}}
}

// Caller returns the site of the code that called the function which calls Caller.
func (t *Table) Caller() uint32 {
	var s stack
	runtime.Callers(3, s[:]) // 0 is runtime.Callers, 1 is this method, 2 its caller
	t.mu.Lock()
	defer t.mu.Unlock()
	id, ok := t.ids[s]
	if !ok {
		t.byID = append(t.byID, s)
		id = uint32(len(t.byID))
		t.ids[s] = id
	}
	return id
}

// Text returns the stack of a site, innermost first, a line for each frame:
// "function (file:line)". It is "" for a site that the table does not have.
func (t *Table) Text(id uint32) string {
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

// frames returns those of a site's stack, innermost first, without the own ones and the
// runtime's. Caller holds t.mu.
func (t *Table) frames(id uint32) []runtime.Frame {
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
		own := strings.Contains(f.Function, t.own) || strings.HasPrefix(f.Function, "runtime.")
		if f.Function != "" && !own {
			out = append(out, f)
		}
		if !more {
			return out
		}
	}
}
