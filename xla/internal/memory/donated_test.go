package memory

import (
	"testing"

	"gpumem/xla/internal/hlo"
)

// TestOutputWrittenBeforeDonatedParameterIsRead: an output cannot lie in the memory of a donated
// parameter that is read after the output is written, and takes memory by itself. If it is read
// before, the two are one.
func TestOutputWrittenBeforeDonatedParameterIsRead(t *testing.T) {
	for _, c := range []struct {
		name, rest  string
		total, peak uint64
	}{
		{"read after", "  y = f32[4,4] transpose(p), dimensions={1,0}\n  z = f32[4,4] dot(y, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n", 192, 192},
		{"read before", "  z = f32[4,4] dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n  y = f32[4,4] negate(p)\n", 128, 144},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := hlo.ParseString("HloModule m, is_scheduled=true, input_output_alias={ {0}: (0, {}, must-alias) }\n\nENTRY e {\n  p = f32[4,4] parameter(0)\n" + c.rest + "  ROOT t = (f32[4,4], f32[4,4]) tuple(y, z)\n}\n")
			if err != nil {
				t.Fatal(err)
			}
			a, err := AnalyzeModule(m)
			if err != nil {
				t.Fatal(err)
			}
			s, err := a.Assign()
			if err != nil {
				t.Fatal(err)
			}
			// Beside the table of the tuple, of 16 bytes, which the first peak comes before.
			if s.Total-16 != c.total {
				t.Errorf("total %d, want %d", s.Total-16, c.total)
			}
			if peak, _, _ := a.Peak(); peak != c.peak {
				t.Errorf("peak %d, want %d", peak, c.peak)
			}
		})
	}
}
