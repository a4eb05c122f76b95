package compare

// Stacks of one recording matched with those of the other.

import (
	"cmp"
	"crypto/sha256"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gpumem/leaks"
)

// How says how a row's places of the two recordings were matched.
type How string

// The ways, in the order in which they are tried.
const (
	// BySize: without a stack, requests of one size.
	BySize How = "size"
	// ByStack: the stacks are the same, line numbers included.
	ByStack How = "stack"
	// ByLines: the stacks are the same but for line numbers, or for the numbers that a
	// compiler gives to operations.
	ByLines How = "stack_without_lines"
	// ByProgram: the frames of the program's own files are the same but for line numbers.
	// Those of libraries are not, as under another release of them.
	ByProgram How = "program_without_lines"
	// ByFunction: the innermost function of the program's own files is the same.
	ByFunction How = "function"
	// OnlyBefore and OnlyAfter: the other recording never allocates there.
	OnlyBefore How = "only_before"
	OnlyAfter  How = "only_after"
)

var ways = []How{ByStack, ByLines, ByProgram, ByFunction, BySize, OnlyBefore, OnlyAfter}

// A hash stands for a text. Stacks are hashed because a recording may have a million of
// them, whose text is put together on each use.
type hash [16]byte

func hashOf(text string) hash {
	sum := sha256.Sum256([]byte(text))
	return hash(sum[:16])
}

// stackKeys are what a stack is matched by.
type stackKeys struct{ stack, lines, program, function hash }

// stack returns the text of a site, without directories.
func (r *recording) stack(site uint32) string { return leaks.WithoutPaths(r.trace.Site(site)) }

// program returns the frames of the program's own files; all if there are none.
func (r *recording) program(site uint32) string {
	whole := r.trace.Site(site)
	return leaks.WithoutPaths(cmp.Or(strings.Join(slices.Collect(leaks.OwnFrames(whole)), "\n"), whole))
}

// keysOf returns the keys of a site.
func (r *recording) keysOf(site uint32) *stackKeys {
	k := r.keys[site]
	if k == nil {
		whole := r.trace.Site(site)
		text := leaks.WithoutPaths(whole)
		k = &stackKeys{
			stack: hashOf(text), lines: hashOf(withoutLines(text)), program: hashOf(withoutLines(r.program(site))),
			function: hashOf(function(leaks.WithoutPaths(leaks.OwnFrame(whole)))),
		}
		r.keys[site] = k
	}
	return k
}

// withoutLines returns a stack without line numbers.
func withoutLines(stack string) string {
	frames := strings.Split(stack, "\n")
	for i, f := range frames {
		frames[i], _ = cutLine(f)
	}
	return strings.Join(frames, "\n")
}

// cutLine returns a frame without its line number, and the number. The number of an
// operation, as in fusion.12, counts as one.
func cutLine(frame string) (rest string, line int) {
	head, tail := frame, ""
	if strings.HasSuffix(frame, ")") {
		if at := strings.LastIndexByte(frame, ':'); at >= 0 {
			if n, err := strconv.Atoi(frame[at+1 : len(frame)-1]); err == nil {
				return frame[:at] + ")", n
			}
		}
		if at := strings.Index(frame, " ("); at >= 0 {
			head, tail = frame[:at], frame[at:]
		}
	}
	if at := strings.LastIndexByte(head, '.'); at > 0 {
		if n, err := strconv.Atoi(head[at+1:]); err == nil {
			return head[:at] + tail, n
		}
	}
	return frame, 0
}

// function returns the name of a frame's function or operation; with its file where the
// name says little, as <module> and <lambda> do.
func function(frame string) string {
	frame, _ = cutLine(frame)
	name, _, _ := strings.Cut(frame, " (")
	if strings.HasPrefix(name, "<") {
		return frame
	}
	return name
}

// compareLines orders stacks that differ in line numbers alone, from the outermost frame
// inwards.
func compareLines(a, b string) int {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := min(len(x), len(y)) - 1; i >= 0; i-- {
		_, m := cutLine(x[i])
		_, n := cutLine(y[i])
		if c := cmp.Compare(m, n); c != 0 {
			return c
		}
	}
	return 0
}

// A match is places of both recordings that are one row.
type match struct {
	how    How
	places [2][]place
}

// matchPlaces matches the places of two recordings. Every place is in one match.
func (c *comparer) matchPlaces(got [2]*gathered) []match {
	var out []match
	var left [2][]place // the stacks that are not matched yet
	sizes := map[uint64]*match{}
	for i, g := range got {
		for _, p := range slices.SortedFunc(maps.Keys(g.places), func(a, b place) int {
			return cmp.Or(cmp.Compare(a.site, b.site), cmp.Compare(a.bytes, b.bytes))
		}) {
			if p.site != 0 {
				left[i] = append(left[i], p)
				continue
			}
			m := sizes[p.bytes]
			if m == nil {
				m = &match{how: BySize}
				sizes[p.bytes] = m
			}
			m.places[i] = append(m.places[i], p)
		}
	}
	for _, bytes := range slices.Sorted(maps.Keys(sizes)) {
		m := sizes[bytes]
		switch {
		case m.places[1] == nil:
			m.how = OnlyBefore
		case m.places[0] == nil:
			m.how = OnlyAfter
		}
		out = append(out, *m)
	}
	for _, level := range []struct {
		how  How
		key  func(*stackKeys) hash
		text func(r *recording, site uint32) string // whose lines order stacks of one key; nil: they have no order
	}{
		{ByStack, func(k *stackKeys) hash { return k.stack }, nil},
		{ByLines, func(k *stackKeys) hash { return k.lines }, (*recording).stack},
		{ByProgram, func(k *stackKeys) hash { return k.program }, (*recording).program},
		{ByFunction, func(k *stackKeys) hash { return k.function }, nil},
	} {
		groups := map[hash]*match{}
		var order []*match
		for i := range left {
			for _, p := range left[i] {
				key := level.key(c.sides[i].keysOf(p.site))
				m := groups[key]
				if m == nil {
					m = &match{how: level.how}
					groups[key] = m
					order = append(order, m)
				}
				m.places[i] = append(m.places[i], p)
			}
			left[i] = nil
		}
		for _, m := range order {
			switch {
			case m.places[0] == nil || m.places[1] == nil:
				for i := range left {
					left[i] = append(left[i], m.places[i]...)
				}
			case level.text != nil && len(m.places[0]) == len(m.places[1]):
				out = append(out, c.inOrder(*m, level.text)...)
			default:
				out = append(out, *m)
			}
		}
	}
	for i, how := range []How{OnlyBefore, OnlyAfter} {
		for _, p := range left[i] {
			m := match{how: how}
			m.places[i] = []place{p}
			out = append(out, m)
		}
	}
	return out
}

// inOrder matches as many stacks of one recording with as many of the other that differ
// in line numbers alone, in the order of their lines: a change moves lines and rarely
// changes their order.
func (c *comparer) inOrder(m match, text func(r *recording, site uint32) string) []match {
	out := make([]match, len(m.places[0]))
	for i, places := range m.places {
		slices.SortStableFunc(places, func(a, b place) int { return compareLines(text(c.sides[i], a.site), text(c.sides[i], b.site)) })
		for k, p := range places {
			out[k].how = m.how
			out[k].places[i] = []place{p}
		}
	}
	return out
}
