// Lines in colours, and text in the cells of a terminal.

package screen

import (
	"fmt"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// line is a line of the screen.
type line []span

// span is text that looks alike.
type span struct {
	text string
	look look
}

// look is how text looks on a terminal with colours. Nothing is said by looks alone.
type look struct {
	mark  int  // a colour of marks, from 1 on; 0 is the terminal's
	back  bool // the colour is that of the background
	bold  bool
	quiet bool
}

func (l line) add(text string, at look) line { return append(l, span{text, at}) }

// text returns the line without looks and blanks at its end.
func (l line) text() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.text)
	}
	return strings.TrimRight(b.String(), " ")
}

// palette is what a terminal can show.
type palette int

// The kinds of terminals. NoColours has no other attributes either.
const (
	noColours palette = iota
	colours16
	colours256
)

// marks are the colours of Okabe and Ito without black, which readers who are blind for
// some colours can tell apart, with the colour of text on each: of 256, and of 16 the
// nearest. In the latter only six differ enough.
var marks = []struct{ in256, text256, in16, text16 int }{
	{74, 16, 6, 0},  // sky blue
	{214, 16, 3, 0}, // orange
	{36, 16, 2, 0},  // bluish green
	{227, 16, 7, 0}, // yellow
	{175, 16, 5, 0}, // reddish purple
	{25, 231, 4, 7}, // blue
	{166, 16, 1, 7}, // vermilion
	{244, 16, 7, 0}, // grey: no program's
}

// greyMark is the mark of memory without a program.
const greyMark = 8

// mark returns the colour of a program's number.
func mark(number int) int { return number%(greyMark-1) + 1 }

// letters are the signs of programs, by number.
const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// letter returns the sign of a program, "*" for those beyond the letters.
func letter(number int) string {
	if number >= len(letters) {
		return "*"
	}
	return letters[number : number+1]
}

// render returns the line as a terminal takes it, at most room cells of it.
func (l line) render(room int, colours palette) string {
	var b strings.Builder
	for _, s := range l {
		text := cut(s.text, room)
		room -= width(text)
		codes := s.look.codes(colours)
		if codes != "" && text != "" {
			text = "\x1b[" + codes + "m" + text + "\x1b[m"
		}
		b.WriteString(text)
	}
	if colours == noColours {
		return strings.TrimRight(b.String(), " ")
	}
	return b.String()
}

// codes returns the parameters of "select graphic rendition".
func (l look) codes(colours palette) string {
	if colours == noColours {
		return ""
	}
	var codes []string
	if l.bold {
		codes = append(codes, "1")
	}
	if l.quiet {
		codes = append(codes, "2")
	}
	if l.mark > 0 {
		m := marks[l.mark-1]
		switch {
		case colours == colours16 && l.back:
			codes = append(codes, fmt.Sprintf("3%d;4%d", m.text16, m.in16))
		case colours == colours16:
			codes = append(codes, fmt.Sprintf("3%d", m.in16))
		case l.back:
			codes = append(codes, fmt.Sprintf("38;5;%d;48;5;%d", m.text256, m.in256))
		default:
			codes = append(codes, fmt.Sprintf("38;5;%d", m.in256))
		}
	}
	return strings.Join(codes, ";")
}

// width returns the cells of a text on a terminal: a wide character has two.
func width(s string) int { return ansi.StringWidth(s) }

// fit cuts the end off a text of more than room cells and says so by three points. A room
// of 0 has no limit.
func fit(s string, room int) string {
	switch {
	case room <= 0 || width(s) <= room:
		return s
	case room < 8:
		return cut(s, room)
	}
	return cut(s, room-3) + "..."
}

// cut returns the beginning of a text, at most room cells of it.
func cut(s string, room int) string {
	if room <= 0 {
		return ""
	}
	return ansi.Truncate(s, room, "")
}
