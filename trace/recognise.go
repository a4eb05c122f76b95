package trace

// This file is for telling formats apart by their first bytes.

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// recognise names the format of a recording that begins with head: all of it if
// it is short, else headBytes of it. Content of a format that is known but not
// read, and content that nothing knows, are an *Error.
func recognise(name string, head []byte) (string, error) {
	if len(head) == 0 {
		return "", &Error{File: name, Msg: "the recording is empty: no events"}
	}
	if looksPickled(head) {
		return "torch", nil
	}
	if looksBinary(head) {
		return "gpumem", nil
	}
	if kind := binaryKind(head); kind != "" {
		return "", notRead(name, 0, kind)
	}
	line, n := firstLine(head)
	if line == nil { // nothing but blank lines and comments, so far
		return "text", nil
	}
	verb, _, _ := bytes.Cut(bytes.ReplaceAll(line, []byte{'\t'}, []byte{' '}), []byte{' '})
	if string(verb) == "a" || string(verb) == "f" {
		return "text", nil
	}
	if format := csvFormat(line); format != "" {
		return format, nil
	}
	if hasMemDebug(head) {
		return "memdebug", nil
	}
	hint := fmt.Sprintf("not a recording that this version knows; it reads text (lines %q and %q), torch (a pickle of torch.cuda.memory._dump_snapshot), rmm (an RMM log), memdebug (a log with lines of %q near its start), minimalloc (CSV) and gpumem (what --save writes)",
		"a ID BYTES", "f ID", memDebug)
	if i := bytes.IndexFunc(line, func(r rune) bool { return r < ' ' && r != '\t' || r == utf8.RuneError }); i >= 0 {
		return "", &Error{File: name, Msg: hint}
	}
	return "", &Error{File: name, Line: n, Msg: quote(line) + ": " + hint}
}

// looksPickled: opcode PROTO (0x80) and a protocol number. Protocol 2 is the
// first that begins so; 5 is the newest (PEP 574).
func looksPickled(head []byte) bool {
	return len(head) >= 2 && head[0] == 0x80 && head[1] >= 2 && head[1] <= 5
}

// binaryKind names a binary format that is not read, or returns "".
func binaryKind(head []byte) string {
	start := head[:min(len(head), 256)]
	switch {
	case bytes.HasPrefix(head, []byte("PK\x03\x04")):
		return "a zip file (torch.save writes those; a snapshot comes from torch.cuda.memory._dump_snapshot)"
	case head[0] != 0x0a || len(head) < 3:
		return ""
	// Both are protobuf messages whose field 1 holds messages. An XSpace begins
	// with a plane, named "/host:..." or "/device:...". A profile begins with a
	// sample type: two small string numbers, of which the first is field 1.
	case bytes.Contains(start, []byte("/host:")), bytes.Contains(start, []byte("/device:")):
		return "an xplane file of the XLA profiler"
	case head[1] <= 8 && head[2] == 0x08:
		return "a pprof profile"
	}
	return ""
}

// csvFormat names the format of comma-separated lines that the first line is
// of, or returns "".
func csvFormat(line []byte) string {
	if _, err := minimallocColumns(line); err == nil {
		return "minimalloc"
	}
	fields := strings.Split(strings.ToLower(string(line[:min(len(line), 256)])), ",")
	if len(fields) != 6 {
		return ""
	}
	for i := range fields {
		fields[i] = strings.TrimSpace(fields[i])
	}
	switch fields[2] {
	case "action":
		if fields[0] == "thread" && fields[1] == "time" {
			return "rmm"
		}
	case "allocate", "allocate failure", "free", "deallocate":
		return "rmm"
	}
	return ""
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

func notRead(name string, line int, kind string) error {
	return &Error{File: name, Line: line, Msg: "looks like " + kind + "; this version reads " + strings.Join(readFormats, ", ")}
}
