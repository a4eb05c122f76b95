package statement

// Text as it is pasted. A message may come wrapped at any width, with a prefix before
// each piece, escaped for Markdown, HTML or JSON, and between lines of other programs.
// Here a region of a log becomes texts again: escapes are undone, the prefixes that
// all lines have are taken off, lines of one program are put together, and lines that
// were one are joined.
//
// A wrapped text shows its width: no line is longer, and a line that was broken is so
// long that what follows would not have fitted. Joining two lines too many does little
// harm, since the words nearest to a number decide what it means; joining one too
// few cuts a sentence.

import (
	"encoding/json"
	"html"
	"iter"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"gpumem/doctor/internal/needle"
)

// A passage is a text that was one line when the program wrote it.
type passage struct {
	Line  int // where it begins
	Text  string
	head  string // the file and level that a logger put before it
	From  string // who wrote it, by a prefix: rank3, pid=812
	Level string // I, W, E or F; empty if unknown
	Pid   int
	parts []part // the lines that it was joined of
	from  int    // where its quotation begins
}

// A part is a line of a passage, and where it begins in its text.
type part struct{ at, line int }

// piece is a line on its way to a passage.
type piece struct {
	line   int
	text   string
	prefix prefix
	bare   string // its prefix as it stands
	indent int    // blanks that were taken off with it; they count for the width
	goesOn bool   // it ended in a backslash, as a line of a shell that is continued
	starts bool   // it begins as a line of a log
}

var (
	markdown = regexp.MustCompile(`\\([_*\[\]<>#{}().!|~` + "`" + `-])`)
	lineTag  = regexp.MustCompile(`(?i)<br ?/?>|</?(?:p|div|pre|code|span)\b[^<>]{0,100}>`)
	// header is how a logger's own line begins, wherever it stands.
	header = needle.MustCompile(`(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWEF] |\b[IWEF]\d{4} \d\d:\d\d:\d\d(?:\d{6,})?\.\d+ +\d+ )[\w./+-]+:\d+\] ?|\b[IWEF] [\w./+-]+\.(?:cc|cu|h|cpp|py):\d+\] |\[[A-Z]{4,}[\w-]*\]\[|\b(?:\w+\.)*[A-Z]\w*(?:Error|Exception): [A-Z]`)
	starts = regexp.MustCompile(`^(?:` + header.String() + `|\*\*\* |#+ [A-Z]|\+-{3}|\|={3}|\| .*\|$|terminate called |Aborted|[IWEF] [\w./+-]+:\d+\]|\[ *(?:\d+\.\d+|\d{1,7}|pid *)\] |oom-kill:|(?:[Ss]tep|[Ee]poch|[Ii]ter\w*|[Bb]atch)\W{1,3}\d|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b.*\w|\d\d:\d\d:\d\d|\d{4}/\d\d/\d\d|\w+=\S+ \w+=|\*\* \(|[A-Z]\w{2,}: +[\d'"]|(?:RESOURCE_EXHAUSTED|INTERNAL|UNKNOWN|FAILED_PRECONDITION|INVALID_ARGUMENT): |Traceback |\[[A-Za-z][\w-]*[\]\s]|[a-z]\w*_\w+: |\((?:[\w.:=\[\]-]+ )*pid=\d+|\S*(?:Error|Exception): |(?:During|The above) |(?:Killed|Terminated|Aborted|Segmentation fault|Bus error|exit (?:status|code) \d+$|(?:CUDA|HIP) error\b)|\w+ failed: )`)
)

// typography is what chats and word processors make of blanks and quotes.
var typography = strings.NewReplacer("\u00a0", " ", "\u202f", " ", "\u2007", " ", "\u3000", " ", "\u200b", "", "\ufeff", "", "\u2018", "'", "\u2019", "'", "\u201c", "\"", "\u201d", "\"", "\u2013", "-", "\u2014", "-", "\u2026", "...")

