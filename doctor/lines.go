package doctor

// Text as it is pasted. A message may come wrapped at any width, with a prefix before
// each piece, escaped for Markdown, HTML or JSON, and between lines of other programs.
// Here a region of a log becomes texts again: escapes are undone, the prefixes that
// all lines have are taken off, lines of one program are put together, and lines that
// were one are joined.
//
// A wrapped text shows its width: no line is longer, and a line that was broken is so
// long that what follows would not have fitted. Joining two lines too many does little
// harm, since what a number means is told by the words nearest to it; joining one too
// few cuts a sentence.

import (
	"encoding/json"
	"html"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// A passage is a text that was one line when the program wrote it.
type passage struct {
	line  int // where it begins
	text  string
	head  string // the file and level that a logger put before it
	from  string // who wrote it, by a prefix: rank3, pid=812
	level string // I, W, E or F; empty if unknown
	pid   int
}

// piece is a line on its way to a passage.
type piece struct {
	line   int
	text   string
	prefix prefix
	bare   string // its prefix as it stands
}

var (
	markdown = regexp.MustCompile(`\\([_*\[\]<>#{}().!|~` + "`" + `-])`)
	lineTag  = regexp.MustCompile(`(?i)<br ?/?>|</?(?:p|div|pre|code|span)\b[^<>]{0,100}>`)
	// header is how a logger's own line begins, wherever it stands.
	header = regexp.MustCompile(`(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWEF] |\b[IWEF]\d{4} \d\d:\d\d:\d\d(?:\d{6,})?\.\d+ +\d+ )[\w./+-]+:\d+\] ?|\b[IWEF] [\w./+-]+\.(?:cc|cu|h|cpp|py):\d+\] |\[[A-Z]{4,}[\w-]*\]\[|\b(?:\w+\.)*[A-Z]\w*(?:Error|Exception): [A-Z]`)
	starts = regexp.MustCompile(`^(?:` + header.String() + `|[IWEF] [\w./+-]+:\d+\]|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|\d\d:\d\d:\d\d|\d{4}/\d\d/\d\d|\w+=\S+ \w+=|\*\* \(|[A-Z]\w{2,}: +[\d'"]|(?:RESOURCE_EXHAUSTED|INTERNAL|UNKNOWN|FAILED_PRECONDITION|INVALID_ARGUMENT): |Traceback |\[[A-Za-z][\w-]*[\]\s]|[a-z]\w*_\w+: |\((?:[\w.:=\[\]-]+ )*pid=\d+|\S*(?:Error|Exception): |(?:During|The above) )`)
)

// typography is what chats and word processors make of blanks and quotes.
var typography = strings.NewReplacer("\u00a0", " ", "\u202f", " ", "\u2007", " ", "\u3000", " ", "\u200b", "", "\ufeff", "", "\u2018", "'", "\u2019", "'", "\u201c", "\"", "\u201d", "\"", "\u2013", "-", "\u2014", "-", "\u2026", "...")

// passages are the texts of a region.
func passages(lines []rawLine) (out []passage) {
	var pieces []piece
	for _, l := range lines {
		for _, text := range unescaped(l.text, 0) {
			pieces = append(pieces, piece{line: l.number, text: text})
		}
	}
	for range 3 {
		if !peel(pieces) {
			break
		}
	}
	// Lines of one program are read together.
	var order []string
	groups := map[string][]piece{}
	for _, p := range pieces {
		if _, ok := groups[p.prefix.from]; !ok {
			order = append(order, p.prefix.from)
		}
		groups[p.prefix.from] = append(groups[p.prefix.from], p)
	}
	for _, from := range order {
		out = append(out, joined(groups[from])...)
	}
	slices.SortStableFunc(out, func(a, b passage) int { return a.line - b.line })
	return out
}

// unescaped is a line as its program wrote it, or the lines that it holds.
func unescaped(text string, depth int) []string {
	text = strings.TrimRight(text, "\r\n\x00")
	if strings.IndexByte(text, 0x1b) >= 0 {
		text = string(uncolour([]byte(text)))
	}
	if depth < maxNested && strings.Contains(text, `":`) {
		if inner, rest, ok := jsonMessages(text); ok {
			var out []string
			for _, m := range inner {
				for l := range strings.Lines(m) {
					out = append(out, unescaped(l, depth+1)...)
				}
			}
			return append(out, rest)
		}
	}
	if strings.Contains(text, `\n`) {
		var out []string
		for _, l := range strings.Split(text, `\n`) {
			out = append(out, unescaped(l, maxNested)...)
		}
		return out
	}
	if trimmed := strings.TrimSpace(text); len(trimmed) > 2 && trimmed[0] == '`' && trimmed[len(trimmed)-1] == '`' {
		text = trimmed[1 : len(trimmed)-1]
	}
	if strings.IndexByte(text, '\\') >= 0 {
		text = markdown.ReplaceAllString(text, "$1")
	}
	if strings.IndexByte(text, '<') >= 0 && lineTag.MatchString(text) {
		var out []string
		for _, l := range lineTag.Split(text, -1) {
			if strings.TrimSpace(l) != "" {
				out = append(out, html.UnescapeString(l))
			}
		}
		return out
	}
	if strings.IndexByte(text, '&') >= 0 {
		text = html.UnescapeString(text)
	}
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "?")
	}
	return []string{typography.Replace(text)}
}

