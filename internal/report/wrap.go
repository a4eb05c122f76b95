package report

import (
	"strings"
	"unicode/utf8"
)

// Wrap breaks a line at blanks so that no line has more than width characters,
// unless a single word has. The lines after the first are indented by two
// blanks more than the first. There is no line break at the end.
func Wrap(line string, width int) string { return wrap(line, width, false) }

// Fold is Wrap for words that may be longer than a line, such as paths and calls: they go
// on in the next one, and nothing of them is lost.
func Fold(line string, width int) string { return wrap(line, width, true) }

func wrap(line string, width int, fold bool) string {
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
		for most := max(width-len(first)-2, 1); fold && n > most; n = utf8.RuneCountInString(word) {
			room := width - used - blanks
			if room < min(most, 8) { // too little for a piece that can be read
				b.WriteString("\n" + first + "  ")
				blanks, room = 0, most
			}
			piece := head(word, room)
			b.WriteString(strings.Repeat(" ", blanks) + piece)
			word = word[len(piece):]
			used, blanks, empty = width, 0, false
		}
		if word == "" {
			continue
		}
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

// head returns what of a word goes into a line of room characters: it ends behind a mark
// between two parts of the word if there is one in its second half.
func head(word string, room int) string {
	at, cut := 0, 0
	for i, r := range word {
		if at == room {
			if cut == 0 {
				cut = i
			}
			break
		}
		if at++; 2*at > room && strings.ContainsRune("/\\,;:=&?)(|", r) {
			cut = i + 1
		}
	}
	return word[:cut]
}
