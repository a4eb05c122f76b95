package input

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxQuote is how much of a damaged line or name an error shows, in bytes.
const maxQuote = 40

// Quote shows input in a message: quoted, cut short, never a control character.
func Quote[T string | []byte](s T) string {
	if len(s) <= maxQuote {
		return strconv.Quote(string(s))
	}
	return strconv.Quote(cutRunes(string(s[:maxQuote+1]), maxQuote)) + "..."
}

// Cut returns s, or its first n bytes and "..." if it is longer. It never cuts within a
// character if s is UTF-8. n is at least utf8.UTFMax.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return cutRunes(s, n) + "..."
}

func cutRunes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for back := range utf8.UTFMax {
		if utf8.RuneStart(s[n-back]) {
			return s[:n-back]
		}
	}
	return s[:n]
}

// Printable returns s on one line: control characters become blanks and bytes that are
// not UTF-8 a question mark.
func Printable(s string) string {
	s = strings.ToValidUTF8(s, "?")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}

// IsPrintable reports whether s is text without anything that a terminal would act on.
func IsPrintable(s []byte) bool {
	return bytes.IndexFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f || r == utf8.RuneError }) < 0
}

// FirstLine returns the first line of text that is neither blank nor a comment, without
// blanks around it, and its number from 1; nil if there is none.
func FirstLine(text []byte) ([]byte, int) {
	text = bytes.TrimPrefix(text, utf8BOM)
	for n := 1; len(text) > 0; n++ {
		line, rest, _ := bytes.Cut(text, []byte{'\n'})
		line = bytes.Trim(line, " \t\r")
		if len(line) > 0 && line[0] != '#' {
			return line, n
		}
		text = rest
	}
	return nil, 0
}

// And joins words as people do: "a, b and c".
func And(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}
