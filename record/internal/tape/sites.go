package tape

// The table of allocation sites of a trace, and the maker that turns stacks and names
// into its entries.
//
// A site is a list of frame numbers, and its text is put together when it is
// asked for. So a million stacks over a few hundred frames stay small, and a
// hostile file cannot make long names many times longer.

import (
	"cmp"
	"encoding/binary"
	"strconv"
	"strings"

	"gpumem/internal/input"
	"gpumem/record/internal/stacks"
)

// siteTable has the sites of a trace. The zero value is an empty table: site 0
// is "no site" and is not stored.
type siteTable struct {
	frames []string   // text of each frame, with the directories of its file
	paths  bool       // they are shown
	sites  [][]uint32 // frames of each site, innermost first; site 1 is sites[0]
}

func (t *siteTable) len() uint32 { return uint32(len(t.sites)) + 1 }

// text returns the stack of a site as it is shown.
func (t *siteTable) text(site uint32) string {
	return t.shown(t.full(site))
}

// shown leaves the directories of files out of a stack, unless they are shown.
func (t *siteTable) shown(stack string) string {
	if t.paths {
		return stack
	}
	return stacks.WithoutPaths(stack)
}

// full returns the stack of a site with the directories of its files.
func (t *siteTable) full(site uint32) string {
	if site == 0 || site >= t.len() {
		return ""
	}
	var out strings.Builder
	for i, f := range t.sites[site-1] {
		if i > 0 {
			out.WriteByte('\n')
		}
		out.WriteString(t.frames[f])
	}
	return out.String()
}

const (
	// MaxFrames is how many frames of a stack are kept, innermost first.
	// PyTorch stacks have 20 to 130, of which most are of the interpreter.
	MaxFrames = 64
	// maxNameBytes and maxFileBytes cut what a frame shows. C++ names of
	// templates run to thousands of bytes.
	maxNameBytes = 200
	maxFileBytes = 400
)

// siteMaker fills the table of a trace. A Builder has its methods.
type siteMaker struct {
	table    *siteTable
	byText   map[string]uint32 // frame number by text
	byFrames map[string]uint32 // site by its frame numbers, 4 bytes each
	// hold counts memory, see input.Reader.Take. From its first error on, which stays in
	// err, nothing is added.
	hold func(bytes int64) error
	err  error
}

// full counts memory that is to be added, and reports whether there is none left.
func (m *siteMaker) full(bytes int) bool {
	if m.err == nil {
		m.err = m.hold(int64(bytes))
	}
	return m.err != nil
}

func newSiteMaker(table *siteTable, keepPaths bool, hold func(bytes int64) error) siteMaker {
	table.paths = keepPaths
	return siteMaker{
		table:    table,
		hold:     hold,
		byText:   make(map[string]uint32),
		byFrames: make(map[string]uint32),
	}
}

// Site returns the site of a text of one line, for formats that have names instead of
// stacks; 0 if it is empty.
func (m *siteMaker) Site(text []byte) uint32 {
	if len(text) == 0 {
		return 0
	}
	n, ok := m.byText[string(text)]
	if !ok {
		n = m.frame(input.Printable(string(text)))
	}
	return m.Stack([]uint32{n})
}

// frame returns the number of a frame by its text.
func (m *siteMaker) frame(text string) uint32 {
	n, ok := m.byText[text]
	if !ok {
		if m.full(len(text) + 64) {
			return 0
		}
		n = uint32(len(m.table.frames))
		m.table.frames = append(m.table.frames, text)
		m.byText[text] = n
	}
	return n
}

// Stack returns the site of a list of frames, innermost first and MaxFrames at most. The
// list must not change afterwards.
func (m *siteMaker) Stack(frames []uint32) uint32 {
	if len(frames) == 0 {
		return 0
	}
	key := make([]byte, 0, 4*MaxFrames)
	for _, f := range frames {
		key = binary.LittleEndian.AppendUint32(key, f)
	}
	if s, ok := m.byFrames[string(key)]; ok {
		return s
	}
	if m.full(8*len(frames) + 96) {
		return 0
	}
	s := m.table.len()
	m.table.sites = append(m.table.sites, frames)
	m.byFrames[string(key)] = s
	return s
}

// Frame returns the number of a stack frame, whose text is "name (file:line)", or less where
// less is known. file and line may be unknown, "" and 0.
func (m *siteMaker) Frame(name, file string, line int64) uint32 {
	name = cmp.Or(input.Printable(input.Cut(name, maxNameBytes)), "?")
	file = input.Printable(input.Cut(file, maxFileBytes))
	switch {
	case file == "" || file == "??": // the unwinder's word for not known
	case line > 0:
		name += " (" + file + ":" + strconv.FormatInt(line, 10) + ")"
	default:
		name += " (" + file + ")"
	}
	return m.frame(name)
}
