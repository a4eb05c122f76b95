package replay

import (
	"slices"
	"testing"
)

// TestMeter: events of all passes are added up, whatever a pass told last, and the names are
// of what runs.
func TestMeter(t *testing.T) {
	var got []Progress
	m := newMeter(func(p Progress) { got = append(got, p) }, 3, 600)
	jax := m.pass(0, "jax", 100)
	jax(0.5)
	other := m.pass(1, "jax", 200) // on another pool
	elastic := m.pass(2, "elastic", 100)
	elastic(0.25)
	other(0.5)
	jax = m.pass(0, "jax", 100) // the second pass; the first told of a half
	jax(0.1)
	m.begin(1, running{})
	m.begin(0, running{})
	elastic(1)
	want := []Progress{
		{"jax", 50. / 600, 50, 600},
		{"jax, elastic", 75. / 600, 75, 600},
		{"jax, elastic", 175. / 600, 175, 600},
		{"jax, elastic", 235. / 600, 235, 600},
		{"elastic", 500. / 600, 500, 600},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if newMeter(nil, 1, 1).pass(0, "jax", 1) != nil {
		t.Error("nothing is reported, and there is a callback")
	}
	got = nil
	m = newMeter(func(p Progress) { got = append(got, p) }, 1, 0)
	m.pass(0, "jax", 100)(0.5)
	m.pass(0, "jax: trying", 100)(0.25)
	if want := []Progress{{"jax", 0.5, 50, 0}, {"jax: trying", 0.25, 125, 0}}; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
