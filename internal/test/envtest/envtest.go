// Package envtest reads the environments of test tables.
package envtest

import (
	"iter"
	"strconv"
	"strings"
	"testing"

	"gpumem/policy"
)

// Environ reads NAME=VALUE NAME=VALUE...; names and values may be quoted.
func Environ(t testing.TB, text string) policy.Environment {
	t.Helper()
	var lines []string
	for name, value := range Assignments(t, text) {
		lines = append(lines, name+"="+value)
	}
	return policy.Environ(lines)
}

// Assignments iterates over the names and values of text, unquoted.
func Assignments(t testing.TB, text string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
			name, rest := word(t, text, "=")
			value, rest := word(t, rest, " ")
			if !yield(name, value) {
				return
			}
			text = rest
		}
	}
}

// word is the first word of text, quoted or up to the separator, and what
// follows both.
func word(t testing.TB, text, separator string) (string, string) {
	t.Helper()
	q, err := strconv.QuotedPrefix(text)
	if err != nil {
		first, rest, _ := strings.Cut(text, separator)
		return first, rest
	}
	first, err := strconv.Unquote(q)
	if err != nil {
		t.Fatal(err)
	}
	return first, strings.TrimPrefix(text[len(q):], separator)
}
