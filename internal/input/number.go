package input

import "math"

// Digits reads a decimal number at the front of text. ok is false if there is none, or
// it is above 2^64-1.
func Digits(text []byte) (n uint64, rest []byte, ok bool) {
	i := 0
	for ; i < len(text) && text[i]-'0' <= 9; i++ {
		d := uint64(text[i] - '0')
		if i >= 19 && n > (math.MaxUint64-d)/10 { // 19 digits always fit
			return 0, text, false
		}
		n = n*10 + d
	}
	return n, text[i:], i > 0
}

// Decimal reads text that is one decimal number; it returns 0 and false for any other.
func Decimal(text []byte) (n uint64, ok bool) {
	n, rest, ok := Digits(text)
	if !ok || len(rest) > 0 {
		return 0, false
	}
	return n, true
}

// Hex reads a hexadecimal number, with or without 0x, at the front of text. ok is false
// if there is none, or it has more than 16 digits.
func Hex(text []byte) (n uint64, rest []byte, ok bool) {
	if len(text) > 1 && text[0] == '0' && text[1]|0x20 == 'x' {
		text = text[2:]
	}
	i := 0
	for ; i < len(text); i++ {
		d := text[i] - '0'
		if d > 9 {
			if d = text[i] | 0x20 - 'a'; d > 5 {
				break
			}
			d += 10
		}
		n = n<<4 | uint64(d)
	}
	return n, text[i:], 0 < i && i <= 16
}
