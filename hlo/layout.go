package hlo

// Layouts as shapes have them, written or not.

import (
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
