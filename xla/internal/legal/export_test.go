package legal

import "gpumem/xla/internal/hlo"

// Overwritten returns the first value of a module that is read after its memory was
// overwritten, for tests of what they are given.
func Overwritten(m *hlo.Module) (problem string) {
	runAll(newTable().numberModule(m, nil), func(f fault) bool {
		problem = refuse(f.i, "%s", f.problem).Error()
		return false
	})
	return problem
}
