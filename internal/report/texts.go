package report

// Texts gives each text of a page one index, so that a stack that stands at many places is
// on the page once.
type Texts struct {
	List    []string
	Most    int // bytes of all; what is beyond it has one text in its place
	Longest int // bytes of one, of which the rest is cut off; 0: no limit

	index map[string]int
	bytes int
}

// tooMany stands for the texts beyond Texts.Most.
const tooMany = "(a stack; there are too many to show)"

// IndexOf returns the index of a text in List.
func (t *Texts) IndexOf(text string) int {
	if t.Longest > 0 && len(text) > t.Longest {
		text = text[:t.Longest] + "..."
	}
	k, ok := t.index[text]
	switch {
	case ok:
		return k
	case t.bytes+len(text) > t.Most && text != tooMany:
		return t.IndexOf(tooMany)
	case t.index == nil:
		t.index = map[string]int{}
	}
	t.bytes += len(text)
	t.List = append(t.List, text)
	t.index[text] = len(t.List) - 1
	return len(t.List) - 1
}
