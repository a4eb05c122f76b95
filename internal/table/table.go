// Package table reads tables that stand in text files, which are easier to read
// and to extend than literals in Go. A table has entries, each with fields:
//
//	NAME
//		field: a text, which may go on
//			in lines that are indented further
//
// Empty lines and lines that begin with # do not count.
package table

import (
	"fmt"
	"slices"
	"strings"
)

// An Entry is one of a table. A field that it does not have is empty.
type Entry struct {
	Line   int // of its name, from 1
	Name   string
	Fields map[string]string
}

// Read reads a table whose entries may have the fields named. The error is one
// line, FILE:LINE: what is wrong.
func Read(file, text string, fields ...string) ([]Entry, error) {
	var list []Entry
	var last map[string]string // the fields of the last entry
	field, n := "", 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, " \n")
		switch {
		case line == "" || line[0] == '#':
		case line[0] != '\t':
			last, field = map[string]string{}, ""
			list = append(list, Entry{n, line, last})
		case strings.HasPrefix(line, "\t\t") && field != "":
			last[field] += " " + strings.TrimLeft(line, "\t")
		default:
			name, value, ok := strings.Cut(line[1:], ": ")
			if !ok || last == nil || last[name] != "" || !slices.Contains(fields, name) {
				return nil, fmt.Errorf("%s:%d: %q: want a field of an entry, each at most once, of %s", file, n, line[1:], strings.Join(fields, ", "))
			}
			field, last[name] = name, value
		}
	}
	return list, nil
}
