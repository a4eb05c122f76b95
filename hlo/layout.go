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
	return s != nil && t != nil && s.Type == t.Type && s.Buffer == t.Buffer && slices.Equal(s.Dims, t.Dims) &&
		slices.Equal(s.Dynamic, t.Dynamic) && s.FullLayout() == t.FullLayout() && slices.EqualFunc(s.Elements, t.Elements, (*Shape).Equal)
}
