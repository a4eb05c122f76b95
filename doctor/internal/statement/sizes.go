package statement

// Sizes of a text by themselves, without roles, for whoever checks what is said about them.

// A Size is a size in a text, in bytes.
type Size struct {
	N, Half float64 // Half is half a unit of the last digit behind the point
	At, End int     // in the text
}

// Sizes are the sizes in a text: the numbers with a unit, and bare ones of a MiB or more.
func Sizes(text string) (list []Size) {
	toks := tokenize(text)
	scale(toks)
	for i := range toks {
		t := &toks[i]
		if !toks.quantity(i) {
			continue
		}
		s := Size{N: t.value, At: t.at, End: t.end}
		if !t.integer {
			s.Half = t.high - t.value
		}
		list = append(list, s)
	}
	return list
}
