package report

import (
	"fmt"
	"strings"
	"testing"
)

// TestTextsHasEachTextOnce: each text once, long ones cut, and not without end.
func TestTextsHasEachTextOnce(t *testing.T) {
	n := Texts{Most: 200 << 10, Longest: 4 << 10}
	if a, b := n.IndexOf("x"), n.IndexOf("y"); a != 0 || b != 1 || n.IndexOf("x") != 0 {
		t.Error("a text has two indexes")
	}
	if long := n.List[n.IndexOf(strings.Repeat("z", 3*n.Longest))]; len(long) != n.Longest+3 {
		t.Errorf("%d bytes", len(long))
	}
	for k := range n.Most / n.Longest * 2 {
		n.IndexOf(fmt.Sprint(k) + strings.Repeat("z", n.Longest))
	}
	total := 0
	for _, s := range n.List {
		total += len(s)
	}
	if total > n.Most+200 || n.IndexOf("another"+strings.Repeat("z", n.Longest)) != len(n.List)-1 {
		t.Errorf("%d bytes of texts", total)
	}
}

// TestTextsBeyondMostHaveOneIndex, also where what stands for them is longer than what is
// left: a Texts that asked for that would not return.
func TestTextsBeyondMostHaveOneIndex(t *testing.T) {
	n := Texts{Most: 10}
	n.IndexOf("0123456789")
	if a, b := n.IndexOf("more"), n.IndexOf("and more"); a != 1 || b != 1 || n.List[1] != tooMany {
		t.Errorf("%d, %d, %q", a, b, n.List)
	}
}
