// The environment while it is changed, and the list of changes.

package runenv

import (
	"slices"
	"strings"

	"gpumem/policy"
)

// editor is an environment in its original order, with the changes made to it.
type editor struct {
	names   []string // of variables, each once
	values  map[string]string
	odd     []string // lines that are no NAME=value, which execve passes on
	changes []Change
}

func newEditor(env []string) *editor {
	e := &editor{values: make(map[string]string, len(env))}
	for _, line := range env {
		// A name may begin with "=", as Windows has them.
		at := strings.IndexByte(line[min(1, len(line)):], '=') + 1
		if at == 0 {
			e.odd = append(e.odd, line)
			continue
		}
		name, value := line[:at], line[at+1:]
		if _, twice := e.values[name]; !twice {
			e.names = append(e.names, name)
			e.values[name] = value
		}
	}
	return e
}

// lines returns the environment as execve takes it.
func (e *editor) lines() []string {
	var lines []string
	for _, name := range e.names {
		lines = append(lines, name+"="+e.values[name])
	}
	return append(lines, e.odd...)
}

// environment returns it for package policy.
func (e *editor) environment() policy.Environment { return policy.Environ(e.lines()) }

// get returns a variable's value, or "" if it is not set.
func (e *editor) get(name string) string { return e.values[name] }

func (e *editor) has(name string) bool { _, set := e.values[name]; return set }

// set sets a variable. One that has the value already is kept.
func (e *editor) set(name, value, why string) {
	old, was := e.values[name]
	if was && old == value {
		e.changes = append(e.changes, Change{Name: name, Old: old, New: old, Set: true, Kept: true, Why: why})
		return
	}
	if !was {
		e.names = append(e.names, name)
	}
	e.values[name] = value
	e.changes = append(e.changes, Change{Name: name, Old: old, New: value, Set: true, Why: why})
}

// unset removes a variable, if it is set.
func (e *editor) unset(name, why string) {
	if old, was := e.values[name]; was {
		delete(e.values, name)
		e.names = slices.DeleteFunc(e.names, func(n string) bool { return n == name })
		e.changes = append(e.changes, Change{Name: name, Old: old, Why: why})
	}
}

// keep adds a remark on a variable that is not changed.
func (e *editor) keep(name, why string) {
	value, set := e.values[name]
	e.changes = append(e.changes, Change{Name: name, Old: value, New: value, Set: set, Kept: true, Remark: true, Why: why})
}
