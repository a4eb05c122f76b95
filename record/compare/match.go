package compare

// Stacks of one recording matched with those of the other.

import (
	"cmp"
	"crypto/sha256"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gpumem/record/internal/stacks"
)

// matching says how a row's places of the two recordings were matched.
type matching string

// The ways, in the order in which they are tried.
const (
	// BySize: without a stack, requests of one size.
	BySize matching = "size"
	// ByStack: the stacks are the same, line numbers included.
	ByStack matching = "stack"
	// ByLines: the stacks are the same but for line numbers, or for the numbers that a
	// compiler gives to operations. Where lines have moved, stacks are matched by what they
	// allocate as well as by their lines.
	ByLines matching = "stack_without_lines"
	// ByProgram: the frames of the program's own files are the same but for line numbers.
	// Those of libraries are not, as under another release of them.
	ByProgram matching = "program_without_lines"
	// ByFunction: the innermost function of the program's own files is the same.
	ByFunction matching = "function"
	// OnlyBefore and OnlyAfter: the other recording never allocates there.
	OnlyBefore matching = "only_before"
	OnlyAfter  matching = "only_after"
)

var ways = []matching{ByStack, ByLines, ByProgram, ByFunction, BySize, OnlyBefore, OnlyAfter}

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
func (r *recording) stack(site uint32) string { return stacks.WithoutPaths(r.trace.Site(site)) }

// program returns the frames of the program's own files; all if there are none.
func (r *recording) program(site uint32) string {
	whole := r.trace.Site(site)
	return stacks.WithoutPaths(cmp.Or(strings.Join(slices.Collect(stacks.OwnFrames(whole)), "\n"), whole))
}

// keysOf returns the keys of a site.
func (r *recording) keysOf(site uint32) *stackKeys {
	k := r.keys[site]
	if k == nil {
		whole := r.trace.Site(site)
		text := stacks.WithoutPaths(whole)
		k = &stackKeys{
			stack: hashOf(text), lines: hashOf(withoutLines(text)), program: hashOf(withoutLines(r.program(site))),
			function: hashOf(function(stacks.WithoutPaths(stacks.OwnFrame(whole)))),
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
	how    matching
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
		how  matching
		key  func(*stackKeys) hash
		text func(r *recording, site uint32) string // of which lines may differ; nil: all places of a key are one row
	}{
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
			case level.text != nil && len(m.places[0])+len(m.places[1]) <= maxAlign:
				out = append(out, c.align(m, got, level.text)...)
			default:
				if level.how == ByLines {
					out = append(out, c.exact(m)...)
				}
				out = append(out, *m)
				continue
			}
			for i := range left {
				left[i] = append(left[i], m.places[i]...)
			}
		}
	}
	for i, how := range []matching{OnlyBefore, OnlyAfter} {
		for _, p := range left[i] {
			m := match{how: how}
			m.places[i] = []place{p}
			out = append(out, m)
		}
	}
	return out
}

// maxAlign is the most stacks of both recordings that align takes, whose time and memory go
// with their square. Of more only those of the same lines are matched, and the others are
// one row.
const maxAlign = 512

// exact matches stacks of the same lines, and leaves the others in m.
func (c *comparer) exact(m *match) (out []match) {
	var all [2]map[hash][]place
	for i, places := range m.places {
		all[i] = map[hash][]place{}
		for _, p := range places {
			key := c.sides[i].keysOf(p.site).stack
			all[i][key] = append(all[i][key], p)
		}
	}
	for _, p := range m.places[0] {
		key := c.sides[0].keysOf(p.site).stack
		if a, b := all[0][key], all[1][key]; b != nil && p == a[0] {
			out = append(out, match{ByStack, [2][]place{a, b}})
		}
	}
	for i := range m.places {
		m.places[i] = slices.DeleteFunc(m.places[i], func(p place) bool {
			return all[1-i][c.sides[i].keysOf(p.site).stack] != nil
		})
	}
	return out
}

// align matches stacks that differ in line numbers alone, in the order of their lines: a
// change moves lines, adds some and removes some, and rarely changes their order. Of all
// such pairs it takes those that agree best. What is left of both recordings is one row, and
// of one recording stays in m.
//
// A line is added above line 11 of
//
//	10  x = f(y)    1 GiB
//	11  z = f(x)    2 GiB
//
// so that the second recording has the lines 10, 11 and 12, of which 11 is new. By its
// number alone it would be the old line 11, which has shrunk, and line 12 would be new.
// By what they allocate, 12 is the old line 11.
func (c *comparer) align(m *match, got [2]*gathered, text func(r *recording, site uint32) string) (out []match) {
	var texts [2][]string
	for i, places := range m.places {
		of := map[place]string{}
		for _, p := range places {
			of[p] = text(c.sides[i], p.site)
		}
		slices.SortStableFunc(places, func(a, b place) int { return compareLines(of[a], of[b]) })
		for _, p := range places {
			texts[i] = append(texts[i], of[p])
		}
	}
	// The pairs are the same if the recordings change places.
	one, two := 0, 1
	if slices.Compare(texts[0], texts[1]) > 0 {
		one, two = 1, 0
	}
	same := slices.Equal(texts[0], texts[1])
	agree := func(i, j int) int {
		if same {
			return map[bool]int{true: 1}[i == j]
		}
		a, b := got[one].places[m.places[one][i]], got[two].places[m.places[two][j]]
		score := 0
		if len(texts[0]) == len(texts[1]) {
			score = 1 // the order alone
		}
		switch {
		case a.allocated == b.allocated && a.peak == b.peak:
			score += 9
		case a.allocs > 0 && a.allocs == b.allocs, sameMean(count{a.bytes, a.allocs}, count{b.bytes, b.allocs}), sameMean(a.peak, b.peak):
			score += 4
		}
		if texts[one][i] == texts[two][j] {
			score += 2
		}
		return score
	}
	// best[i][j] is the most that the stacks from i and j on agree.
	n, k := len(texts[one]), len(texts[two])
	best := make([][]int, n+1)
	for i := range best {
		best[i] = make([]int, k+1)
	}
	for i := n - 1; i >= 0; i-- {
		for j := k - 1; j >= 0; j-- {
			best[i][j] = max(best[i+1][j], best[i][j+1], best[i+1][j+1]+agree(i, j))
		}
	}
	var left [2][]place
	i, j := 0, 0
	for i < n && j < k {
		switch a := agree(i, j); {
		case a > 0 && best[i][j] == best[i+1][j+1]+a:
			pair := match{how: m.how}
			if m.how == ByLines && texts[one][i] == texts[two][j] {
				pair.how = ByStack
			}
			pair.places[one], pair.places[two] = []place{m.places[one][i]}, []place{m.places[two][j]}
			out = append(out, pair)
			i, j = i+1, j+1
		case best[i][j] == best[i+1][j]:
			left[one] = append(left[one], m.places[one][i])
			i++
		default:
			left[two] = append(left[two], m.places[two][j])
			j++
		}
	}
	left[one], left[two] = append(left[one], m.places[one][i:]...), append(left[two], m.places[two][j:]...)
	if m.places = left; left[0] != nil && left[1] != nil {
		out = append(out, *m)
		m.places = [2][]place{}
	}
	return out
}

// sameMean reports whether both have blocks, of the same mean size.
func sameMean(a, b count) bool {
	return a.blocks > 0 && b.blocks > 0 && a.bytes*b.blocks == b.bytes*a.blocks
}
