// Tables of releases: what each release of a framework does otherwise than those
// before it.

package policy

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"gpumem/policy/internal/table"
)

// A Table is what the releases of a framework do, each described by an R, the
// oldest first. There is at least one.
type Table[R any] []Row[R]

// A Row is a release of a [Table].
type Row[R any] struct {
	Version Version
	Does    R // with all that earlier releases changed
	Changed Change
}

// A Change is what a release of a framework changed.
type Change struct {
	Version string `json:"version"`
	Date    string `json:"date"`
	Text    string `json:"text"` // one or two sentences
	Source  string `json:"source"`
}

// Releases returns the table in the text of a file that is part of the program.
// The text is read when it is first needed. See [ReadTable].
func Releases[R any](file, text string) func() Table[R] {
	return sync.OnceValue(func() Table[R] {
		t, err := ReadTable[R](file, text)
		if err != nil {
			panic(err) // a test of each table rules it out
		}
		return t
	})
}

// ReadTable reads a table: entries VERSION DATE, the oldest first, with the
// fields change and source (for people), and does: those fields of R, as JSON
// without the braces around it, that are other than in the release before. R's
// fields must not share memory: a slice or a map needs an UnmarshalText that
// makes a new one.
//
// The error is one line, FILE:LINE: what is wrong.
func ReadTable[R any](file, text string) (Table[R], error) {
	entries, err := table.Read(file, text, "change", "source", "does")
	if err != nil {
		return nil, err
	}
	var t Table[R]
	var r R
	for _, e := range entries {
		version, date, _ := strings.Cut(e.Name, " ")
		v, err := ParseVersion(version, "known", "0.4.30")
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
		t = append(t, Row[R]{v, r, Change{v.String(), date, e.Fields["change"], e.Fields["source"]}})
	}
	if len(t) == 0 {
		return nil, fmt.Errorf("%s: no releases", file)
	}
	return t, nil
}

// At returns what a framework does at a version: nothing before the oldest, and
// what the newest does after it.
func (t Table[R]) At(v Version) R {
	var r R
	for _, row := range t {
		if v.Less(row.Version) {
			break
		}
		r = row.Does
	}
	return r
}

// Find reads a version, see [ParseVersion]. One before the oldest release of the table is an
// error, too.
func (t Table[R]) Find(text, framework, like string) (Version, error) {
	v, err := ParseVersion(text, framework, like)
	if oldest := t[0].Version; err == nil && v.Less(oldest) {
		err = fmt.Errorf("%s %s is not known; the oldest known release is %s", framework, text, oldest)
	}
	return v, err
}

// Changes returns what the releases changed, without what they do.
func (t Table[R]) Changes() []Change {
	var list []Change
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