// passages are the texts of a region.
func passages(lines []rawLine) (out []passage) {
	var pieces, beside []piece
	for _, l := range lines {
		texts, rests := unescaped(l.text, 0)
		for _, text := range texts {
			p := piece{line: l.number, text: text}
			p.text, p.goesOn = strings.CutSuffix(strings.TrimRight(text, " "), `\`)
			if !p.goesOn {
				p.text = text
			}
			pieces = append(pieces, p)
		}
		for _, text := range rests {
			beside = append(beside, piece{line: l.number, text: text})
		}
	}
	unbar(pieces)
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
	for _, p := range beside {
		out = append(out, divided(passage{Line: p.line, Text: p.text}, prefix{})...)
	}
	slices.SortStableFunc(out, func(a, b passage) int { return a.Line - b.Line })
	return out
}

// unescaped is a line as its program wrote it, or the lines that it holds. beside is what
// stands beside the messages in a line of JSON.
func unescaped(text string, depth int) (texts, beside []string) {
	text = strings.TrimRight(text, "\r\n\x00")
	if strings.IndexByte(text, 0x1b) >= 0 {
		text = string(uncolour([]byte(text)))
	}
	within := func(lines iter.Seq[string], depth int) {
		for l := range lines {
			t, b := unescaped(l, depth)
			texts, beside = append(texts, t...), append(beside, b...)
		}
	}
	if depth < maxNested && strings.Contains(text, `":`) {
		if inner, rest, ok := jsonMessages(text); ok {
			for _, m := range inner {
				within(strings.Lines(m), depth+1)
			}
			return texts, append(beside, rest)
		}
	}
	if strings.Contains(text, `\n`) {
		within(strings.SplitSeq(text, `\n`), maxNested)
		return texts, beside
	}
	if trimmed := strings.TrimSpace(text); len(trimmed) > 2 && trimmed[0] == '`' && trimmed[len(trimmed)-1] == '`' {
		text = trimmed[1 : len(trimmed)-1]
	}
	if strings.IndexByte(text, '\\') >= 0 {
		text = markdown.ReplaceAllString(text, "$1")
	}
	if strings.IndexByte(text, '<') >= 0 && lineTag.MatchString(text) {
		for _, l := range lineTag.Split(text, -1) {
			if strings.TrimSpace(l) != "" {
				texts = append(texts, html.UnescapeString(l))
			}
		}
		return texts, nil
	}
	if strings.IndexByte(text, '&') >= 0 {
		text = html.UnescapeString(text)
	}
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "?")
	}
	return []string{typography.Replace(text)}, nil
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
	common := 512 // blanks that all pieces have
	for i := range pieces {
		if kinds[i] >= 0 || strings.TrimSpace(pieces[i].text) != "" {
			common = min(common, blanks(pieces[i].text))
		}
	}
	for i := range pieces {
		if kinds[i] == best {
			p := &pieces[i]
			p.indent += max(0, min(lengths[i], blanks(p.text))-common)
			p.bare += p.text[:lengths[i]]
			p.text = p.text[lengths[i]:]
			p.prefix.or(parsed[i])
		}
	}
	return true
}

// unbar takes the bar of a quote off all pieces, if it is no table, whose lines end in one.
func unbar(pieces []piece) {
	for i := range pieces {
		if text := pieces[i].text; text != "" && (!strings.HasPrefix(text, "| ") || strings.HasSuffix(text, "|")) {
			return
		}
	}
	for i := range pieces {
		pieces[i].text = strings.TrimPrefix(pieces[i].text, "| ")
	}
}

// blanks is the number of blanks that a text begins with.
func blanks(text string) int { return len(text) - len(strings.TrimLeft(text, " \t")) }

// length is the number of characters of a piece on its page.
func (p *piece) length() int { return p.indent + utf8.RuneCountInString(p.text) }

// minWidth and maxWidth are between what widths a text is taken for wrapped.
const minWidth, maxWidth = 36, 230

// A layout is how a text was broken into lines.
type layout struct {
	width       int // of its page; 0 if it has none
	hang        map[int]bool
	exact, soft int  // breaks at just the width, and between words before it
	cut         bool // a terminal cuts words, and all lines are full
}

