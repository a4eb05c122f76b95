package trace

// This file is for sites, the places in a program that allocate: the table of a
// trace, and how a stack or a name becomes an entry.
//
// A site is a list of frame numbers, and its text is put together when it is
// asked for. So a million stacks over a few hundred frames stay small, and a
// hostile file cannot make long names many times longer.

import (
	"encoding/binary"
	"strconv"
	"strings"
)

// siteTable has the sites of a trace. The zero value is an empty table: site 0
// is "no site" and is not stored.
type siteTable struct {
	frames []string   // text of each frame
	sites  [][]uint32 // frames of each site, innermost first; site 1 is sites[0]
}

func (t *siteTable) len() uint32 { return uint32(len(t.sites)) + 1 }

func (t *siteTable) text(site uint32) string {
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
	// maxFrames is how many frames of a stack are kept, innermost first.
	// PyTorch stacks have 20 to 130, of which most are of the interpreter.
	maxFrames = 64
	// maxNameBytes and maxFileBytes cut what a frame shows. C++ names of
	// templates run to thousands of bytes.
	maxNameBytes = 200
	maxFileBytes = 400
)

// siteMaker fills the table of a trace.
type siteMaker struct {
	table     *siteTable
	keepPaths bool
	byText    map[string]uint32 // frame number by text
	byFrames  map[string]uint32 // site by its frame numbers, 4 bytes each
	// hold counts memory, see builder.hold. From its first error on, which stays in err,
	// nothing is added.
	hold func(bytes int) error
	err  error
}

// full counts memory that is to be added, and reports whether there is none left.
func (m *siteMaker) full(bytes int) bool {
	if m.err == nil && m.hold != nil {
		m.err = m.hold(bytes)
	}
	return m.err != nil
}

func newSiteMaker(table *siteTable, keepPaths bool) *siteMaker {
	return &siteMaker{
		table:     table,
		keepPaths: keepPaths,
		byText:    make(map[string]uint32),
		byFrames:  make(map[string]uint32),
	}
}

// named returns the site of a text of one line, for formats that have names
// instead of stacks.
func (m *siteMaker) named(text []byte) uint32 {
	if len(text) == 0 {
		return 0
	}
	n, ok := m.byText[string(text)]
	if !ok {
		n = m.frame(string(text))
	}
	return m.intern([]uint32{n})
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

// intern returns the site of a list of frames, which becomes its own.
func (m *siteMaker) intern(frames []uint32) uint32 {
	if len(frames) == 0 {
		return 0
	}
	key := make([]byte, 0, 4*maxFrames)
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

// frameText is "name (file:line)", or less where less is known. A line below 1
// is not known.
func (m *siteMaker) frameText(name, file string, line int64) string {
	if !m.keepPaths {
		if i := strings.LastIndexAny(file, `/\`); i >= 0 {
			file = file[i+1:]
		}
	}
	name = printable(cutName(name, maxNameBytes))
	file = printable(cutName(file, maxFileBytes))
	if name == "" {
		name = "?"
	}
	if file == "" || file == "??" { // the unwinder's word for not known
		return name
	}
	if line > 0 {
		return name + " (" + file + ":" + strconv.FormatInt(line, 10) + ")"
	}
	return name + " (" + file + ")"
}

func cutName(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return cutRunes(s, n) + "..."
}

// torchSites makes sites of PyTorch frames. Frames and lists of frames are
// shared in the pickle, so each is looked at once.
type torchSites struct {
	*siteMaker
	byDict map[*dict]frame
	byList map[*list]uint32
}

type frame struct {
	number uint32
	python bool
	noise  bool
}

func newTorchSites(m *siteMaker) *torchSites {
	return &torchSites{siteMaker: m, byDict: make(map[*dict]frame), byList: make(map[*list]uint32)}
}

// site returns the number for a value that should be a list of frames,
// innermost first; 0 if it is not, or is empty.
//
// A stack with Python frames keeps only those: what lies between and below them
// is the interpreter and the dispatcher. A stack without (the backward pass runs
// in C++ threads) keeps everything but the allocator's own frames at its top.
func (m *torchSites) site(v any) uint32 {
	l, ok := v.(*list)
	if !ok || len(l.items) == 0 {
		return 0
	}
	if s, ok := m.byList[l]; ok {
		return s
	}
	var python, other []uint32
	for _, it := range l.items {
		d, ok := it.(*dict)
		if !ok {
			continue
		}
		f := m.frame(d)
		switch {
		case f.python && len(python) < maxFrames:
			python = append(python, f.number)
		case !f.python && len(other) < maxFrames && (!f.noise || len(other) > 0):
			other = append(other, f.number)
		}
	}
	if len(python) > 0 {
		other = python
	}
	s := m.intern(other)
	m.byList[l] = s
	return s
}

// frame reads {'name', 'filename', 'line'}; what is missing is left out.
func (m *torchSites) frame(d *dict) frame {
	if f, ok := m.byDict[d]; ok {
		return f
	}
	name := stringField(d, "name")
	file := stringField(d, "filename")
	v, _ := d.get("line")
	line, _ := v.(int64)
	f := frame{
		number: m.siteMaker.frame(m.frameText(name, file, line)),
		python: isPython(file),
		noise:  isNoise(name),
	}
	m.byDict[d] = f
	return f
}

// isPython: a Python source file, or code that Python made itself, such as
// "<frozen runpy>" and "<eval_with_key>.12".
func isPython(file string) bool {
	return strings.HasSuffix(file, ".py") || strings.HasPrefix(file, "<")
}

// isNoise: frames of unwinding the stack and of the caching allocator, which
// are on top of every C++ stack. The prefixes are those of PyTorch 2.x.
func isNoise(name string) bool {
	for _, prefix := range []string{
		"torch::unwind::",
		"torch::CapturedTraceback::",
		"torch::cuda::(anonymous namespace)::gather",
		"c10::cuda::",
		"c10::CachingAllocator::",
	} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
