package trace

// This file is for telling formats apart by their first bytes. The functions
// are those of the table of formats.

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// looksText: the first line that is neither blank nor a comment is an event, or
// there is no such line so far.
func looksText(head []byte) bool {
	line, _ := firstLine(head)
	if line == nil {
		return true
	}
	verb, _ := field(line, 0)
	return string(verb) == "a" || string(verb) == "f"
}

// looksPickled: opcode PROTO (0x80) and a protocol number. Protocol 2 is the
// first that begins so; 5 is the newest (PEP 574).
func looksPickled(head []byte) bool {
	return len(head) >= 2 && head[0] == 0x80 && head[1] >= 2 && head[1] <= 5
}

func isZip(head []byte) bool { return bytes.HasPrefix(head, []byte("PK\x03\x04")) }

// looksRMM: the header of RMM's logging adaptor, or a line as it writes them.
func looksRMM(head []byte) bool {
	line, _ := firstLine(head)
	fields := strings.Split(strings.ToLower(string(line[:min(len(line), 256)])), ",")
	if len(fields) != 6 {
		return false
	}
	for i := range fields {
		fields[i] = strings.TrimSpace(fields[i])
	}
	switch fields[2] {
	case "action":
		return fields[0] == "thread" && fields[1] == "time"
	case "allocate", "allocate failure", "free", "deallocate":
		return true
	}
	return false
}

// looksMinimalloc: the header of a problem.
func looksMinimalloc(head []byte) bool {
	line, _ := firstLine(head)
	_, err := minimallocColumns(line)
	return err == nil
}

// firstLine returns the first line that is neither blank nor a comment, without
// blanks around it, and its number from 1; nil if head has none.
func firstLine(head []byte) ([]byte, int) {
	head = bytes.TrimPrefix(head, utf8BOM)
	for n := 1; len(head) > 0; n++ {
		line, rest, _ := bytes.Cut(head, []byte{'\n'})
		line = bytes.Trim(line, " \t\r")
		if len(line) > 0 && line[0] != '#' {
			return line, n
		}
		head = rest
	}
	return nil, 0
}

// isPrintable: s is text, with nothing in it that a terminal would act on.
func isPrintable(s []byte) bool {
	return bytes.IndexFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f || r == utf8.RuneError }) < 0
}

// The formats of protocol buffers have no magic number, but each begins with
// field 1, which is another thing in each: in an xplane a message that has a
// name (2) behind a number (1), in a profile a message of two small numbers, in
// a pool dump text. C++ writes fields in the order of their numbers.
//
// A tag is the number of the field, times 8, plus the kind: 0 of numbers, 2 of
// bytes.
const (
	tagNumber1 = 1 << 3
	tagNumber2 = 2 << 3
	tagBytes1  = 1<<3 | 2
	tagBytes2  = 2<<3 | 2
	tagBytes3  = 3<<3 | 2
	tagBytes5  = 5<<3 | 2
)

// looksXPlane: an XSpace begins with a plane, and a plane with its number, which
// is left out if it is 0, and its name.
func looksXPlane(head []byte) bool {
	if head[0] != tagBytes1 {
		return false
	}
	m := message{b: head[1:]}
	m.number() // how long the plane is
	if m.startsWith(tagNumber1) {
		m.b = m.b[1:]
		m.number()
	}
	if m.startsWith(tagBytes2) && m.next() && len(m.data) > 0 && isPrintable(m.data) {
		return true
	}
	// A file that was taken for text on its way still has the names.
	start := head[:min(len(head), 256)]
	return bytes.Contains(start, []byte("/host:")) || bytes.Contains(start, []byte("/device:"))
}

// looksPprof: a profile begins with a sample type, two numbers of small strings.
func looksPprof(head []byte) bool {
	return len(head) > 4 && head[0] == tagBytes1 && head[1] <= 8 && head[2] == tagNumber1 && head[4] == tagNumber2
}

// looksMemDump: a dump begins with the name of its pool, and bins, chunks or
// statistics follow.
func looksMemDump(head []byte) bool {
	if head[0] != tagBytes1 {
		return false
	}
	m := message{b: head}
	return m.next() && len(m.data) > 0 && isPrintable(m.data) &&
		(m.startsWith(tagBytes2) || m.startsWith(tagBytes3) || m.startsWith(tagBytes5))
}
