package dump

// The numbers of a text report, which are rounded for people.

import (
	"strings"

	"gpumem/size"
)

// A number is a value as printed: n, give or take slack.
type number struct {
	n, slack uint64
	known    bool
}

// human reads 1048576, 153B, 258.0KiB or 59.40GiB. The original divides by 1024
// without a remainder before it rounds, so a value may be a whole last digit
// larger.
func human(text []byte) number {
	s := string(text)
	n, err := size.Parse(s)
	if err != nil {
		return number{}
	}
	end := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		return number{n: n, known: true}
	}
	unit, err := size.Parse("1" + s[end:])
	if err != nil || unit == 1 {
		return number{n: n, known: err == nil}
	}
	slack := unit
	if _, decimals, ok := strings.Cut(s[:end], "."); ok {
		for range min(len(decimals), 18) {
			slack /= 10
		}
	}
	return number{n: n, slack: slack, known: true}
}

// is reports whether the printed number may stand for v.
func (n number) is(v uint64) bool {
	return n.n <= size.Add(v, n.slack) && v <= size.Add(n.n, n.slack)
}

// labelled returns the number after a label.
func labelled(text []byte, label string) number {
	rest, ok := after(text, []byte(label))
	if !ok {
		return number{}
	}
	return human(word(rest))
}
