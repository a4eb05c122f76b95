package leaks

// Stacks as text: the line of a stack in the program's own files, and the name of a
// place.

import (
	"iter"
	"slices"
	"strings"

	"gpumem/size"
)

// names has the stacks of a recording. Each is put together once.
type names struct {
	site      func(uint32) string
	keepPaths bool
	groups    []uint32          // first site with the same frame of the program, plus 1
	byFrame   map[string]uint32 // that site by the frame
}

func newNames(site func(uint32) string, sites uint32, keepPaths bool) *names {
	return &names{site, keepPaths, make([]uint32, sites), map[string]uint32{}}
}

// group returns the first site whose innermost frame of the program is that of site.
func (n *names) group(site uint32) uint32 {
	if site == 0 {
		return 0
	}
	if n.groups[site] == 0 {
		frame := OwnFrame(n.site(site))
		first, ok := n.byFrame[frame]
		if !ok {
			first = site
			n.byFrame[frame] = site
		}
		n.groups[site] = first + 1
	}
	return n.groups[site] - 1
}

// of returns the name of a place.
func (n *names) of(p *place, coarse bool) string {
	switch {
	case p.site != 0:
		return n.shown(OwnFrame(n.site(p.site)))
	case coarse:
		return "requests of " + size.Format(p.bytes) + " to " + size.Format(2*p.bytes)
	}
	return "requests of " + size.Format(p.bytes)
}

// stack returns the whole stack of a site.
func (n *names) stack(site uint32) string { return n.shown(n.site(site)) }

// shown leaves the directories of files out, unless they are kept.
func (n *names) shown(stack string) string {
	if n.keepPaths {
		return stack
	}
	return WithoutPaths(stack)
}

// WithoutPaths returns a stack without the directories of its files.
func WithoutPaths(stack string) string {
	lines := strings.Split(stack, "\n")
	for i, l := range lines {
		name, file, ok := strings.Cut(l, " (")
		if at := strings.LastIndexAny(file, `/\`); ok && at >= 0 {
			lines[i] = name + " (" + file[at+1:]
		}
	}
	return strings.Join(lines, "\n")
}

// OwnFrame returns the innermost frame of a stack that is not of a library, or the
// innermost at all. Libraries are known by the directories of their files.
func OwnFrame(stack string) string {
	for l := range OwnFrames(stack) {
		return l
	}
	first, _, _ := strings.Cut(stack, "\n")
	return first
}

// OwnFrames returns the frames of a stack that are not of a library, the innermost first.
func OwnFrames(stack string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for l := range strings.Lines(stack) {
			l = strings.TrimSuffix(l, "\n")
			if strings.HasSuffix(l, ")") && isPython(l) && !isLibrary(l) && !yield(l) {
				return
			}
		}
	}
}

// isPython reports whether a frame is of Python: of a file, or of code that was typed.
func isPython(frame string) bool {
	return strings.Contains(frame, ".py:") || slices.ContainsFunc(typed, func(name string) bool { return strings.Contains(frame, " ("+name) })
}

// typed are the names of Python's code without a file: python -c, standard input, a cell of
// IPython.
var typed = []string{"<string>:", "<stdin>:", "<ipython-input-"}

// isLibrary reports whether a frame is in a folder where pip, conda and Debian install
// packages, or in Python's own files.
func isLibrary(frame string) bool {
	_, file, _ := strings.Cut(frame, " (")
	file = strings.ReplaceAll(file, `\`, "/")
	for _, dir := range []string{"/site-packages/", "/dist-packages/", "/lib/python3"} {
		if strings.Contains(file, dir) {
			return true
		}
	}
	return strings.HasPrefix(file, "<") && !slices.ContainsFunc(typed, func(name string) bool { return strings.HasPrefix(file, name) })
}
