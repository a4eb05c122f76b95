// An environment that is being changed, with the list of changes.

package runenv

import (
	"slices"
	"strings"

	"gpumem/policy"
)

// outfit is an environment in the order in which it was given.
type outfit struct {
	names   []string // of variables, each once
	values  map[string]string
	odd     []string // lines that are no NAME=value, which execve passes on
	changes []Change
}

func newOutfit(env []string) *outfit {
	o := &outfit{values: make(map[string]string, len(env))}
	for _, line := range env {
		// A name may begin with "=", as Windows has them.
		at := strings.IndexByte(line[min(1, len(line)):], '=') + 1
		if at == 0 {
			o.odd = append(o.odd, line)
			continue
		}
		name, value := line[:at], line[at+1:]
		if _, twice := o.values[name]; !twice {
			o.names = append(o.names, name)
			o.values[name] = value
		}
	}
	return o
}

// lines is the environment as execve takes it.
func (o *outfit) lines() []string {
	var lines []string
	for _, name := range o.names {
		lines = append(lines, name+"="+o.values[name])
	}
	return append(lines, o.odd...)
}

// environment is the same for package policy.
func (o *outfit) environment() policy.Environment { return policy.Environ(o.lines()) }

// get is a variable's value; "" if it is not set.
func (o *outfit) get(name string) string { return o.values[name] }

func (o *outfit) has(name string) bool { _, set := o.values[name]; return set }

// set sets a variable. One that has the value already is kept.
func (o *outfit) set(name, value, why string) {
	old, was := o.values[name]
	if was && old == value {
		o.changes = append(o.changes, Change{Name: name, Old: old, New: old, Set: true, Kept: true, Why: why})
		return
	}
	if !was {
		o.names = append(o.names, name)
	}
	o.values[name] = value
	o.changes = append(o.changes, Change{Name: name, Old: old, New: value, Set: true, Why: why})
}

// unset removes a variable, if it is set.
func (o *outfit) unset(name, why string) {
	if old, was := o.values[name]; was {
		delete(o.values, name)
		o.names = slices.DeleteFunc(o.names, func(n string) bool { return n == name })
		o.changes = append(o.changes, Change{Name: name, Old: old, Why: why})
	}
}

// keep tells something about a variable that is not changed.
func (o *outfit) keep(name, why string) {
	value, set := o.values[name]
	o.changes = append(o.changes, Change{Name: name, Old: value, New: value, Set: set, Kept: true, Remark: true, Why: why})
}
