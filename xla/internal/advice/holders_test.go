package advice

import (
	"slices"
	"strings"
	"testing"

	"gpumem/xla/internal/memory"
	"gpumem/xla/internal/test/remattest"
)

func TestHolders(t *testing.T) {
	m := remattest.Parsed(t, remattest.Layers(6, true))
	got, err := findHolders(m, memory.NewMeter(memory.Options{}), nil)
	if err != nil || len(got) == 0 {
		t.Fatal(got, err)
	}
	var sum uint64
	for n, h := range got {
		sum += h.Bytes
		if h.Values == 0 || n > 0 && h.Bytes > got[n-1].Bytes {
			t.Errorf("%+v", got)
		}
	}
	if sum != remattest.TempPeak(t, m) {
		t.Errorf("%d bytes held, and the peak is %d", sum, remattest.TempPeak(t, m))
	}
	if !slices.ContainsFunc(got, func(h Holder) bool { return h.Part == "layer_*/tanh" && h.Bytes >= 5*1024 }) {
		t.Errorf("no layers among %+v", got)
	}
}

// TestHolds: the sentence has the bytes of what runs once, of what the instruction needs, and of
// a product that is larger than its factors.
func TestHolds(t *testing.T) {
	const head = "HloModule m, is_scheduled=true\n\nadd {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT s = f32[] add(x, y)\n}\n\nENTRY e {\n  h = f32[64,16]{1,0} parameter(0)\n  w = f32[16,1024]{1,0} parameter(1)\n  zero = f32[] constant(0)\n"
	for _, c := range []struct {
		name, text string
		want       []string
		not        string
	}{
		{"logits beside a custom call's result", head + `  k = f32[64,256]{1,0} custom-call(h), custom_call_target="f"
  z = f32[64,1024]{1,0} dot(h, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/logits"}
  e = f32[64,1024]{1,0} exponential(z)
  s = f32[] reduce(e, zero), dimensions={0,1}, to_apply=add
  n = f32[] reduce(k, zero), dimensions={0,1}, to_apply=add
  ROOT r = f32[] add(s, n)
}
`, []string{"At e lie 64 KiB of loops", "512 KiB that it reads and makes", "0 B in what it calls", "512 KiB of it, in 2 arrays, have the size of the product jit(f)/logits (f32[64,1024]{1,0})"}, ""},
		{"a product that is smaller than its factors", head + `  v = f32[1024,16]{1,0} parameter(2)
  z = f32[64,1024]{1,0} broadcast(zero), dimensions={}
  e = f32[64,1024]{1,0} exponential(z)
  d = f32[64,16]{1,0} dot(e, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = f32[] reduce(d, zero), dimensions={0,1}, to_apply=add
}
`, []string{"0 B of loops", "512 KiB that it reads and makes"}, "pieces"},
		{"a small one", head + `  z = f32[64,1024]{1,0} dot(h, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  s = f32[] reduce(z, zero), dimensions={0,1}, to_apply=add
  b = f32[64,1024,16]{2,1,0} broadcast(s), dimensions={}
  e = f32[64,1024,16]{2,1,0} exponential(b)
  ROOT r = f32[] reduce(e, zero), dimensions={0,1,2}, to_apply=add
}
`, []string{"8 MiB that it reads and makes"}, "pieces"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := describeHolds(remattest.Parsed(t, c.text), memory.NewMeter(memory.Options{}))
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range c.want {
				if !strings.Contains(got, w) {
					t.Errorf("%q, want %q", got, w)
				}
			}
			if c.not != "" && strings.Contains(got, c.not) {
				t.Errorf("%q, with %q", got, c.not)
			}
		})
	}
}
