package memory

import (
	"fmt"
	"strings"

	"gpumem/size"
)

// String is the text that XLA prints, with its units and its columns, so that the two can be
// compared line by line: see example_module_test.go.
func (s *Assignment) String() string {
	var b strings.Builder
	line := func(name string, bytes int64, of uint64) {
		fmt.Fprintf(&b, "%33s: %10s", name, size.XLA(bytes))
		if of > 0 {
			fmt.Fprintf(&b, " (%.2f%%)", 100*float64(bytes)/float64(of))
		}
		b.WriteByte('\n')
	}
	b.WriteString("BufferAssignment stats:\n")
	line("parameter allocation", int64(s.Parameters), 0)
	line("constant allocation", int64(s.Constants), 0)
	line("maybe_live_out allocation", int64(s.LiveOut), 0)
	line("preallocated temp allocation", int64(s.Temp), 0)
	line("preallocated temp fragmentation", int64(s.Fragmentation), max(s.Temp, 1))
	line("total allocation", int64(s.Total), 0)
	line("total fragmentation", s.TotalFragmentation, max(s.Total, 1))
	return b.String()
}
