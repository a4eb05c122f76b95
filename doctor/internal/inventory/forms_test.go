package inventory

import "testing"

// TestFormsHaveABitEach: candidates has 64 bits, and looks for four letters.
func TestFormsHaveABitEach(t *testing.T) {
	if len(forms) >= refusalBit {
		t.Errorf("%d forms, and room for %d", len(forms), refusalBit)
	}
	for _, f := range forms {
		if len(f.needle) < 4 || candidates(f.needle) == 0 {
			t.Errorf("needle %q", f.needle)
		}
	}
}
