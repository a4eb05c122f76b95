package legal_test

import (
	"testing"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/legal"
	"gpumem/xla/internal/verify"
)

// FuzzCheck compares any two modules: there is an error or none, and a module is always a legal
// change of itself.
func FuzzCheck(f *testing.F) {
	f.Add(given, given)
	f.Fuzz(func(t *testing.T, a, b string) {
		before, err := hlo.ParseString(a)
		if err != nil || verify.Module(before) != nil {
			return
		}
		if err := (legal.Options{}).Check(before, before.Clone()); err != nil {
			t.Errorf("a module and itself: %v\n%s", err, before)
		}
		if after, err := hlo.ParseString(b); err == nil {
			_ = legal.Options{Collectives: len(a)%2 == 0, Loops: len(b)%2 == 0}.Check(before, after)
		}
	})
}
