package memory

import (
	"testing"

	"gpumem/hlo"
	"gpumem/hlo/verify"
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
