package vocabulary

import (
	"slices"
	"strings"
	"sync"
)

// A phrase is a text as words, with what stands between them.
type phrase struct {
	text string // in lower case
	rows []*Row // whose text it is, in the order of families
	weak bool   // it counts only where the family is told
}

// A spelling is a way to write a name.
type spelling struct {
	text string
	row  *Row
	weak bool
}

// An entry is what is known of a word in lower case.
type entry struct {
	names      []spelling
	phrases    []*phrase // those that begin with it, the longest first
	told       uint64    // the families that it tells, a bit each
	direct     uint64    // those of them whose number may follow at once
	connective bool
}

// numbered is a family's number.
type numbered struct {
	family int
	n      int64
}

// index finds rows by what a line has.
type index struct {
	words   map[string]*entry
	calls   map[string]uint64 // by how a function begins
	numbers map[numbered][]*Row
	family  map[Family]int
	fresh   []entry // made a thousand at a time
}

// theIndex is made at the first search.
var theIndex = sync.OnceValue(func() *index { return newIndex(Rows()) })

func newIndex(rows []Row) *index {
	ix := &index{words: make(map[string]*entry, 4*len(rows)), calls: map[string]uint64{}, numbers: make(map[numbered][]*Row, 2*len(rows)),
		family: map[Family]int{}}
	for i, f := range families {
		ix.family[f.family] = i
		for begin := range strings.FieldsSeq(f.calls) {
			ix.calls[begin] |= 1 << i
		}
		for word := range strings.FieldsSeq(f.words) {
			plain := strings.TrimSuffix(word, "!")
			e := ix.entry(plain)
			e.told |= 1 << i
			if plain != word {
				e.direct |= 1 << i
			}
		}
	}
	for word := range strings.FieldsSeq(connectives) {
		ix.entry(word).connective = true
	}
	phrases := map[string]*phrase{}
	for i := range rows {
		ix.addRow(&rows[i], phrases)
	}
	for _, p := range phrases {
		slices.SortStableFunc(p.rows, func(a, b *Row) int { return ix.family[a.Family] - ix.family[b.Family] })
		e := ix.entry(p.text[:wordEnd(p.text, 0)])
		e.phrases = append(e.phrases, p)
	}
	for _, e := range ix.words {
		slices.SortFunc(e.phrases, func(a, b *phrase) int { return len(b.text) - len(a.text) })
	}
	return ix
}

func (ix *index) entry(word string) *entry {
	e := ix.words[word]
	if e == nil {
		if len(ix.fresh) == 0 {
			ix.fresh = make([]entry, 1000)
		}
		e, ix.fresh = &ix.fresh[0], ix.fresh[1:]
		ix.words[word] = e
	}
	return e
}

// addRow enters a row's names, numbers and texts.
func (ix *index) addRow(r *Row, phrases map[string]*phrase) {
	f := ix.family[r.Family]
	told := &families[f]
	texts := r.Texts
	switch {
	case named(r): // the name is ours
	case wordEnd(r.Name, 0) == len(r.Name):
		ix.addName(r, r.Name, told.plain && !camel(r.Name))
	default: // "Insufficient nvidia.com/gpu"
		texts = append([]string{r.Name}, texts...)
	}
	if told.family == "absl" { // as exceptions and Go spell it: ResourceExhausted
		ix.addName(r, camelCase(r.Name), true)
		ix.addName(r, camelCase(r.Name)+"Error", true)
	}
	if short, ok := strings.CutPrefix(r.Name, told.stem); ok && told.stem != "" {
		ix.addName(r, short, true)
		if told.family == "Vulkan" { // as vk::to_string spells it
			ix.addName(r, camelCase(short), false)
		}
	}
	for _, n := range r.Numbers {
		key := numbered{f, n}
		ix.numbers[key] = append(ix.numbers[key], r)
	}
	for _, text := range texts {
		low := strings.ToLower(text)
		p := phrases[low]
		if p == nil {
			p = &phrase{text: low, weak: true}
			phrases[low] = p
		}
		p.weak = p.weak && (weakTexts[low] || r.Family == "Kubernetes" && text == r.Name && !strings.Contains(text, "/"))
		p.rows = append(p.rows, r)
	}
}

// named reports whether the row's name is ours, so that no program writes it.
func named(r *Row) bool {
	return r.Family == "common" || r.Family == "engine" || r.Family == "exit status"
}

func (ix *index) addName(r *Row, text string, weak bool) {
	e := ix.entry(strings.ToLower(text))
	e.names = append(e.names, spelling{text, r, weak})
}

// camel reports whether the name has an upper-case letter after a lower-case one.
func camel(name string) bool {
	for i := 1; i < len(name); i++ {
		if isUpper(name[i]) && isLower(name[i-1]) {
			return true
		}
	}
	return false
}

// camelCase spells RESOURCE_EXHAUSTED as ResourceExhausted.
func camelCase(name string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(name, "_") {
		if part != "" {
			b.WriteString(part[:1] + strings.ToLower(part[1:]))
		}
	}
	return b.String()
}

func isUpper(c byte) bool { return 'A' <= c && c <= 'Z' }
func isLower(c byte) bool { return 'a' <= c && c <= 'z' }
func isDigit(c byte) bool { return '0' <= c && c <= '9' }
func isWord(c byte) bool  { return isLower(c) || isUpper(c) || isDigit(c) || c == '_' || c >= 0x80 }

// wordEnd is where the word that begins at i ends.
func wordEnd(s string, i int) int {
	for i < len(s) && isWord(s[i]) {
		i++
	}
	return i
}
