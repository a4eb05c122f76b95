// The differences between two answers.

package explain

import (
	"reflect"
	"slices"

	"gpumem/policy"
	"gpumem/policy/frameworks"
)

// A Comparison is two answers and their differences.
type Comparison struct {
	A           Answer          `json:"a"`
	B           Answer          `json:"b"`
	Differences []Difference    `json:"differences"`
	Changes     []policy.Change `json:"changes"` // of the releases between
}

// A Difference is a field that differs: one of an answer, or KIND.NAME for what
// an answer says of one variable (settings, warnings, errors) or of one kind of
// pool (pools). A side that has no such field is nil.
type Difference struct {
	Field string `json:"field"`
	A     any    `json:"a"`
	B     any    `json:"b"`
}

// Compare compares two answers, but for their releases.
func Compare(a, b Answer) Comparison {
	between := frameworks.Changes(frameworks.Release{Name: a.Framework, Version: a.Version}, frameworks.Release{Name: b.Framework, Version: b.Version})
	return Comparison{A: a, B: b, Differences: differences(a, b), Changes: append([]policy.Change{}, between...)}
}

func differences(a, b Answer) []Difference {
	list := []Difference{}
	add := func(field string, a, b any) {
		if !reflect.DeepEqual(a, b) {
			list = append(list, Difference{field, a, b})
		}
	}
	add("framework", a.Framework, b.Framework)
	add("allocator", a.Allocator, b.Allocator)
	add("preallocate", a.Preallocate, b.Preallocate)
	add("fraction", a.Fraction, b.Fraction)
	add("of", a.Of, b.Of)
	add("limit_bytes", a.Limit, b.Limit)
	add("taken_at_first_operation_bytes", a.First, b.First)
	add("gets_bytes", a.Gets, b.Gets)
	inA, inB := parts(a), parts(b)
	for _, field := range union(inA.fields, inB.fields) {
		add(field, inA.value(field), inB.value(field))
	}
	add("read", a.Read, b.Read)
	return list
}

// partsOf are the lists of an answer, by field.
type partsOf struct {
	fields []string
	values map[string][]any
}

// value returns the list of a field, or nil without a type where there is none.
func (p partsOf) value(field string) any {
	if v, ok := p.values[field]; ok {
		return v
	}
	return nil
}

func parts(a Answer) partsOf {
	p := partsOf{values: map[string][]any{}}
	add := func(field string, v any) {
		if p.values[field] == nil {
			p.fields = append(p.fields, field)
		}
		p.values[field] = append(p.values[field], v)
	}
	for _, pool := range a.Pools {
		add("pools."+pool.Space, pool)
	}
	for _, s := range a.Settings {
		add("settings."+s.Name, s.Effect)
	}
	for _, w := range a.Warnings {
		add("warnings."+w.Name, w.Text)
	}
	for _, e := range a.Errors {
		add("errors."+e.Name, e.Text)
	}
	return p
}

// union returns a, followed by what only b has.
func union(a, b []string) []string {
	out := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// A VariableDifference is a variable of which two answers say different things;
// a text is empty where that answer does not mention the variable.
type VariableDifference struct{ Name, A, B string }

// Variables returns the variables of which the two answers say different things.
func (c Comparison) Variables() []VariableDifference {
	var list []VariableDifference
	namesA, textsA := about(c.A)
	namesB, textsB := about(c.B)
	for _, name := range union(namesA, namesB) {
		if a, b := textsA[name], textsB[name]; a != b {
			list = append(list, VariableDifference{name, a, b})
		}
	}
	return list
}

// about returns what an answer says of each variable, in one text.
func about(a Answer) (names []string, texts map[string]string) {
	texts = map[string]string{}
	add := func(name, text string) {
		if texts[name] == "" {
			names = append(names, name)
		} else {
			text = texts[name] + "; " + text
		}
		texts[name] = text
	}
	for _, s := range a.Settings {
		add(s.Name, s.Effect)
	}
	for _, w := range a.Warnings {
		add(w.Name, w.Text)
	}
	for _, e := range a.Errors {
		if e.CPU {
			add(e.Name, e.Then)
			continue
		}
		add(e.Name, "raised: "+e.Text)
	}
	return names, texts
}
