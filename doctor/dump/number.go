package dump

// This file is for the numbers in a text report.

import (
	"math"
	"strings"

	"gpumem/size"
)

// digits reads a number at the front of text; false where there is none, or
// one that passes 2^64.
func digits(text []byte) (n uint64, rest []byte, ok bool) {
	i := 0
	for ; i < len(text) && text[i]-'0' <= 9; i++ {
		d := uint64(text[i] - '0')
		if n > (math.MaxUint64-d)/10 {
			return 0, text, false
		}
		n = n*10 + d
	}
	return n, text[i:], i > 0
}

// hex reads an address, with or without 0x.
func hex(text []byte) (n uint64, rest []byte, ok bool) {
	if len(text) > 1 && text[0] == '0' && text[1]|0x20 == 'x' {
		text = text[2:]
	}
	i := 0
	for ; i < len(text); i++ {
		c := text[i]
		var d byte
		switch {
		case c-'0' <= 9:
			d = c - '0'
		case c|0x20-'a' < 6:
			d = c | 0x20 - 'a' + 10
		default:
			return n, text[i:], 0 < i && i <= 16
		}
		n = n<<4 | uint64(d)
	}
	return n, nil, 0 < i && i <= 16
}

// A number is a value as printed: n, give or take slack.
type number struct {
	n, slack uint64
	told     bool
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
		return number{n: n, told: true}
	}
	unit, err := size.Parse("1" + s[end:])
	if err != nil || unit == 1 {
		return number{n: n, told: err == nil}
	}
	slack := unit
	if _, decimals, ok := strings.Cut(s[:end], "."); ok {
		for range min(len(decimals), 18) {
			slack /= 10
		}
	}
	return number{n: n, slack: slack + 1, told: true}
}

// is says whether the printed number may stand for v.
func (n number) is(v uint64) bool {
	return n.n <= add(v, n.slack) && v <= add(n.n, n.slack)
}

// labelled is the number after a label.
func labelled(text []byte, label string) number {
	rest, ok := after(text, []byte(label))
	if !ok {
		return number{}
	}
	return human(word(rest))
}
