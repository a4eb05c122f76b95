package memory

import (
	"testing"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/verify"
)

// best puts a module into the order that takes least, of equal ones the first, and returns
// its name and what it takes.
func best(m *hlo.Module) (name string, bytes uint64, err error) {
	all, err := Orders(m)
	if err != nil {
		return "", 0, err
	}
	least := -1
	for n := range all {
		all[n].Apply(m)
		a, err := AnalyzeModule(m)
		if err != nil {
			return "", 0, err
		}
		if least < 0 || a.MinimumMemory() < bytes {
			least, bytes = n, a.MinimumMemory()
		}
	}
	all[least].Apply(m)
	return all[least].Name, bytes, nil
}

// Any module that reads is measured, or refused with an error: whatever its
// attributes say. A module that was verified and measured has a best order.
func FuzzAnalyzeModule(f *testing.F) {
	for _, text := range []string{whole, counted} {
		f.Add(text)
	}
	f.Add("HloModule m, input_output_alias={ {0}: (0, {1}, must-alias) }\n\nENTRY main {\n  p = (f32[2], f32[2]) parameter(0)\n  a = f32[2] get-tuple-element(p), index=1\n  b = ((f32[2]), f32[2], u32[]) negate-start(a)\n  c = f32[2] negate-done(b)\n  ROOT t = (f32[2]) tuple(c)\n}\n")
	// By the rules of GPUs.
	f.Add("HloModule m, is_scheduled=true, frontend_attributes={fingerprint_before_lhs=\"0\"}\n\nsum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b)\n}\n\n" +
		"f {\n  a = f32[64,8] parameter(0)\n  b = f32[512] parameter(1)\n  z = f32[] constant(0)\n  i = s32[] constant(1)\n  c = f32[512] bitcast(a)\n  d = f32[512] add(c, b)\n  t = f32[8,64] transpose(a), dimensions={1,0}\n  r = f32[64] reduce(a, z), dimensions={1}, to_apply=sum\n  e = f32[4] dynamic-slice(b, i), dynamic_slice_sizes={4}\n  u = f32[512] dynamic-update-slice(b, e, i)\n  ROOT g = (f32[512], f32[8,64], f32[64], f32[512]) tuple(d, t, r, u)\n}\n\n" +
		"ENTRY e {\n  p = f32[64,8] parameter(0)\n  q = f32[512] parameter(1)\n  m = f32[64,8] negate(p)\n  n = f32[512] negate(q)\n  f = (f32[512], f32[8,64], f32[64], f32[512]) fusion(m, n), kind=kInput, calls=f\n  ROOT x = f32[512] get-tuple-element(f), index=0\n}\n")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := hlo.ParseString(text)
		if err != nil {
			return
		}
		a, err := AnalyzeModule(m)
		if err != nil {
			return
		}
		bytes, _, alive := a.Peak()
		var sum uint64
		for _, v := range alive {
			sum += a.BufferBytes[v.Buffer]
		}
		if sum != bytes || a.MinimumMemory() < bytes {
			t.Fatalf("%d bytes alive, peak %d, as XLA counts %d\n%s", sum, bytes, a.MinimumMemory(), text)
		}
		if _, err := a.Assign(); err != nil {
			return
		}
		if verify.Module(m) != nil {
			return
		}
		name, _, err := best(m)
		if err != nil {
			return
		}
		if err := verify.Module(m); err != nil {
			t.Fatalf("the order %s: %v\n%s", name, err, text)
		}
	})
}
