// The table of variables, variables.txt: every variable that has to do with GPU
// memory, and those of the same programs that look like one.

package frameworks

import (
	_ "embed" // variables.txt
	"fmt"
	"slices"
	"strings"
	"sync"

	"gpumem/internal/table"
	"gpumem/policy"
)

// About is the subject of a variable.
type About uint8

// The subjects of variables.
const (
	AboutMemory  About = iota // GPU memory
	AboutDevices              // which GPUs are seen
	AboutHost                 // host memory for transfers
	AboutOther                // neither: here so that it is not taken for a typo, or since it can raise
)

// A Variable is one that somebody reads. The texts are Markdown.
type Variable struct {
	Name    string
	Readers []Reader // the one whose name it bears first
	About   About
	Values  string // what it takes
	Default string // what holds without it
	Effect  string // what it does
	Not     string // what it does not do, though it may seem to; may be empty
	Source  string // where that is known from
}

// A Reader is a program that reads a variable.
type Reader struct {
	// Framework is its name as in the type [Framework], or "driver" for what
	// NVIDIA's driver and libraries read, whatever the framework.
	Framework string
	// Since is the first release that reads it. Empty: all that are known, or
	// a framework without versions.
	Since string
}

// ReadBy reports whether a framework reads v, in any release.
func (v Variable) ReadBy(framework string) bool {
	return slices.ContainsFunc(v.Readers, func(r Reader) bool {
		return r.Framework == framework || r.Framework == "driver"
	})
}

// ReadAt reports whether a release of a framework reads v.
func (v Variable) ReadAt(framework string, at policy.Version) bool {
	return slices.ContainsFunc(v.Readers, func(r Reader) bool {
		if r.Framework != framework {
			return r.Framework == "driver"
		}
		since, _ := policy.ParseVersion(r.Since, "", "") // "": version 0
		return !at.Less(since)
	})
}

// Lookup returns the entry of a name in [Variables].
func Lookup(name string) (Variable, bool) {
	i := slices.IndexFunc(Variables(), func(v Variable) bool { return v.Name == name })
	if i < 0 {
		return Variable{}, false
	}
	return Variables()[i], true
}

//go:embed variables.txt
var variablesText string

// Variables returns the table, in the order of the documentation. The slice is
// shared: do not change it.
var Variables = sync.OnceValue(func() []Variable {
	list, err := readVariables(variablesText)
	if err != nil {
		panic(err) // a test rules it out
	}
	return list
})

// readVariables reads the format of variables.txt. The error names the line.
func readVariables(text string) ([]Variable, error) {
	entries, err := table.Read("variables.txt", text, "readers", "about", "values", "default", "effect", "not", "source")
	if err != nil {
		return nil, err
	}
	var list []Variable
	for _, e := range entries {
		f := e.Fields
		about := slices.Index([]string{"", "devices", "host", "other"}, f["about"])
		if about < 0 || f["readers"] == "" {
			return nil, fmt.Errorf("variables.txt:%d: %s: want readers, and about, if there, one of devices, host, other", e.Line, e.Name)
		}
		v := Variable{Name: e.Name, About: About(about), Values: f["values"], Default: f["default"], Effect: f["effect"], Not: f["not"], Source: f["source"]}
		for reader := range strings.SplitSeq(f["readers"], ", ") {
			name, since, _ := strings.Cut(reader, " ")
			v.Readers = append(v.Readers, Reader{name, since})
		}
		list = append(list, v)
	}
	return list, nil
}
