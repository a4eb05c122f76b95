package vocabulary

import (
	"strconv"
	"strings"
)

// number finds the rows of a number: its family is told before it, with nothing but
// connectives between them, or it is an HRESULT by its looks.
func (s *scanner) number(t token, end int) {
	if n, ok := bareHRESULT(s.text[t.at:t.end]); ok {
		s.addWeak(n, s.selfTold(), t)
		return
	}
	n, hex, ok := s.value(t, end)
	if !ok {
		return
	}
	if hex && t.end-t.at == 10 && n >= 1<<31 {
		if s.add(n, s.selfTold(), t) {
			return
		}
	}
	at := t.at
	if n < 0 {
		at--
	}
	told := s.toldBefore(at, n < 0 || hex)
	if told == 0 {
		return
	}
	found := s.add(n, told, t)
	if !found && n < 0 { // an HRESULT as a signed number
		t.at--
		s.add(int64(uint32(n)), told&s.selfTold(), t)
	}
}

// bareHRESULT is a failure as Unity and others write it, eight digits without 0x: "8007000e". It is
// one only where the line tells its family, since any hash may have such a word.
func bareHRESULT(word string) (n int64, ok bool) {
	if len(word) != 8 || word[0] != '8' || strings.Trim(word, "0123456789") == "" {
		return 0, false
	}
	n, err := strconv.ParseInt(word, 16, 64)
	return n, err == nil
}

// selfTold are the families whose numbers tell them.
func (s *scanner) selfTold() (told uint64) {
	for i := range families {
		if families[i].hex {
			told |= 1 << i
		}
	}
	return told
}

// value is the number that a token is, if it is one.
func (s *scanner) value(t token, end int) (n int64, hex, ok bool) {
	word := s.text[t.at:t.end]
	if len(word) > 12 || fraction(s.text[t.end:end]) {
		return 0, false, false
	}
	if len(word) > 2 && (word[1] == 'x' || word[1] == 'X') {
		n, err := strconv.ParseInt(word[2:], 16, 64)
		return n, true, err == nil
	}
	n, err := strconv.ParseInt(word, 10, 64)
	if t.at > 0 && s.text[t.at-1] == '-' && (t.at == 1 || !isWord(s.text[t.at-2])) {
		n = -n
	}
	return n, false, err == nil
}

// fraction reports whether the text goes on with the decimals of a number.
func fraction(text string) bool { return len(text) > 1 && text[0] == '.' && isDigit(text[1]) }

// toldBefore are the families that the words before the number at tell it to be of. Numbers
// that are signed or in hexadecimal may follow a function at once.
func (s *scanner) toldBefore(at int, marked bool) (told uint64) {
	connected := false
	for k := 2; k <= min(s.n, len(s.toks)); k++ {
		t := &s.toks[(s.n-k)%len(s.toks)]
		gap := s.text[t.end:at]
		if len(gap) > 6 || strings.ContainsAny(gap, ".;|&!\t") || k == 2 && strings.Contains(gap, ",") {
			return told
		}
		at = t.at
		if t.calls != 0 && (connected || marked) && !strings.HasPrefix(gap, "(") {
			return told | t.calls
		}
		if t.entry == nil {
			if isDigit(s.text[t.at]) && connected {
				continue // "NvMapMemAllocInternalTagged: 1075072515 error 12"
			}
			return told
		}
		if connected {
			told |= t.told
		} else {
			told |= t.direct
		}
		if !t.connective {
			return told
		}
		connected = true
	}
	return told
}

// addWeak notes them where the line tells their family by another word.
func (s *scanner) addWeak(n int64, told uint64, t token) {
	if before := s.told; s.add(n, told, t) {
		s.told, s.finds[len(s.finds)-1].weak = before, true
	}
}

// add notes the rows of a number in the families told.
func (s *scanner) add(n int64, told uint64, t token) bool {
	var rows []*Row
	for i := range families {
		if told&(1<<i) == 0 {
			continue
		}
		rows = append(rows, s.ix.numbers[numbered{i, n}]...)
		if rows == nil && families[i].family == "Win32" && n>>16 == 0x8007 { // HRESULT_FROM_WIN32
			rows = append(rows, s.ix.numbers[numbered{i, n & 0xffff}]...)
		}
	}
	if rows == nil {
		return false
	}
	s.told |= 1 << s.ix.family[rows[0].Family]
	if n < 0 {
		t.at-- // the sign
	}
	s.finds = append(s.finds, find{rows: rows, at: t.at, end: t.end, by: ByNumber})
	return true
}

// xid reads the number after the word: "Xid (PCI:0000:01:00): 31, pid=7", "XID 48".
func (s *scanner) xid(t token, end int) {
	at := t.end
	bus := s.text[at:min(end, at+40)]
	if i := strings.IndexByte(bus, ')'); i > 0 && strings.HasPrefix(strings.TrimLeft(bus, " "), "(") {
		at += i + 1
	}
	for at < end && (s.text[at] == ' ' || s.text[at] == ':' || s.text[at] == '=') {
		at++
	}
	stop := wordEnd(s.text[:end], at)
	n, err := strconv.ParseInt(s.text[at:stop], 10, 64)
	if err == nil {
		s.add(n, 1<<s.ix.family["Xid"], token{at: at, end: stop})
	}
}