// layoutOf finds it. What is said twice shows no more than once.
func layoutOf(pieces []piece) layout {
	l := layout{width: pageWidth(pieces)}
	l.hang = hanging(pieces, l.width)
	ends := 0  // lines that are as long as the longest, and whole
	words := 0 // breaks at the width that are between words, less those within one
	runs := 0  // breaks within a sentence
	seen := map[string]bool{}
	for i := 0; i+1 < len(pieces); i++ {
		p, next := &pieces[i], &pieces[i+1]
		if seen[p.text] {
			continue
		}
		seen[p.text] = true
		if begins(p, next) && p.length() == l.width {
			ends++
		}
		switch breaks(p, next, l.width, l.hang) {
		case 2:
			l.exact++
			words += between(p.text, next.text)
		case 1:
			l.soft++
		default:
			continue
		}
		if goesOn(next.text) || dangles(p.text) {
			runs++
		}
	}
	l.cut = l.exact > l.soft && words <= 0
	if ends > 0 && ends >= l.exact+runs {
		l.width = 0 // it is not that of a page
	}
	return l
}

// goesOn reports whether a line begins as no sentence does.
func goesOn(text string) bool {
	text = strings.TrimLeft(text, " ")
	return text != "" && !upper(text[0]) && (letter(text[0]) || digit(text[0]))
}

// pageWidth is the length of the longest line. A word that is longer than the page has a line
// for itself.
func pageWidth(pieces []piece) int {
	width, longest := 0, 0
	for i := range pieces {
		pieces[i].starts = starts.MatchString(pieces[i].text)
		n := pieces[i].indent + utf8.RuneCountInString(strings.TrimRight(pieces[i].text, " "))
		longest = max(longest, n)
		if !oneWord(pieces[i].text) {
			width = max(width, n)
		}
	}
	if width < minWidth {
		return longest
	}
	return width
}

// joined puts lines that were one together.
func joined(pieces []piece) (out []passage) {
	l := layoutOf(pieces)
	var b strings.Builder
	for i := 0; i < len(pieces); {
		first := &pieces[i]
		b.Reset()
		b.WriteString(first.text)
		i++
		parts := []part{{0, first.line}}
		for ; i < len(pieces); i++ {
			before, next := &pieces[i-1], &pieces[i]
			kind := breaks(before, next, l.width, l.hang)
			if kind == 0 || !before.goesOn && l.exact+l.soft <= 1 && l.ended(before.text, next.text, kind) {
				break
			}
			glue := kind == 2 && (inWord(before.text, next.text) || l.soft <= 1 && inOne(before.text, next.text) || l.cut && l.exact+l.soft > 1 && !known(before.text, next.text))
			if !glue && !strings.HasSuffix(before.text, "-") && !strings.HasSuffix(before.text, " ") {
				b.WriteByte(' ')
			}
			parts = append(parts, part{b.Len(), next.line})
			b.WriteString(next.text)
		}
		out = append(out, divided(passage{Line: first.line, Text: b.String(), head: first.bare, parts: parts}, first.prefix)...)
	}
	return out
}

// ended reports whether a line ends a sentence, or the next begins one, where hardly another line
// shows that the text was broken.
func (l layout) ended(before, next string, kind int) bool {
	return endsWith(before, ".!?") && !digit(next[0]) || kind == 1 && sentence(next) && !dangles(before)
}

// between is 1 if two pieces that meet at the width break between words: both sides are
// words by themselves. It is -1 if they break within one, and 0 if nothing tells. A cut
// keeps the blank that it meets.
func between(a, b string) int {
	if strings.HasSuffix(a, " ") || strings.HasPrefix(b, " ") {
		return -1
	}
	left, right := a[strings.LastIndexByte(a, ' ')+1:], b
	if i := strings.IndexByte(b, ' '); i >= 0 {
		right = b[:i]
	}
	left, right = strings.TrimLeft(left, "(['\"`"), strings.TrimRight(right, ".,:;)]'\"`")
	switch {
	case left == "" || right == "":
		return 0
	case whole(left) && whole(right):
		return 1
	case whole(strings.TrimRight(left, ".,:;)")+right) || !whole(left) && letter(left[len(left)-1]) && letter(right[0]):
		return -1
	}
	return 0
}

// whole reports whether a text is a word or a number by itself.
func whole(word string) bool {
	w := strings.ToLower(strings.TrimRight(word, ".,:;)"))
	if len(w) > 0 && digit(w[len(w)-1]) && strings.Contains(w, ".") {
		return true
	}
	return units[w] > 0 && len(w) > 1 || len(w) > 2 && lexicon[w] != 0 || particles[w]
}

