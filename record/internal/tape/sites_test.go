package tape

import (
	"testing"
)

// TestSitesNamed: a name is a site, the same one each time, and no name is none.
func TestSitesNamed(t *testing.T) {
	var table siteTable
	m := newSiteMaker(&table, false, func(int64) error { return nil })
	a, b := m.Site([]byte("matmul")), m.Site([]byte("relu"))
	if m.Site(nil) != 0 || a == b || m.Site([]byte("matmul")) != a || table.text(a) != "matmul" || table.text(b) != "relu" || table.len() != 3 {
		t.Errorf("sites %d and %d of %d: %q", a, b, table.len(), table.frames)
	}
}
