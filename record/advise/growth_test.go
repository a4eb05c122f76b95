package advise

import "testing"

// TestGrowthNames: what is named is the place whose rate is the most, whatever comes first; no place gives way to one, and one of an
// unknown rate to a known rate.
func TestGrowthNames(t *testing.T) {
	steady := func(perStep uint64, where string) func(*growth) {
		return func(g *growth) { g.addSteady(perStep, 10, where) }
	}
	unknown := func(bytes uint64, where string) func(*growth) {
		return func(g *growth) { g.addUnknown(bytes, where) }
	}
	for _, tc := range []struct {
		name  string
		adds  []func(*growth)
		where string
		rate  uint64
		grown uint64
		steps uint64
	}{
		{"the most", []func(*growth){steady(1, "a"), steady(3, "b"), steady(2, "c")}, "b", 6, 0, 10},
		{"no place behind a place", []func(*growth){steady(1, "a"), steady(5, "")}, "a", 6, 0, 10},
		{"a place behind no place", []func(*growth){steady(5, ""), steady(1, "a")}, "a", 6, 0, 10},
		{"an unknown rate alone", []func(*growth){unknown(7, "u"), unknown(9, "v"), unknown(8, "w")}, "v", 0, 24, 0},
		{"a known rate behind an unknown one", []func(*growth){unknown(7, "u"), steady(1, "a")}, "a", 1, 7, 10},
		{"a known rate at no place behind an unknown one", []func(*growth){unknown(7, "u"), steady(1, "")}, "", 1, 7, 10},
		{"an unknown rate behind a known one at no place", []func(*growth){steady(1, ""), unknown(7, "u")}, "", 1, 7, 10},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var g growth
			for _, add := range tc.adds {
				add(&g)
			}
			if g.Where != tc.where || g.BytesPerStep != tc.rate || g.Grown != tc.grown || g.RecordedSteps != tc.steps {
				t.Errorf("%+v", g.Grows)
			}
		})
	}
}