// hanging returns the indentations of lines that go on with the line before: nearly all
// lines that are indented so follow one into which their first word would not have fitted.
func hanging(pieces []piece, width int) map[int]bool {
	if width < minWidth || width > maxWidth {
		return nil
	}
	fit, full := map[int]int{}, map[int]int{}
	for i := 1; i < len(pieces); i++ {
		p, before := &pieces[i], &pieces[i-1]
		n, text := blanks(p.text), strings.TrimLeft(p.text, " \t")
		if n+p.indent == 0 || text == "" {
			continue
		}
		word, _, _ := strings.Cut(text, " ")
		if before.length()+1+utf8.RuneCountInString(word) > width {
			full[n+p.indent]++
		} else {
			fit[n+p.indent]++
		}
	}
	hang := map[int]bool{}
	for n := range full {
		hang[n] = full[n] > 4*fit[n]
	}
	return hang
}

// begins reports whether next begins a line of a log. The status that an error has does
// not, behind a colon.
func begins(before, next *piece) bool {
	if next.starts && (strings.HasSuffix(before.text, ":") || next.text[0] == '[') && status.MatchString(next.text) {
		return false
	}
	return (next.starts || sameHead(before.text, next.text)) && !strings.HasSuffix(before.text, "_")
}

// sameHead reports whether two lines begin with the same label, or the same two words, as those of a
// table or of a counter do.
func sameHead(a, b string) bool {
	a, b = strings.TrimSpace(a), strings.TrimSpace(b)
	first, rest, _ := strings.Cut(a, " ")
	if !strings.HasPrefix(b, first+" ") || len(first) < 4 {
		return false
	}
	if strings.HasSuffix(first, ":") {
		return true
	}
	second, _, _ := strings.Cut(strings.TrimLeft(rest, " "), " ")
	return second != "" && strings.HasPrefix(strings.TrimLeft(b[len(first):], " "), second+" ")
}

// status is the name of an error before its text, or in brackets.
var status = regexp.MustCompile(`^[A-Z_]{5,}: |^\[[A-Z]+_[A-Z_]+\]`)

// breaks reports whether next may be the rest of a line that was broken at a width: 2 if
// the line before is just that long, 1 if its next word would not have fitted, else 0.
func breaks(before, next *piece, width int, hang map[int]bool) int {
	if strings.HasPrefix(strings.TrimLeft(next.text, " "), ": ") || before.goesOn {
		return 1 // a label's number
	}
	if next.text == "" || begins(before, next) {
		return 0
	}
	n := before.length()
	wrapped := width >= minWidth && width <= maxWidth
	switch {
	case wrapped && (n == width || n == width+1 && strings.HasSuffix(before.text, " ")):
		return 2
	case n >= minWidth && dangles(before.text) && !sentence(next.text):
		return 1
	case !wrapped:
		return 0
	}
	if n > width && oneWord(before.text) {
		if sentence(next.text) {
			return 0 // the long word may have been the last of its line
		}
		return 1
	}
	word, _, _ := strings.Cut(strings.TrimLeft(next.text, " "), " ")
	fits := n+1+utf8.RuneCountInString(word) <= width
	if indent := blanks(next.text) + next.indent; indent > 0 && hang[indent] && !fits {
		return 1
	}
	if (n > width/2 || len(word) > width/2) && !fits && !strings.HasPrefix(next.text, " ") {
		return 1
	}
	// A text that was wrapped at one width and then at another has short lines.
	if !oneWord(before.text) && cutOff(before.text, next.text) {
		return 2
	}
	return 0
}

// dangles reports whether a line ends as no sentence does.
func dangles(text string) bool {
	left, _ := around(text, "")
	return particles[left] || left == "less" || left == "allocate"
}

// rest is what follows the first digits of a size.
var rest = regexp.MustCompile(`^\d*(?:\.\d+)? ?(?:[kKMGT]i?B|bytes)\b`)

