package vocabulary

import (
	"slices"
	"strings"
)

// By is what of a row a line has.
type By uint8

// The ways to find a row.
const (
	ByName By = iota
	ByText
	ByNumber
)

// String names the way.
func (b By) String() string { return [...]string{"name", "text", "number"}[b] }

// Hit is a place in a text where a row is meant.
type Hit struct {
	Row     *Row
	Others  []*Row // other rows with the same text or number, if the line does not tell whose it is
	At, End int
	By      By
}

// Find returns the rows that a text means, in its order. Each line is read by itself.
func Find(text string) []Hit {
	s := scanner{ix: theIndex(), text: text}
	for at := 0; at < len(text); {
		end := len(text)
		if i := strings.IndexByte(text[at:], '\n'); i >= 0 {
			end = at + i
		}
		s.line(at, end)
		at = end + 1
	}
	return s.hits
}

// A token is a word of a line.
type token struct {
	at, end int
	*entry         // nil if it is no word of ours
	calls   uint64 // the families of the function that it is
}

// A find is a hit that may have to wait for the end of its line.
type find struct {
	rows    []*Row
	at, end int
	by      By
	weak    bool
}

// scanner reads lines.
type scanner struct {
	ix    *index
	text  string
	toks  [8]token // the last words
	n     int      // words of the line so far
	start int      // of the line
	told  uint64   // families that the line tells
	finds []find
	hits  []Hit
}

// line reads text[at:end].
func (s *scanner) line(at, end int) {
	s.start, s.n, s.told, s.finds = at, 0, 0, s.finds[:0]
	past := at // where the last text ends
	for i := at; i < end; {
		if !isWord(s.text[i]) {
			i++
			continue
		}
		t := token{at: i, end: wordEnd(s.text[:end], i)}
		i = t.end
		if isDigit(s.text[t.at]) {
			s.toks[s.n%len(s.toks)] = t
			s.n++
			s.number(t, end)
			continue
		}
		t.entry, t.calls = s.ix.look(s.text[t.at:t.end])
		s.toks[s.n%len(s.toks)] = t
		s.n++
		s.told |= t.calls
		if t.entry == nil {
			continue
		}
		s.told |= t.told
		if t.at < past {
			continue // a word of a text that was found
		}
		s.name(t, end)
		if stop := s.phrase(t, end); stop > 0 {
			past = stop
		}
		if t.end-t.at == 3 && strings.EqualFold(s.text[t.at:t.end], "xid") {
			s.xid(t, end)
		}
	}
	s.judge()
}

// look finds a word in any case, and whether it is a function of a family.
func (ix *index) look(word string) (e *entry, calls uint64) {
	var low [72]byte
	if len(word) > len(low) {
		return nil, 0
	}
	upper := 0 // where the first upper-case letter after the beginning is
	for i := 0; i < len(word); i++ {
		c := word[i]
		if isUpper(c) {
			c += 'a' - 'A'
			if upper == 0 && i > 0 && isLower(word[i-1]) {
				upper = i
			}
		}
		low[i] = c
	}
	e = ix.words[string(low[:len(word)])]
	if upper == 0 || e != nil && e.told != 0 { // cuDNN is no function
		return e, 0
	}
	calls = ix.calls[word[:upper]]
	if word[0] == 'N' && len(word) > 5 { // NvEnc and NvMap
		calls |= ix.calls[word[:5]]
	}
	return e, calls
}

// name finds a name as it is written.
func (s *scanner) name(t token, end int) {
	for i := range t.names {
		n := &t.names[i]
		if n.text != s.text[t.at:t.end] || s.zero(t.at, t.end, end) {
			continue
		}
		bit := uint64(1) << s.ix.family[n.row.Family]
		strict := !n.weak || n.row.Family == "absl" && strings.HasPrefix(s.text[t.end:end], ": ")
		if strict {
			s.told |= bit
		}
		s.finds = append(s.finds, find{rows: []*Row{n.row}, at: t.at, end: t.end, weak: !strict})
	}
}

// phrase finds the longest text that begins with the word, and returns where it ends.
func (s *scanner) phrase(t token, end int) int {
	for _, p := range t.phrases {
		stop := t.at + len(p.text)
		if stop > end || stop < end && isWord(s.text[stop]) && isWord(s.text[stop-1]) || !strings.EqualFold(s.text[t.at:stop], p.text) {
			continue
		}
		if wordEnd(p.text, 0) == len(p.text) && !s.alone(t, p, end) || s.zero(t.at, stop, end) {
			continue
		}
		s.finds = append(s.finds, find{rows: p.rows, at: t.at, end: stop, by: ByText, weak: p.weak})
		return stop
	}
	return 0
}

// alone reports whether a text of one word, such as Killed, is what a shell or a C library
// writes: after the shell's own words, and at the end of the line or before the command.
func (s *scanner) alone(t token, p *phrase, end int) bool {
	if p.weak {
		return true
	}
	before := strings.TrimRight(s.text[s.start:t.at], " ")
	return s.shellCase(t, before) && endsShellPrefix(before, t.at-s.start-len(before)) && startsCommand(s.text[t.end:end])
}

// shellCase reports whether the word is in the case that shells write: zsh alone in lower.
func (s *scanner) shellCase(t token, before string) bool {
	return isUpper(s.text[t.at]) || strings.HasSuffix(before, "sh:")
}

// endsShellPrefix reports whether the text is nothing, or a shell's "[1]+", "line 4: 77" or
// "zsh:", with so many spaces after it.
func endsShellPrefix(text string, spaces int) bool {
	if text == "" {
		return true
	}
	last := text[len(text)-1]
	return strings.IndexByte("+-0123456789", last) >= 0 || last == ':' && spaces == 1
}

// startsCommand reports whether the text is nothing, or begins as a shell writes a command.
func startsCommand(text string) bool {
	text = strings.TrimRight(text, ".\r ")
	return text == "" || strings.HasPrefix(text, "  ") || strings.HasPrefix(text, " (core dumped)")
}

// zero reports whether the words between from and to count nothing.
func (s *scanner) zero(from, to, end int) bool {
	return Denied(s.text[s.start:end], from-s.start, to-s.start)
}

// judge turns the finds of a line into hits.
func (s *scanner) judge() {
	slices.SortStableFunc(s.finds, func(a, b find) int { return a.at - b.at })
	for _, f := range s.finds {
		var rows []*Row
		for _, r := range f.rows {
			if s.told&(1<<s.ix.family[r.Family]) != 0 {
				rows = append(rows, r)
			}
		}
		if rows == nil {
			if f.weak {
				continue
			}
			rows = f.rows
		}
		h := Hit{Row: rows[0], At: f.at, End: f.end, By: f.by}
		if len(rows) > 1 {
			h.Others = rows[1:]
		}
		s.hits = append(s.hits, h)
	}
}
