package report

import (
	"strings"
	"unicode/utf8"
)

// Wrap breaks a line at blanks so that no line has more than width characters,
// unless a single word has. The lines after the first are indented by two
// blanks more than the first. There is no line break at the end.
func Wrap(line string, width int) string {
	text := strings.TrimLeft(line, " ")
	first := line[:len(line)-len(text)]
	var b strings.Builder
	b.WriteString(first)
	used := len(first) // characters in the current line
	empty := true      // it has no word yet
	for text != "" {
		// A word with the blanks before it; they are kept inside a line, where
		// they may align columns.
		word := strings.TrimLeft(text, " ")
		blanks := len(text) - len(word)
		if i := strings.IndexByte(word, ' '); i >= 0 {
			word = word[:i]
		}
		if word == "" {
			break
		}
		text = text[blanks+len(word):]
		n := utf8.RuneCountInString(word)
		if !empty && used+blanks+n > width {
			b.WriteString("\n" + first + "  ")
			used, blanks = len(first)+2, 0
		}
		b.WriteString(strings.Repeat(" ", blanks) + word)
		used += blanks + n
		empty = false
	}
	return b.String()
}