// cutOff reports whether a word or a size that a piece ends with goes on in the next one.
func cutOff(a, b string) bool {
	left, right := around(a, b)
	if left != "" && digit(left[0]) && (right != "" || strings.HasPrefix(b, ".")) {
		// A size that a sentence is about, and not the end of a name or of a column.
		before := a[:len(a)-len(left)]
		word, _ := around(strings.TrimRight(before, " "), "")
		return strings.HasSuffix(before, " ") && isWord(word) && rest.MatchString(b)
	}
	return left != "" && right != "" && lexicon[left+right] != 0 && !isWord(left) && !isWord(right)
}

// sentence reports whether a text begins with a capital and a small letter.
func sentence(text string) bool {
	return len(text) > 1 && upper(text[0]) && letter(text[1]) && !upper(text[1])
}

func oneWord(text string) bool { return !strings.Contains(strings.TrimSpace(text), " ") }

// endsWith reports whether a text ends with one of these marks.
func endsWith(text, marks string) bool {
	return text != "" && strings.IndexByte(marks, text[len(text)-1]) >= 0
}

// around returns the word or number at the end of one piece, and at the beginning of the
// next, in small letters.
func around(a, b string) (left, right string) {
	i := len(a)
	for i > 0 && (letter(a[i-1]) || digit(a[i-1]) || a[i-1] == '.' && i > 1 && digit(a[i-2])) {
		i--
	}
	j := 0
	for j < len(b) && (letter(b[j]) || digit(b[j]) || b[j] == '.' && j+1 < len(b) && digit(b[j+1])) {
		j++
	}
	return strings.ToLower(a[i:]), strings.ToLower(b[:j])
}

// inWord reports whether two pieces break within a word that is known, or a number.
func inWord(a, b string) bool {
	left, right := around(a, b)
	switch {
	case left == "" || right == "":
		return false
	case digit(left[len(left)-1]) && digit(right[0]), lexicon[left+right] != 0, units[left+right] > 0:
		return true
	case units[left] > 0 || upper(b[0]) && !upper(a[len(a)-1]):
		return false
	}
	return left[len(left)-1] == '.' && digit(right[0]) || digit(left[len(left)-1]) && right[0] == '.'
}

// inOne reports whether two pieces belong together without a blank, as far as their
// letters tell.
func inOne(a, b string) bool {
	if left, right := around(a, b); left == "" || right == "" {
		return right == "" || !endsWith(a, ".:;,)") // elsewhere a blank more or less says nothing
	}
	return inWord(a, b)
}

// particles are short words of sentences, which the lexicon has not.
var particles = func() map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields("a an and are as at be by can for from has have if in is it may of on only or than that the this to was were which will with") {
		m[w] = true
	}
	return m
}()

// isWord reports whether w is a word by itself, as far as the lexicon goes.
func isWord(w string) bool { return len(w) > 2 && lexicon[w] != 0 || particles[w] }

// known reports whether two pieces break between words: each side is one by itself, or a
// number, and together they are none.
func known(a, b string) bool {
	left, right := around(a, b)
	if left == "" || right == "" || lexicon[left+right] != 0 {
		return false
	}
	switch {
	case units[left] > 0 && len(left) > 1:
		return len(right) > 2 || particles[right]
	case isWord(left):
		return isWord(right) || digit(right[0])
	}
	return digit(left[0]) && particles[right] && len(right) > 1
}

// divided cuts a text where other lines begin in it, and reads its prefix.
func divided(p passage, outer prefix) (out []passage) {
	text := p.Text
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
		d := passage{Line: p.Line, Text: body, head: p.head + part[:len(part)-len(body)], From: q.from, Level: q.level, Pid: q.pid}
		d.linesFrom(p.parts, cuts[i+1]-len(body))
		out = append(out, d)
	}
	return out
}

// linesFrom takes the lines of a text of which the passage begins at an offset.
func (p *passage) linesFrom(parts []part, offset int) {
	for _, l := range parts {
		switch {
		case l.at <= offset:
			p.Line, p.parts = l.line, []part{{0, l.line}}
		case l.at < offset+len(p.Text):
			p.parts = append(p.parts, part{l.at - offset, l.line})
		}
	}
}

// startAt lets the passage be told from the line on in which an offset of its text is.
func (p *passage) startAt(offset int) {
	for _, l := range p.parts {
		if l.at > 0 && l.at <= offset {
			p.Line, p.from = l.line, l.at
		}
	}
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
