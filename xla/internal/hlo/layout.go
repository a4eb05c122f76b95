package hlo

// Layouts as shapes have them, written or not.

import (
	"slices"
	"strconv"
	"strings"
)

// FullLayout returns the layout of a shape as text. An array without one has the default:
// the last dimension runs fastest.
func (s *Shape) FullLayout() string {
	if s.HasLayout || !s.IsArray() {
		return s.Layout
	}
	var b strings.Builder
	for d := len(s.Dims) - 1; d >= 0; d-- {
		b.WriteString(strconv.Itoa(d))
		if d > 0 {
			b.WriteByte(',')
		}
	}
	return b.String()
}

// Equal reports whether two shapes are the same, layouts included. It is false if one of
// them is nil.
func (s *Shape) Equal(t *Shape) bool {
	if s == nil || t == nil || s.Type != t.Type || s.Buffer != t.Buffer {
		return false
	}
	if !slices.Equal(s.Dims, t.Dims) || !slices.Equal(s.Dynamic, t.Dynamic) {
		return false
	}
	return s.FullLayout() == t.FullLayout() && slices.EqualFunc(s.Elements, t.Elements, (*Shape).Equal)
}

// MinorToMajor returns the dimensions of an array in the order of its layout, the one that
// runs fastest first. ok is false if the layout does not name each dimension once.
func (s *Shape) MinorToMajor() (order []int, ok bool) {
	text, _, _ := strings.Cut(s.FullLayout(), ":")
	seen := make([]bool, len(s.Dims))
	for text != "" {
		var d string
		d, text, _ = strings.Cut(text, ",")
		n, err := strconv.Atoi(strings.TrimSpace(d))
		if err != nil || n < 0 || n >= len(seen) || seen[n] {
			return nil, false
		}
		seen[n] = true
		order = append(order, n)
	}
	return order, len(order) == len(s.Dims)
}

// ElementBits returns the bits of an element as they lie in memory. It is 8 for an unknown
// type.
func (s *Shape) ElementBits() uint64 {
	if e := s.elementBits(); e > 0 {
		return e
	}
	if w := widths[s.Type]; w > 0 {
		return w
	}
	return 8
}
