package inventory

import (
	"math/rand/v2"
	"testing"
)

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

// What listLine takes, oneFigure lets through.
func TestOneFigureHidesNoLine(t *testing.T) {
	parts := []string{"used", "free mem", " ", "\t", ":", "=", "12", "3.5", ",", "GiB", "MB", "bytes", "B", "-", "| ", "\f"}
	r := rand.New(rand.NewPCG(1, 2))
	taken := 0
	for range 500_000 {
		text := parts[r.IntN(2)]
		for range 2 + r.IntN(6) {
			text += parts[r.IntN(len(parts))]
		}
		if listLine.MatchString(text) {
			taken++
			if !oneFigure(text) {
				t.Fatalf("%q is a line of a list", text)
			}
		}
	}
	if taken < 1000 {
		t.Errorf("%d lines of lists were tried, want 1,000", taken)
	}
}