// peel takes one prefix off all pieces if nearly all have one of its kind, and reports
// whether it did.
func peel(pieces []piece) bool {
	count := make([]int, len(prefixes))
	kinds := make([]int, len(pieces))
	lengths := make([]int, len(pieces))
	parsed := make([]prefix, len(pieces))
	texts := 0
	for i := range pieces {
		kinds[i] = -1
		if strings.TrimSpace(pieces[i].text) == "" {
			continue
		}
		texts++
		kinds[i], lengths[i] = parsed[i].one(pieces[i].text)
		if kinds[i] >= 0 {
			count[kinds[i]]++
		}
	}
	best := -1
	for k, n := range count {
		need := texts * 6 / 10
		if n > 0 && n >= need && !prefixes[k].header && (best < 0 || n > count[best]) {
			best = k
		}
	}
	if best < 0 {
		return false
	}
	for i := range pieces {
		if kinds[i] == best {
			p := &pieces[i]
			p.bare += p.text[:lengths[i]]
			p.text = p.text[lengths[i]:]
			p.prefix.or(parsed[i])
		}
	}
	return true
}

// minWidth and maxWidth are between what widths a text is taken for wrapped.
const minWidth, maxWidth = 40, 230

// joined puts lines that were one together.
func joined(pieces []piece) (out []passage) {
	// A word that is longer than the width has a line for itself.
	width, longest := 0, 0
	for i := range pieces {
		n := utf8.RuneCountInString(strings.TrimRight(pieces[i].text, " "))
		longest = max(longest, n)
		if !oneWord(pieces[i].text) {
			width = max(width, n)
		}
	}
	if width < minWidth {
		width = longest
	}
	exact := 0 // lines that are as long as the longest, with a line after them
	soft := 0  // shorter ones that break between words
	ends := 0  // lines that are as long as the longest, and whole
	seen := map[string]bool{}
	for i := 0; i+1 < len(pieces); i++ {
		if seen[pieces[i].text] {
			continue // what is said twice shows no more
		}
		seen[pieces[i].text] = true
		if starts.MatchString(pieces[i+1].text) && utf8.RuneCountInString(pieces[i].text) == width {
			ends++
		}
		switch breaks(&pieces[i], &pieces[i+1], width) {
		case 2:
			exact++
		case 1:
			soft++
		}
	}
	if ends > 0 && ends >= exact {
		width = 0 // it is not that of a page
	}
	var b strings.Builder
	for i := 0; i < len(pieces); {
		first := &pieces[i]
		b.Reset()
		b.WriteString(first.text)
		i++
		for ; i < len(pieces); i++ {
			before, next := &pieces[i-1], &pieces[i]
			kind := breaks(before, next, width)
			if kind == 0 || exact+soft <= 1 && endsWith(before.text, ".!?") && !digit(next.text[0]) {
				break
			}
			glue := kind == 2 && (exact > soft && !known(before.text, next.text) || inOne(before.text, next.text))
			if kind == 2 && exact <= 1 && soft <= 1 {
				glue = inOne(before.text, next.text)
			}
			if !glue && !strings.HasSuffix(before.text, "-") && !strings.HasSuffix(before.text, " ") {
				b.WriteByte(' ')
			}
			b.WriteString(next.text)
		}
		out = append(out, divided(passage{line: first.line, text: b.String()}, first.prefix)...)
	}
	return out
}

// breaks reports whether next may be the rest of a line that was broken at a width: 2 if
// the line before is just that long, 1 if its next word would not have fitted, else 0.
func breaks(before, next *piece, width int) int {
	if strings.HasPrefix(strings.TrimLeft(next.text, " "), ": ") {
		return 1 // a label's number
	}
	if width < minWidth || width > maxWidth || next.text == "" || starts.MatchString(next.text) {
		return 0
	}
	n := utf8.RuneCountInString(before.text)
	if n == width || n == width+1 && strings.HasSuffix(before.text, " ") {
		return 2
	}
	if n > width && oneWord(before.text) {
		return 1
	}
	word, _, _ := strings.Cut(strings.TrimLeft(next.text, " "), " ")
	if (n > width/2 || len(word) > width/2) && n+1+utf8.RuneCountInString(word) > width && !strings.HasPrefix(next.text, " ") {
		return 1
	}
	if n >= minWidth && dangling.MatchString(before.text) {
		return 1
	}
	return 0
}

// dangling is the end of a line that no sentence ends with.
var dangling = regexp.MustCompile(`\b(?:is less|than|to allocate|of|to|the|which is)$`)

