// Package releases reads tables of releases: what each release of a framework does otherwise
// than those before it.
package releases

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"gpumem/internal/table"
	"gpumem/policy"
)

// Table is what the releases of a framework do, each described by an R, the oldest
// first. There is at least one.
type Table[R any] []Row[R]

// Row is a release of a [Table].
type Row[R any] struct {
	Version policy.Version
	Does    R // with all that earlier releases changed
	Changed policy.Change
}

// Lazy returns the table in the text of a file that is part of the program.
// The text is read when it is first needed. See [Read].
func Lazy[R any](file, text string) func() Table[R] {
	return sync.OnceValue(func() Table[R] {
		t, err := Read[R](file, text)
		if err != nil {
			panic(err) // a test of each table rules it out
		}
		return t
	})
}

// Read reads a table: entries VERSION DATE, the oldest first, with the
// fields change and source (for people), and does: those fields of R, as JSON
// without the braces around it, that are other than in the release before. R's
// fields must not share memory: a slice or a map needs an UnmarshalText that
// makes a new one.
//
// The error is one line, FILE:LINE: what is wrong.
func Read[R any](file, text string) (Table[R], error) {
	entries, err := table.Read(file, text, "change", "source", "does")
	if err != nil {
		return nil, err
	}
	var t Table[R]
	var r R
	for _, e := range entries {
		version, date, _ := strings.Cut(e.Name, " ")
		v, err := policy.ParseVersion(version, "known", "0.4.30")
		in := json.NewDecoder(strings.NewReader("{" + e.Fields["does"] + "}"))
		in.DisallowUnknownFields()
		switch {
		case err != nil:
		case len(t) > 0 && !t[len(t)-1].Version.Less(v):
			err = fmt.Errorf("%s is not newer than the release before it", v)
		default:
			err = in.Decode(&r)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, e.Line, err)
		}
		t = append(t, Row[R]{v, r, policy.Change{Version: v.String(), Date: date, Text: e.Fields["change"], Source: e.Fields["source"]}})
	}
	if len(t) == 0 {
		return nil, fmt.Errorf("%s: no releases", file)
	}
	return t, nil
}

// At returns what a framework does at a version: nothing before the oldest, and
// what the newest does after it.
func (t Table[R]) At(v policy.Version) R {
	var r R
	for _, row := range t {
		if v.Less(row.Version) {
			break
		}
		r = row.Does
	}
	return r
}

// Find reads a version, see [policy.ParseVersion]. One before the oldest release of the table is an
// error, too.
func (t Table[R]) Find(text, framework, like string) (policy.Version, error) {
	v, err := policy.ParseVersion(text, framework, like)
	if err != nil && t[len(t)-1].Version == policy.Next {
		err = fmt.Errorf("%w, or %s", err, policy.Next)
	}
	if v == policy.Next && t[len(t)-1].Version != v {
		return v, fmt.Errorf("%s next: no change is known that its documentation describes ahead of its releases; leave the version out for the newest", framework)
	}
	if oldest := t[0].Version; err == nil && v.Less(oldest) {
		err = fmt.Errorf("%s %s is not known; the oldest known release is %s", framework, text, oldest)
	}
	return v, err
}

// Changes returns what the releases changed, without what they do.
func (t Table[R]) Changes() []policy.Change {
	var list []policy.Change
	for _, row := range t {
		list = append(list, row.Changed)
	}
	return list
}

// Words is a list in a table of releases: a text with blanks between the words.
type Words []string

// UnmarshalText reads the words into memory that no other list has.
func (w *Words) UnmarshalText(text []byte) error {
	*w = strings.Fields(string(text))
	return nil
}
