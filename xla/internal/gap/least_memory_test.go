package gap

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
	"gpumem/xla/internal/pass"
	"gpumem/xla/internal/test/remattest"
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
		{"what runs once lies beside what comes between it and its reader", `HloModule m
ENTRY e {
  p = f32[256] parameter(0)
  s = f32[1024] custom-call(p), custom_call_target="f"
  a = f32[256] slice(s), slice={[0:256]}
  b = f32[256] negate(a)
  c = f32[256] negate(b)
  d = f32[1024] concatenate(c, c, c, c), dimensions={0}
  t = f32[1024] add(d, s)
  ROOT r = f32[1] slice(t), slice={[0:1]}
}
`, 12 * 1024},
		{"but not beside what its reader does not need", `HloModule m
ENTRY e {
  p = f32[256] parameter(0)
  s = f32[256] custom-call(p), custom_call_target="f"
  a = f32[256] negate(s)
  b = f32[1024] concatenate(a, a, a, a), dimensions={0}
  c = f32[1024] negate(b)
  d = f32[1] slice(c), slice={[0:1]}
  t = f32[1] slice(s), slice={[1:2]}
  ROOT r = (f32[1], f32[1]) tuple(d, t)
}
`, 8 * 1024},
		{"a loop's part", `HloModule m
cond {
  s = (f32[1024], f32[256]) parameter(0)
  ROOT y = pred[] constant(false)
}
body {
  ROOT s = (f32[1024], f32[256]) parameter(0)
}
ENTRY e {
  p = f32[1024] parameter(0)
  q = f32[256] parameter(1)
  a = f32[1024] negate(p)
  b = f32[256] negate(q)
  i = (f32[1024], f32[256]) tuple(a, b)
  w = (f32[1024], f32[256]) while(i), condition=cond, body=body
  x = f32[1024] get-tuple-element(w), index=0
  y = f32[256] get-tuple-element(w), index=1
  z = f32[512] concatenate(y, y), dimensions={0}
  k = f32[512] negate(z)
  l = f32[1024] concatenate(k, k), dimensions={0}
  n = f32[1024] subtract(x, l)
  ROOT r = f32[1] slice(n), slice={[0:1]}
}
`, 12 * 1024},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := LeastMemory(remattest.Parsed(t, tt.text), memory.NewMeter(memory.Options{}), true); err != nil || got != tt.want {
				t.Errorf("%d, %v; want %d", got, err, tt.want)
			}
		})
	}
}

// TestLeastMemoryHolds: no plan of either kind goes below.
func TestLeastMemoryHolds(t *testing.T) {
	for n := 2; n < 12; n += 3 {
		m := remattest.Parsed(t, remattest.Layers(n, true))
		bound, err := LeastMemory(m, memory.NewMeter(memory.Options{}), true)
		if err != nil {
			t.Fatal(err)
		}
		for _, limit := range []uint64{0, bound, 2 * bound, 4 * bound} {
			for _, run := range []func(*hlo.Module) error{
				func(m *hlo.Module) error { _, err := pass.Run(m, pass.Options{Limit: limit}); return err },
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

// TestLeastMemoryOnceHolds: no plan of either kind goes below, with loops, calls and what runs once.
func TestLeastMemoryOnceHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := remattest.Random(t)
		if rapid.Bool().Draw(t, "training") {
			text = remattest.Layers(rapid.IntRange(2, 6).Draw(t, "layers"), false)
		}
		// What runs once: some operations become custom calls.
		text = regexp.MustCompile(`(tanh|sine|multiply|negate|add)\(([a-z0-9_, ]+)\)`).ReplaceAllStringFunc(text, func(s string) string {
			if rapid.IntRange(0, 3).Draw(t, "once") > 0 {
				return s
			}
			return "custom-call" + s[strings.IndexByte(s, '('):] + `, custom_call_target="f"`
		})
		m := remattest.Parsed(t, text)
		if _, err := hlo.RemoveDead(m); err != nil { // a plan without outputs that nothing uses is below
			t.Fatal(err)
		}
		text = m.String()
		bound, err := LeastMemory(m, memory.NewMeter(memory.Options{}), true)
		if err != nil {
			t.Fatal(err)
		}
		plain, err := LeastMemory(m, memory.NewMeter(memory.Options{}), false)
		if err != nil || plain > bound {
			t.Fatalf("%d without what runs once, %d with it, %v", plain, bound, err)
		}
		limit := uint64(rapid.IntRange(0, 20_000).Draw(t, "limit"))
		ours, theirs := remattest.Parsed(t, text), remattest.Parsed(t, text)
		if _, err := Run(ours, Options{Limit: limit, Seconds: remattest.BySize, Collectives: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := pass.Run(theirs, pass.Options{Limit: limit}); err != nil {
			t.Fatal(err)
		}
		for _, m := range []*hlo.Module{ours, theirs} {
			if got := remattest.TempPeak(t, remattest.Written(t, m)); got < bound {
				t.Errorf("%d is below the bound of %d\n%s\n%s", got, bound, text, m)
			}
		}
	})
}
