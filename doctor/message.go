package doctor

// Messages in lines of JSON, as collectors write them: Docker's json-file and
// Kubernetes ({"log":"...\n","stream":"stderr"}), Google's Cloud Logging
// ({"textPayload":"..."}), journalctl -o json, and programs that log so
// themselves. Such a message may be a line of JSON again.

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// messageKeys are the keys of messages, each with its colon. They are anchors,
// as the words of the patterns are, so that other logs are read no slower.
var messageKeys = []string{`"log":`, `"message":`, `"MESSAGE":`, `"msg":`, `"textPayload":`, `"event":`, `"error":`,
	`"exception":`, `"exc_info":`, `"stack_trace":`, `"stacktrace":`, `"traceback":`}

// messageKey stands in a hit where others have the number of a pattern.
const messageKey = -1

// maxNested is how deep messages are looked for in messages.
const maxNested = 3

// A place says where a text stands.
type place struct {
	line   int
	nested int    // in how many messages
	before []byte // what the line begins with, if not the text
}

// messages scans the messages of text at the keys in s.hits, each of their lines
// as a text of its own, and what stands between them as it is. It says
// false where no key has a message.
func (s *scanner) messages(at place, text []byte) bool {
	if at.nested == maxNested {
		return false
	}
	keys := s.keys[at.nested][:0]
	for _, h := range s.hits {
		if h.pattern == messageKey {
			keys = append(keys, h.at)
		}
	}
	s.keys[at.nested] = keys
	inner := place{line: at.line, nested: at.nested + 1, before: at.before}
	done := 0 // how much of text has been scanned
	for _, key := range keys {
		if key < done {
			continue // in the message before
		}
		quote := key + bytes.IndexByte(text[key:], ':') + 1
		for quote < len(text) && text[quote] == ' ' {
			quote++
		}
		if quote == len(text) || text[quote] != '"' {
			continue
		}
		if done == 0 {
			s.texts-- // it is the messages that count
			if at.nested == 0 {
				inner.before = text[:key]
			}
		}
		s.plain(at, text[done:key])
		message := s.unquoted[at.nested][:0]
		message, done = unquote(message, text, quote+1)
		s.unquoted[at.nested] = message
		for len(message) > 0 {
			var one []byte
			one, message, _ = bytes.Cut(message, []byte("\n"))
			s.scan(inner, one, 0, len(one))
		}
	}
	if done > 0 {
		s.plain(at, text[done:])
	}
	return done > 0
}

// literalBreak is how strings of most languages write the end of a line.
var literalBreak = []byte(`\n`)

// parts scans what literal breaks divide text into. It says false without any.
func (s *scanner) parts(at place, text []byte) bool {
	part, rest, more := bytes.Cut(text, literalBreak)
	if !more {
		return false
	}
	s.plain(at, part)
	if at.before == nil {
		at.before = text
	}
	for more {
		part, rest, more = bytes.Cut(rest, literalBreak)
		s.texts++
		s.plain(at, part)
	}
	return true
}

// unquote adds the JSON string that begins at text[from:], without its quotes, to
// out, and says where it ends. What is no escape of JSON stays as it is.
func unquote(out, text []byte, from int) ([]byte, int) {
	for {
		n := bytes.IndexAny(text[from:], `"\`)
		if n < 0 {
			return append(out, text[from:]...), len(text) // cut off
		}
		out = append(out, text[from:from+n]...)
		from += n + 1
		if text[from-1] == '"' {
			return out, from
		}
		if from == len(text) {
			return append(out, '\\'), from
		}
		c := text[from]
		from++
		switch c {
		case '"', '\\', '/':
			out = append(out, c)
		case 'n':
			out = append(out, '\n')
		case 't':
			out = append(out, '\t')
		case 'r':
			out = append(out, '\r')
		case 'b', 'f':
			out = append(out, ' ')
		case 'u':
			r, ok := fourDigits(text[from:])
			if !ok {
				out = append(out, `\u`...)
				break
			}
			from += 4
			if utf16.IsSurrogate(r) {
				var low rune
				if next, more := bytes.CutPrefix(text[from:], []byte(`\u`)); more {
					low, _ = fourDigits(next)
				}
				if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
					from += len(`\u0000`)
				}
			}
			out = utf8.AppendRune(out, r)
		default:
			out = append(out, '\\', c)
		}
	}
}

// fourDigits reads what stands behind \u.
func fourDigits(text []byte) (rune, bool) {
	if len(text) < 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(text[:4]), 16, 16)
	return rune(n), err == nil
}
