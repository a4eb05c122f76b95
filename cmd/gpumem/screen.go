package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/term"

	"gpumem/internal/report"
	"gpumem/policy"
	"gpumem/size"
)

// The width of standard output, set by main before a command runs. Tests have what a
// pipe has.
var (
	// textWidth is where sentences are broken: at the screen's edge, but no further than
	// sentences are read with ease.
	textWidth = 80
	// screenWidth is where rows of tables are broken; 0 unless the output is a terminal.
	screenWidth = 0
)

// measureScreen sets the widths: those of $COLUMNS, else those of the terminal f, if it
// is one.
func measureScreen(f *os.File) {
	width, err := strconv.Atoi(os.Getenv("COLUMNS"))
	if err != nil && term.IsTerminal(f.Fd()) {
		width, _, err = term.GetSize(f.Fd())
	}
	if err == nil && width > 0 {
		screenWidth = max(width, 20)
		textWidth = min(screenWidth, 100)
	}
}

// A text is an answer for people: lines in sections, broken at textWidth.
type text struct {
	report.Text
	env  policy.Environment // of the variables in entries
	name string             // of the last entry
}

// place adds a line about some bytes, and below it where they come from, as far as known.
func (t *text) place(bytes uint64, what, from string) {
	t.Raw(report.Fit(fmt.Sprintf("  %10s  %s", size.Format(bytes), what), textWidth))
	if from = report.OneLine(from); from != "" {
		t.Raw("              " + tailOf(from, textWidth-14))
	}
}

// tailOf returns the end of a text that is too long: the end of an operation's name says most.
func tailOf(text string, n int) string {
	if r := []rune(text); len(r) > n && n > 3 {
		return "..." + string(r[len(r)-n+3:])
	}
	return text
}

// section begins one; without lines it does not show.
func (t *text) section(title string) {
	t.name = ""
	t.Section(title)
}

// entry says something about a variable; its name and value stand above the text
// first.
func (t *text) entry(name, about string) {
	if name != t.name {
		t.name = name
		head := report.OneLine(name)
		if value, set := t.env.Lookup(name); set {
			head += "=" + readable(value)
		}
		t.Raw(report.Shorten("  "+head, textWidth))
	}
	t.Line("    %s", about)
}

// readable returns a value as it is where it can be read, and else in quotes.
func readable(value string) string {
	strange := func(r rune) bool { return !unicode.IsPrint(r) }
	if value == "" || !utf8.ValidString(value) || strings.TrimSpace(value) != value || strings.ContainsFunc(value, strange) {
		return strconv.Quote(value)
	}
	return value
}

// printText writes the text that lines writes.
func printText(w io.Writer, lines func(*text)) error {
	t := &text{Text: report.Text{Width: textWidth, Screen: screenWidth}}
	lines(t)
	_, err := io.WriteString(w, t.String())
	return err
}

func encode(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
