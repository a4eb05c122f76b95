// Package doctor reads what programs print when GPU memory runs out.
//
// [Read] turns a log into facts: one for each message that says something
// about memory, with the line it stands in and the sizes that it names, in
// bytes. It judges nothing: whether a fact is the cause of a failure is another
// step's question.
package doctor

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"unicode/utf8"
)

// A Fact is one thing that a log says, and where.
type Fact struct {
	Kind Kind
	// Line counts from 1, as editors do: lines end at a line feed.
	Line int
	// Text is the line without colour codes and log prefixes. Of a line longer
	// than MaxText bytes it is the part with the message.
	Text string
	// From is who wrote the line as far as a prefix says so: "rank3",
	// "pid=812", "worker-1" of a compose log. It tells interleaved programs apart.
	From string
	// Level is the prefix's severity: I, W, E or F, and empty without one.
	Level string
	// Device is the ordinal of the GPU and -1 if not told.
	Device int
	// PID is the process that the message is about, or else the one in the
	// prefix; 0 if not told.
	PID int
	// Nonfatal is set where the message itself says that the program goes on,
	// or is known to be an advice or a retry.
	Nonfatal bool

	// Bytes. What is not in Has is 0 and was not told.
	Want, Free, Total, Limit, InUse, Reserved, LargestFree, Allocated uint64
	Has                                                               Sizes

	// Allocator is the pool's name, such as GPU_0_bfc.
	Allocator string
	// Framework is one of jax, xla, tensorflow, torch, vllm, cupy, rmm,
	// llama.cpp and empty where a message is common to several.
	Framework string
	// Version, Code (a status such as CUDA_ERROR_OUT_OF_MEMORY), Name and
	// Value are what the Kind says they are.
	Version, Code, Name, Value string
}

// Sizes is a set of the sizes of a Fact.
type Sizes uint

// The sizes that a message may tell.
const (
	HasWant Sizes = 1 << iota
	HasFree
	HasTotal
	HasLimit
	HasInUse
	HasReserved
	HasLargestFree
	HasAllocated
)

// Tells says whether all sizes of set are told.
func (f *Fact) Tells(set Sizes) bool { return f.Has&set == set }

// MaxText is the longest Text of a Fact in bytes.
const MaxText = 300

const (
	// bufferSize is the longest piece of a line that is looked at as one.
	bufferSize = 256 << 10
	// margin is how far a message may reach before and after its anchor. Pieces
	// of a longer line overlap by twice as much, so that each message is whole
	// in one of them.
	margin = 2 << 10
)

