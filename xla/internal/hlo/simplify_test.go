package hlo_test

import (
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/hlointerp"
	"gpumem/xla/internal/test/remattest"
	"gpumem/xla/internal/verify"
)

func TestSimplify(t *testing.T) {
	const twice = "HloModule m\n\nf {\n  x = f32[4] parameter(0)\n  y = f32[4] parameter(1)\n  d = f32[4] multiply(x, y)\n  ROOT s = f32[4] add(d, y)\n}\n\n"
	for _, c := range []struct {
		name, text string
		want       string // the opcodes of the entry
	}{
		{"a call twice, one in the other's operand", twice + "ENTRY e {\n  p = f32[4] parameter(0)\n  q = f32[4] parameter(1)\n  a = f32[4] call(p, q), to_apply=f\n  ROOT b = f32[4] call(a, p), to_apply=f\n}\n",
			"parameter parameter multiply add multiply add"},
		{"a call that returns its parameter", "HloModule m\n\nf {\n  x = f32[4] parameter(0)\n  ROOT y = f32[4] parameter(1)\n}\n\nENTRY e {\n  p = f32[4] parameter(0)\n  q = f32[4] negate(p)\n  a = f32[4] call(p, q), to_apply=f\n  ROOT b = f32[4] exponential(a)\n}\n",
			"parameter negate exponential"},
		{"calls in a call", "HloModule m\n\nf {\n  x = f32[4] parameter(0)\n  ROOT y = f32[4] negate(x)\n}\n\ng {\n  x = f32[4] parameter(0)\n  y = f32[4] call(x), to_apply=f\n  ROOT z = f32[4] call(y), to_apply=f\n}\n\nENTRY e {\n  p = f32[4] parameter(0)\n  ROOT b = f32[4] call(p), to_apply=g\n}\n",
			"parameter negate negate"},
		{"a call that something waits for", twice + "ENTRY e {\n  p = f32[4] parameter(0)\n  a = f32[4] call(p, p), to_apply=f\n  ROOT b = f32[4] negate(p), control-predecessors={a}\n}\n",
			"parameter call negate"},
		{"a call that says so", twice + "ENTRY e {\n  p = f32[4] parameter(0)\n  ROOT a = f32[4] call(p, p), to_apply=f, frontend_attributes={inlineable=\"false\"}\n}\n",
			"parameter call"},
		{"a transpose that the layouts undo", "HloModule m\n\nENTRY e {\n  p = f32[4,6]{1,0} parameter(0)\n  ROOT a = f32[6,4]{0,1} transpose(p), dimensions={1,0}\n}\n", "parameter bitcast"},
		{"a transpose that moves", "HloModule m\n\nENTRY e {\n  p = f32[4,6]{1,0} parameter(0)\n  ROOT a = f32[6,4]{1,0} transpose(p), dimensions={1,0}\n}\n", "parameter transpose"},
		{"a transpose of three dimensions that the layouts undo", "HloModule m\n\nENTRY e {\n  p = f32[4,6,8]{2,1,0} parameter(0)\n  ROOT a = f32[6,4,8]{2,0,1} transpose(p), dimensions={1,0,2}\n}\n", "parameter bitcast"},
		{"a cycle of three that the layouts undo", "HloModule m\n\nENTRY e {\n  p = f32[4,6,8]{2,1,0} parameter(0)\n  ROOT a = f32[6,8,4]{1,0,2} transpose(p), dimensions={1,2,0}\n}\n", "parameter bitcast"},
		{"a cycle of three the other way", "HloModule m\n\nENTRY e {\n  p = f32[4,6,8]{2,1,0} parameter(0)\n  ROOT a = f32[6,8,4]{0,2,1} transpose(p), dimensions={1,2,0}\n}\n", "parameter transpose"},
		{"a transpose of one row", "HloModule m\n\nENTRY e {\n  p = f32[1,6]{1,0} parameter(0)\n  ROOT a = f32[6,1]{1,0} transpose(p), dimensions={1,0}\n}\n", "parameter bitcast"},
		{"a reshape", "HloModule m\n\nENTRY e {\n  p = f32[4,6]{1,0} parameter(0)\n  ROOT a = f32[24]{0} reshape(p)\n}\n", "parameter bitcast"},
		{"a reshape in another layout", "HloModule m\n\nENTRY e {\n  p = f32[4,6]{0,1} parameter(0)\n  ROOT a = f32[24]{0} reshape(p)\n}\n", "parameter reshape"},
		{"a reshape in tiles", "HloModule m\n\nENTRY e {\n  p = f32[4,6]{1,0:T(2,2)} parameter(0)\n  ROOT a = f32[24]{0} reshape(p)\n}\n", "parameter reshape"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := remattest.Parsed(t, c.text)
			if err := hlo.Simplify(m); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, i := range m.Entry.Instructions {
				got = append(got, string(i.Opcode))
			}
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("%s, want %s", s, c.want)
			}
			if !strings.Contains(c.text, "T(2,2)") {
				sameResults(t, c.text, m)
			}
		})
	}
}

