// Package statement reads logs: the numbers of a text and what each means, who refused
// memory, and what the log says of the machine.
//
// scan.go goes through a log once and finds the parts that matter; lines.go makes texts of
// them again, whatever a terminal, a chat or a collector did to them; words.go and roles.go
// read the numbers of a text and what each means; notice.go finds whether memory was
// refused, and by whom; facts.go reads what has a fixed form.
package statement

// One pass over a log of any size. Every line is looked at for words that matter to
// memory; a table of words and a hash of the line without its numbers say in a few
// nanoseconds a byte whether it has some, and whether a line of this shape came often
// before. Only the neighbourhood of a line that is new is read in full. The end of the
// log is always read, for that is where programs say why they died.

import (
	"bufio"
	"errors"
	"io"
	"slices"
	"strings"
)

const (
	// bufferSize is the longest piece of a line that is looked at as one.
	bufferSize = 256 << 10
	// linesBefore and linesAfter are read in full beside a line that matters: a message
	// of 700 letters has twelve lines when it is wrapped at 60.
	linesBefore, linesAfter = 4, 12
	// maxRegion bounds what is read as one, in lines and bytes.
	maxRegionLines, maxRegionBytes = 400, 64 << 10
	// tail is how much of the log's end is read whatever came before.
	tail = 64 << 10
	// fullBytes bounds what is read in full before the end, and failingBytes what of it is
	// read for words of failures alone.
	fullBytes, failingBytes = 320 << 10, 96 << 10
	// repeatsRead is how often a shape is read; then every power of two.
	repeatsRead = 24
	maxShapes   = 1 << 14
)

// Read goes through a log in UTF-8 once, which may be of any size, and calls each with every text
// that matters. end is what the log ends with.
func Read(log io.Reader, each func(*Statement)) (end string, err error) {
	s := scanner{region: func(lines []rawLine) {
		for _, p := range passages(lines) {
			if strings.TrimSpace(p.Text) != "" || p.head != "" {
				each(readPassage(p))
			}
		}
	}}
	err = s.scan(log)
	for _, p := range passages(s.last()) {
		if st := (Statement{passage: p}); strings.TrimSpace(p.Text) != "" {
			end = st.Quote()
		}
	}
	return end, err
}

// A rawLine is a line of the log, or a piece of a very long one.
type rawLine struct {
	number int // from 1
	text   string
}

// letters are small letters by byte, 0 for what is none.
var letters = func() (t [256]byte) {
	for c := byte('a'); c <= 'z'; c++ {
		t[c], t[c-0x20] = c, c
	}
	return t
}()

const hashFactor = 0x9E3779B1

// wordHash is the hash of a word in small letters, as look computes it.
func wordHash(w string) (h uint32) {
	for i := range len(w) {
		h = (h ^ uint32(letters[w[i]])) * hashFactor
	}
	return h
}

// triggers are words that may matter, by hash: the bits of a filter.
var triggers = func() (t [1 << 12]uint64) {
	add := func(words string) {
		for _, w := range strings.Fields(words) {
			h := wordHash(w) >> 14
			t[h>>6] |= 1 << (h & 63)
		}
	}
	for w, c := range lexicon {
		if c&(cMemory|cOOM|cSpent|cAcquire|cAlloc|cLibrary) != 0 {
			add(w)
		}
	}
	add(`killed kill sigkill cuda gpu vram bad resources resource cubin ptx module oom memcg cgroup
		jaxlib jax tensorflow torch pytorch vllm cudnn driver nvidia geforce tesla quadro rtx mib gib xla pjrt
		kernel nvrm nvmap tegra bytes budget quota symbol dynamic library shared busy unavailable vmm virtual
		unrecognized fraction hami nvshare limit llama ollama ggml cupy rmm numba backend backends capture
		profiling rematerialization buffer pin available usage shm signal exit exitcode exited address illegal assert
		space timeout image launch assertion host capacity enough gpumem inuse reserved free used requested
		xpu mps hip rocm miopen onnxruntime paddle mxnet xgboost device devices
		dnn solver convolution nvenc encode opencl vulkan vk cl dxgi hresult directx metal xid errno hsa sycl level_zero`)
	return t
}()

// failing are words of failures of any kind, which are read as far as a part of the budget goes.
var failing = func() (t [1 << 12]uint64) {
	for _, w := range strings.Fields("error errors failed failure fatal exception terminate terminated aborted abort segmentation panic traceback cannot unable refused retrying") {
		h := wordHash(w) >> 14
		t[h>>6] |= 1 << (h & 63)
	}
	return t
}()

