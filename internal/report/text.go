package report

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// plain returns s with ? for what a terminal obeys instead of printing it, and for what
// changes the direction of text; blanks and the ends of lines stay.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		if unicode.Is(unicode.Cf, r) || unicode.IsControl(r) {
			return '?'
		}
		return r
	}, s)
}

// OneLine makes one printable line of a message, whatever it quotes.
func OneLine(s string) string {
	var lines []string
	for _, l := range strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }) {
		if l = strings.TrimSpace(l); l != "" {
			lines = append(lines, l)
		}
	}
	return printable(strings.ReplaceAll(strings.Join(lines, "; "), "?; ", "? "))
}

// printable returns s with ? for what a terminal obeys instead of printing it.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) && r != ' ' {
			return '?'
		}
		return r
	}, s)
}

// Fit cuts the end off a line of more than width characters. A width of 0 has no limit.
func Fit(line string, width int) string {
	if width <= 0 || utf8.RuneCountInString(line) <= width {
		return line
	}
	if width < 8 {
		return string([]rune(line)[:width])
	}
	return string([]rune(line)[:width-3]) + "..."
}

// Shorten takes the middle out of a text of more than width characters.
func Shorten(s string, width int) string {
	r := []rune(s)
	if len(r) <= width {
		return s
	}
	front := (width - 3) / 2
	return string(r[:front]) + "..." + string(r[len(r)-(width-3-front):])
}

// Plural returns word for 1, else its plural.
func Plural(n uint64, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

// Counted returns a number and what it counts: "1 chunk", "1,234 chunks".
func Counted(n uint64, word string) string { return Count(n) + " " + Plural(n, word) }

// ShellQuote returns a word that a shell reads as s.
func ShellQuote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./:,=%+@", r)
	}
	if s != "" && strings.TrimFunc(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Text is lines in sections. Width is that of a sentence, and Screen that of the terminal, 0 if there
// is none.
type Text struct {
	Width, Screen int

	b    strings.Builder
	head string // of the section that has no lines yet
}

// Section begins one. It does not show without lines; without a title it is a blank
// line.
func (t *Text) Section(title string) {
	t.head = "\n"
	if title != "" {
		t.head += title + "\n"
	}
}

// Line adds a line, wrapped where it is too long.
func (t *Text) Line(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
	t.Raw(Fold(indent+OneLine(line), t.Width))
}

// Fact adds a line that is broken on a screen only: scripts look for it.
func (t *Text) Fact(format string, args ...any) {
	line := OneLine(fmt.Sprintf(format, args...))
	if t.Screen > 0 {
		line = Wrap(line, t.Screen)
	}
	t.Raw(line)
}

// Table adds a table.
func (t *Text) Table(tab *Table) {
	var b strings.Builder
	_, _ = tab.Fit(t.Screen).WriteTo(&b) // a Builder takes everything
	t.Raw(strings.TrimSuffix(b.String(), "\n"))
}

// Raw adds a line, or several, as they are, but for what a terminal obeys instead of printing
// it.
func (t *Text) Raw(line string) {
	t.b.WriteString(t.head + plain(line) + "\n")
	t.head = ""
}

// String returns the lines.
func (t *Text) String() string { return t.b.String() }
