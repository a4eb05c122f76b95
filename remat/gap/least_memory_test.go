package gap

import (
	"testing"

	"gpumem/hlo"
	"gpumem/hlo/memory"
	"gpumem/internal/test/remattest"
	"gpumem/remat/xla"
)

func TestLeastMemory(t *testing.T) {
	tests := []struct {
		name, text string
		want       uint64
	}{
		{"what is read and made", `HloModule m
ENTRY e {
  p = f32[256] parameter(0)
  a = f32[256] negate(p)
  b = f32[256] negate(a)
  c = f32[512] concatenate(a, b), dimensions={0}
  ROOT r = f32[256] slice(c), slice={[0:256]}
}
`, 4 * 1024},
		{"twice the same operand", `HloModule m
ENTRY e {
  p = f32[256] parameter(0)
  a = f32[256] negate(p)
  b = f32[256] add(a, a)
  ROOT r = f32[1] slice(b), slice={[0:1]}
}
`, 2 * 1024},
		{"nobody needs the largest", `HloModule m
ENTRY e {
  p = f32[256] parameter(0)
  a = f32[1024] concatenate(p, p, p, p), dimensions={0}
  ROOT r = f32[256] negate(p)
}
`, 0},
		{"inside of a call", `HloModule m
f {
  q = f32[256] parameter(0)
  a = f32[256] negate(q)
  ROOT b = f32[256] negate(a)
}
ENTRY e {
  p = f32[256] parameter(0)
  k = f32[256] call(p), to_apply=f
  ROOT r = f32[256] negate(k)
}
`, 2 * 1024},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := LeastMemory(remattest.Parsed(t, tt.text), memory.NewMeter(memory.Options{})); err != nil || got != tt.want {
				t.Errorf("%d, %v; want %d", got, err, tt.want)
			}
		})
	}
}

// TestMemoryHolds: no plan of either kind goes below.
func TestLeastMemoryHolds(t *testing.T) {
	for n := 2; n < 12; n += 3 {
		m := remattest.Parsed(t, remattest.Layers(n, true))
		bound, err := LeastMemory(m, memory.NewMeter(memory.Options{}))
		if err != nil {
			t.Fatal(err)
		}
		for _, limit := range []uint64{0, bound, 2 * bound, 4 * bound} {
			for _, run := range []func(*hlo.Module) error{
				func(m *hlo.Module) error { _, err := xla.Run(m, xla.Options{Limit: limit}); return err },
				func(m *hlo.Module) error {
					_, err := Run(m, Options{Limit: limit, Seconds: remattest.BySize})
					return err
				},
			} {
				m := remattest.Parsed(t, remattest.Layers(n, true))
				if err := run(m); err != nil {
					t.Fatal(err)
				}
				if got := remattest.TempPeak(t, remattest.Written(t, m)); got < bound {
					t.Errorf("%d layers, limit %d: %d is below the bound of %d", n, limit, got, bound)
				}
			}
		}
	}
}