// look reports whether a line has a word that matters, or one of a failure, and gives its shape:
// a hash of its words without those that touch a digit.
func look(line []byte) (matters, fails bool, shape uint64) {
	var h uint32
	var before byte // the byte before the word
	last := byte(0)
	shape = 14695981039346656037
	for i := 0; i <= len(line); i++ {
		var c byte
		if i < len(line) {
			c = line[i]
		}
		if l := letters[c]; l != 0 {
			if h != 0 && c < 'a' && last >= 'a' { // aB
				t := h >> 14
				matters = matters || triggers[t>>6]&(1<<(t&63)) != 0
				fails = fails || failing[t>>6]&(1<<(t&63)) != 0
				shape = (shape ^ uint64(h)) * 1099511628211
				h, before = 0, last
			} else if h == 0 {
				before = last
			}
			h = (h ^ uint32(l)) * hashFactor
		} else if h != 0 {
			t := h >> 14
			matters = matters || triggers[t>>6]&(1<<(t&63)) != 0
			fails = fails || failing[t>>6]&(1<<(t&63)) != 0
			if !digit(c) && !digit(before) {
				shape = (shape ^ uint64(h)) * 1099511628211
			}
			h = 0
		}
		last = c
	}
	return matters, fails, shape
}

// A scanner goes through one log.
type scanner struct {
	region func([]rawLine) // is called with each part that is to be read in full

	text    []byte // of the lines that are kept
	entries []entry
	base    int // the number of the first entry
	open    bool
	from    int // the region: entries
	until   int
	done    int // entries before this were read in full
	full    int // bytes read in full
	failing int // of those, in lines with words of failures alone
	skipped bool
	shapes  map[uint64]int
}

// An entry is a line that is kept.
type entry struct{ number, at, end int }

// scan reads the log to its end.
func (s *scanner) scan(r io.Reader) error {
	s.shapes = map[uint64]int{}
	in := bufio.NewReaderSize(r, bufferSize)
	for line := 1; ; {
		text, err := in.ReadSlice('\n')
		if len(text) > 0 {
			s.line(line, text)
		}
		switch {
		case err == nil:
			line++
		case errors.Is(err, bufio.ErrBufferFull):
		case err == io.EOF:
			s.finish()
			return nil
		default:
			return err
		}
	}
}

// line takes one line.
func (s *scanner) line(number int, text []byte) {
	for len(text) > maxRegionBytes/2 {
		s.line(number, text[:maxRegionBytes/2])
		text = text[maxRegionBytes/2:]
	}
	k := s.base + len(s.entries)
	s.entries = append(s.entries, entry{number, len(s.text), len(s.text) + len(text)})
	s.text = append(s.text, text...)
	matters, fails, shape := look(text)
	if fails = fails && !matters && s.failing < failingBytes; fails {
		s.failing += len(text)
	}
	if matters || fails {
		n := s.shapes[shape] + 1
		if n > 1 || len(s.shapes) < maxShapes {
			s.shapes[shape] = n
		}
		if (n <= repeatsRead || n&(n-1) == 0) && s.full < fullBytes {
			if !s.open {
				s.open, s.from = true, max(k-linesBefore, s.done, s.base)
			}
			s.until = k + linesAfter
		} else {
			s.skipped = true
		}
	}
	switch {
	case s.open && (k >= s.until || k-s.from >= maxRegionLines || len(s.text)-s.entries[s.from-s.base].at >= maxRegionBytes):
		s.flush(k + 1)
	case !s.open && len(s.text) > 2*tail+2*maxRegionBytes:
		s.drop()
	}
}

// flush reads the open region up to entry k in full.
func (s *scanner) flush(k int) {
	s.read(s.from, k)
	s.open, s.done = false, k
}

func (s *scanner) read(from, to int) {
	lines := make([]rawLine, 0, to-from)
	for _, e := range s.entries[from-s.base : to-s.base] {
		lines = append(lines, rawLine{e.number, string(s.text[e.at:e.end])})
		s.full += e.end - e.at
	}
	if len(lines) > 0 {
		s.region(lines)
	}
}

// drop forgets lines that are not of the tail.
func (s *scanner) drop() {
	n := 0
	for n < len(s.entries) && len(s.text)-s.entries[n].at > tail {
		n++
	}
	if n == 0 {
		return
	}
	cut := s.entries[n-1].end
	s.text = append(s.text[:0], s.text[cut:]...)
	s.entries = append(s.entries[:0], s.entries[n:]...)
	for i := range s.entries {
		s.entries[i].at -= cut
		s.entries[i].end -= cut
	}
	s.base += n
}

// last returns the end of the log: some lines with the last one that is not blank.
func (s *scanner) last() (lines []rawLine) {
	for _, e := range slices.Backward(s.entries) {
		text := string(s.text[e.at:e.end])
		lines = append(lines, rawLine{e.number, text})
		if strings.TrimSpace(text) != "" || len(lines) == maxRegionLines {
			break
		}
	}
	slices.Reverse(lines)
	return lines
}

// finish reads what is open, and of the tail what was not read.
func (s *scanner) finish() {
	end := s.base + len(s.entries)
	if s.open {
		s.flush(end)
	}
	most := linesAfter // the last words count, whatever they are
	if s.skipped {
		most = maxRegionLines
	}
	from := end
	for from > max(s.done, s.base) && len(s.text)-s.entries[from-1-s.base].at <= tail && end-from < most {
		from--
	}
	s.read(from, end)
}