func oneWord(text string) bool { return !strings.Contains(strings.TrimSpace(text), " ") }

// endsWith reports whether a text ends with one of these marks.
func endsWith(text, marks string) bool {
	return text != "" && strings.IndexByte(marks, text[len(text)-1]) >= 0
}

// inOne reports whether two pieces break within a word or a number, as far as their
// letters tell.
func inOne(a, b string) bool {
	i := len(a)
	for i > 0 && (letter(a[i-1]) || digit(a[i-1]) || a[i-1] == '.' && i > 1 && digit(a[i-2])) {
		i--
	}
	j := 0
	for j < len(b) && (letter(b[j]) || digit(b[j]) || b[j] == '.' && j+1 < len(b) && digit(b[j+1])) {
		j++
	}
	left, right := strings.ToLower(a[i:]), strings.ToLower(b[:j])
	switch {
	case left == "" || right == "":
		return right == "" || !endsWith(a, ".:;,)") // elsewhere a blank more or less says nothing
	case digit(left[len(left)-1]) && digit(right[0]):
		return true
	case lexicon[left+right] != 0, units[left+right] > 0:
		return true
	case units[left] > 0 || upper(b[0]) && !upper(a[len(a)-1]):
		return false
	case left[len(left)-1] == '.' && digit(right[0]), digit(left[len(left)-1]) && right[0] == '.':
		return true
	}
	return false
}

// known reports whether the word at the end of one piece, or at the beginning of the next,
// is one by itself.
func known(a, b string) bool {
	i := len(a)
	for i > 0 && letter(a[i-1]) {
		i--
	}
	j := 0
	for j < len(b) && letter(b[j]) {
		j++
	}
	left, right := strings.ToLower(a[i:]), strings.ToLower(b[:j])
	if left == "" || right == "" || lexicon[left+right] != 0 {
		return false
	}
	if units[left] > 0 && len(right) > 2 && len(left) > 1 {
		return true
	}
	return len(left) > 2 && lexicon[left] != 0 && len(right) > 2 && lexicon[right] != 0
}

// divided cuts a text where other lines begin in it, and reads its prefix.
func divided(p passage, outer prefix) (out []passage) {
	text := p.text
	cuts := []int{0}
	for _, at := range header.FindAllStringIndex(text, -1) {
		if at[0] > 0 {
			cuts = append(cuts, at[0])
		}
	}
	cuts = append(cuts, len(text))
	for i := 0; i+1 < len(cuts); i++ {
		part := text[cuts[i]:cuts[i+1]]
		q := parsePrefix(part)
		body := part[q.length:]
		q.or(outer)
		outer = q
		out = append(out, passage{line: p.line, text: body, head: part[:len(part)-len(body)], from: q.from, level: q.level, pid: q.pid})
	}
	return out
}

// Lines of JSON, as collectors write them: Docker's json-file and Kubernetes
// ({"log":"...\n","stream":"stderr"}), Google's Cloud Logging ({"textPayload":"..."}), journalctl
// -o json, and programs that log so themselves. A message may be a line of JSON again.

// messageKeys are the keys of messages, each with its colon.
var messageKeys = []string{`"log":`, `"message":`, `"MESSAGE":`, `"msg":`, `"textPayload":`, `"event":`, `"error":`,
	`"exception":`, `"exc_info":`, `"stack_trace":`, `"stacktrace":`, `"traceback":`}

// maxNested is how deep messages are looked for in messages.
const maxNested = 3

// jsonMessages are the messages in a line of JSON, and the line without them. ok is false
// if it has none.
func jsonMessages(text string) (messages []string, rest string, ok bool) {
	var b strings.Builder
	done := 0
	for done < len(text) {
		first, after := -1, 0
		for _, key := range messageKeys {
			if i := strings.Index(text[done:], key); i >= 0 && (first < 0 || i < first) {
				first, after = i, i+len(key)
			}
		}
		if first < 0 {
			break
		}
		quote := done + after
		for quote < len(text) && text[quote] == ' ' {
			quote++
		}
		if quote == len(text) || text[quote] != '"' {
			b.WriteString(text[done : done+after])
			done += after
			continue
		}
		b.WriteString(text[done : done+first])
		message, end := unquote(text, quote)
		messages, done = append(messages, message), end
	}
	b.WriteString(text[done:])
	return messages, b.String(), len(messages) > 0
}

// unquote is the JSON string that begins with the quote at text[at], and where it ends. What
// is cut off, or is no escape of JSON, stays as it is.
func unquote(text string, at int) (string, int) {
	end := at + 1
	for end < len(text) && text[end] != '"' {
		if text[end] == '\\' {
			end++
		}
		end++
	}
	end = min(end, len(text))
	var s string
	if json.Unmarshal([]byte(text[at:end]+`"`), &s) != nil {
		s = strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\"`, `"`, `\\`, `\`).Replace(text[at+1 : end])
	}
	return s, min(end+1, len(text))
}