// Read calls found for each fact in the log r, in the order of lines and, in
// a line, of places. It goes through r once and keeps no more than a buffer.
// Colour codes, carriage returns, log prefixes, lines of any length and bytes
// of any kind are allowed. In a line of up to 256 KiB, a message in JSON is read as
// if its text stood in the log, and so is what a literal "\n" divides, as in Python's
// repr of an error; all of it has that line's number. The error is that of r,
// other than its end.
func Read(r io.Reader, found func(Fact)) error {
	in := bufio.NewReaderSize(r, bufferSize)
	s := scanner{found: found, seen: map[string]bool{}, tries: make([]int, len(patterns)), repeats: make([]int, len(patterns))}
	var piece []byte // of a line longer than the buffer
	for line := 1; ; line++ {
		text, err := in.ReadSlice('\n')
		if !errors.Is(err, bufio.ErrBufferFull) {
			s.scan(place{line: line}, text, 0, len(text))
		} else {
			piece = append(piece[:0], text...)
			from := 0
			for errors.Is(err, bufio.ErrBufferFull) {
				s.scan(place{line: line}, piece, from, len(piece)-margin)
				from = margin
				piece = append(piece[:0], piece[len(piece)-2*margin:]...)
				text, err = in.ReadSlice('\n')
				piece = append(piece, text...)
			}
			s.scan(place{line: line}, piece, from, len(piece))
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// A scanner finds the facts of one log.
type scanner struct {
	found func(Fact)
	// seen holds what is reported once: versions, libraries, frameworks. It
	// stops growing at maxSeen.
	seen map[string]bool
	// repeats counts, by pattern, what was reported before. A pattern that says
	// nothing new maxRepeats times is not tried again: it is a log's prefix.
	repeats []int
	hits    []hit
	// tries counts, by pattern, how often each was tried in the line.
	tries []int
	// texts counts the lines, and those of messages in them.
	texts int
	// smiDevice is the GPU that the row of an nvidia-smi table in smiText names.
	smiDevice, smiText int
	// What messages needs at each depth: where the keys are, and a message.
	keys     [maxNested][]int
	unquoted [maxNested][]byte
}

// maxTries bounds the work for a line that is made of anchors: a pattern is
// tried no more often in it, or in each piece of a line longer than the buffer.
// A pattern that reads the line from its beginning gets fewer.
const (
	maxTries     = 200
	maxLineTries = 4
	maxRepeats   = 1000
)

// maxSeen bounds what is remembered of a log that names a new version in every line.
const maxSeen = 1000

// scan reports the facts whose anchor begins at text[from:to].
func (s *scanner) scan(at place, text []byte, from, to int) {
	s.texts++
	text = bytes.TrimRight(text, "\r\n")
	if bytes.IndexByte(text, 0x1b) >= 0 {
		// The margins move with what is cut away before them.
		from, to = len(uncolour(text[:min(from, len(text))])), len(uncolour(text[:min(to, len(text))]))
		text = uncolour(text)
	}
	s.hits = anchors.find(text, s.hits[:0])
	if len(s.hits) == 0 || from == 0 && to >= len(text) && (s.messages(at, text) || s.parts(at, text)) {
		return
	}
	s.report(at, text, from, to)
}

// plain reports the facts of a text without looking for messages in it.
func (s *scanner) plain(at place, text []byte) {
	s.hits = anchors.find(text, s.hits[:0])
	if len(s.hits) > 0 {
		s.report(at, text, 0, len(text))
	}
}

// report reports the facts at s.hits.
func (s *scanner) report(at place, text []byte, from, to int) {
	clear(s.tries)
	var p prefix
	parsed := false
	end := 0 // of the last message; those within it are part of it
	for _, h := range s.hits {
		if h.pattern == messageKey {
			continue
		}
		m := &patterns[h.pattern]
		if h.at < from || h.at >= to || h.at < end && !m.within || s.repeats[h.pattern] >= maxRepeats {
			continue
		}
		s.tries[h.pattern]++
		if n := s.tries[h.pattern]; n > maxTries || m.line && n > maxLineTries {
			continue
		}
		f, first, last, ok := m.match(text, h.at)
		if !ok || first < end && !m.within {
			continue
		}
		if !parsed {
			p, parsed = parsePrefix(text), true
			p.or(at.before)
		}
		// A path within a prefix is no message, and the reason that a backend could not
		// be had is one of its own.
		if m.kind != Loaded && m.kind != Backend {
			end = max(end, last)
		}
		f.Line, f.From, f.Level = at.line, p.from, p.level
		if f.PID == 0 {
			f.PID = p.pid
		}
		f.Text = excerpt(text, p.length, h.at, first, last)
		s.smi(&f)
		if m.once && s.known(&f) {
			s.repeats[h.pattern]++
			continue
		}
		s.found(f)
	}
}

// smi carries the GPU's number from the first row of an nvidia-smi table's
// entry to the second, which has the memory.
func (s *scanner) smi(f *Fact) {
	switch {
	case f.Kind == SmiGPU:
		s.smiDevice, s.smiText = f.Device, s.texts
	case f.Kind == SmiMemory && s.smiText > 0 && s.texts == s.smiText+1:
		f.Device = s.smiDevice
	}
}

// known says whether the same was reported before.
func (s *scanner) known(f *Fact) bool {
	key := strings.Join([]string{string(f.Kind), f.Framework, f.Name, f.Version, f.Value, f.From}, "\x00")
	if s.seen[key] {
		return true
	}
	if len(s.seen) < maxSeen {
		s.seen[key] = true
	}
	return false
}

// excerpt is what a Fact quotes of a line: all behind the prefix if that is
// short enough, else MaxText bytes from the message on.
func excerpt(text []byte, prefix, anchor, first, last int) string {
	if anchor < prefix {
		// The message is known by a part of the prefix.
		prefix = 0
	}
	from := prefix
	if len(text)-prefix > MaxText && last-prefix > MaxText {
		from = max(first, prefix)
	}
	to := min(len(text), from+MaxText)
	// A letter of several bytes is not cut in two.
	for i := 0; i < utf8.UTFMax && from < to && from > 0 && !utf8.RuneStart(text[from]); i++ {
		from++
	}
	for i := 0; i < utf8.UTFMax && to > from && to < len(text) && !utf8.RuneStart(text[to]); i++ {
		to--
	}
	return string(bytes.TrimSpace(text[from:to]))
}