// sameResults fails unless a module, which was made of a text, returns what the text does.
func sameResults(t rapid.TB, text string, m *hlo.Module) {
	t.Helper()
	if err := verify.Module(m); err != nil {
		t.Fatalf("%v\n%s\n%s", err, text, m)
	}
	before, err := hlo.ParseString(text)
	if err != nil {
		t.Fatal(err)
	}
	after, err := hlo.ParseString(m.String())
	if err != nil {
		t.Fatalf("%v\n%s", err, m)
	}
	args, err := hlointerp.Arguments(before, 1)
	if err != nil {
		t.Fatal(err)
	}
	x, err := hlointerp.Run(before, args, hlointerp.Options{Work: 1 << 22})
	if err != nil {
		return // what the interpreter cannot run, such as a loop without end
	}
	y, err := hlointerp.Run(after, args, hlointerp.Options{Work: 1 << 22})
	if err != nil {
		t.Fatalf("%v\n%s", err, m)
	}
	if !hlointerp.Equal(x, y) {
		t.Errorf("the results differ\n%s\n%s", text, m)
	}
}

func TestSimplifyRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := remattest.Random(t)
		m, err := hlo.ParseString(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := hlo.Simplify(m); err != nil {
			t.Fatal(err)
		}
		if rapid.Bool().Draw(t, "fuse") {
			if _, err := hlo.Fuse(m); err != nil {
				t.Fatal(err)
			}
		}
		sameResults(t, text, m)
	})
}

// TestSimplifyDoubling: each computation calls the one before it twice.
func TestSimplifyDoubling(t *testing.T) {
	text := "HloModule m\n\nf0 {\n  x = f32[4] parameter(0)\n  ROOT y = f32[4] negate(x)\n}\n\n"
	last := "f0"
	for n := range 30 {
		name := "f" + strings.Repeat("x", n+1)
		text += name + " {\n  x = f32[4] parameter(0)\n  y = f32[4] call(x), to_apply=" + last + "\n  ROOT z = f32[4] call(y), to_apply=" + last + "\n}\n\n"
		last = name
	}
	m := remattest.Parsed(t, text+"ENTRY e {\n  p = f32[4] parameter(0)\n  ROOT b = f32[4] call(p), to_apply="+last+"\n}\n")
	if err := hlo.Simplify(m); err != nil {
		t.Fatal(err)
	}
	if n := m.Instructions(); n > 1<<20 {
		t.Errorf("%d instructions", n)
	}
}

func TestSimplifyReal(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: real modules take seconds; run without -short")
	}
	for _, file := range remattest.Real(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".hlo.gz"), func(t *testing.T) {
			m := remattest.Read(t, file)
			was, n := remattest.TempPeak(t, m), m.Instructions()
			if err := hlo.Simplify(m); err != nil {
				t.Fatal(err)
			}
			if err := verify.Module(m); err != nil {
				t.Fatal(err)
			}
			t.Logf("%d instructions of %d; peak %.3f of what it was", m.Instructions(), n, float64(remattest.TempPeak(t, remattest.Written(t, m)))/float64(was))
		})
	}
}
