package memory

// That the analyses take time in proportion to a module: what they look at is counted.

import (
	"fmt"
	"strings"
	"testing"

	"gpumem/xla/internal/hlo"
)

// repeated joins a text for each of n numbers.
func repeated(n int, between string, f func(k int) string) string {
	list := make([]string, n)
	for k := range list {
		list[k] = f(k)
	}
	return strings.Join(list, between)
}

const vector = "f32[64]{0}"

// wideModules are modules with one instruction of n operands or parts.
var wideModules = map[string]func(n int) string{
	"a tuple of many": func(n int) string {
		return "ENTRY e {\n  p = " + vector + " parameter(0)\n" +
			repeated(n, "", func(k int) string { return fmt.Sprintf("  a%d = %s negate(p)\n", k, vector) }) +
			"  ROOT r = " + tupleOf(n) + " tuple(" + named("a", n) + ")\n}\n"
	},
	"get-tuple-element of each part": func(n int) string {
		return "ENTRY e {\n  p = " + tupleOf(n) + " parameter(0)\n" +
			repeated(n, "", func(k int) string { return fmt.Sprintf("  a%d = %s get-tuple-element(p), index=%d\n", k, vector, k) }) +
			"  ROOT r = " + tupleOf(n) + " tuple(" + named("a", n) + ")\n}\n"
	},
	"a part many times in a tuple": func(n int) string {
		return "ENTRY e {\n  p = " + vector + " parameter(0)\n" +
			repeated(n/2, "", func(k int) string { return fmt.Sprintf("  a%d = %s negate(p)\n", k, vector) }) +
			"  t = " + tupleOf(n) + " tuple(" + repeated(n, ", ", func(k int) string { return fmt.Sprintf("a%d", k%(n/2)) }) + ")\n" +
			"  ROOT b = " + tupleOf(n) + " opt-barrier(t)\n}\n"
	},
	"a loop fusion with many results": func(n int) string {
		return "f {\n  p = " + tupleOf(n) + " parameter(0)\n" +
			repeated(n, "", func(k int) string {
				return fmt.Sprintf("  g%d = %s get-tuple-element(p), index=%d\n  s%d = %s negate(g%d)\n", k, vector, k, k, vector, k)
			}) + "  ROOT x = " + tupleOf(n) + " tuple(" + named("s", n) + ")\n}\n\n" +
			"ENTRY e {\n  q = " + tupleOf(n) + " parameter(0)\n  ROOT z = " + tupleOf(n) + " fusion(q), kind=kLoop, calls=f\n}\n"
	},
	"a while after the other": func(n int) string {
		state := "(" + vector + ", " + vector + ")"
		return "b {\n  ROOT p = " + state + " parameter(0)\n}\n\nc {\n  q = " + state + " parameter(0)\n  ROOT k = pred[] constant(false)\n}\n\n" +
			"ENTRY e {\n  w0 = " + state + " parameter(0)\n" +
			repeated(n, "", func(k int) string {
				return fmt.Sprintf("  w%d = %s while(w%d), condition=c, body=b\n", k+1, state, k)
			}) + fmt.Sprintf("  ROOT r = %s copy(w%d)\n}\n", state, n)
	},
	"a collective of many": func(n int) string {
		return "add {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT z = f32[] add(x, y)\n}\n\n" +
			"ENTRY e {\n  p = " + vector + " parameter(0)\n" +
			repeated(n, "", func(k int) string { return fmt.Sprintf("  a%d = %s negate(p)\n", k, vector) }) +
			"  r = " + tupleOf(n) + " all-reduce(" + named("a", n) + "), to_apply=add\n  ROOT g = " + vector + " get-tuple-element(r), index=0\n}\n"
	},
	"a fusion of many": func(n int) string {
		return "f {\n" +
			repeated(n, "", func(k int) string { return fmt.Sprintf("  p%d = %s parameter(%d)\n", k, vector, k) }) +
			"  s0 = " + vector + " negate(p0)\n" +
			repeated(n-1, "", func(k int) string { return fmt.Sprintf("  s%d = %s add(s%d, p%d)\n", k+1, vector, k, k+1) }) +
			fmt.Sprintf("  ROOT x = %s dot(s%d, s%[2]d)\n}\n\nENTRY e {\n  q = %[1]s parameter(0)\n", vector, n-1) +
			repeated(n, "", func(k int) string { return fmt.Sprintf("  a%d = %s negate(q)\n", k, vector) }) +
			"  ROOT z = " + vector + " fusion(" + named("a", n) + "), kind=kLoop, calls=f\n}\n"
	},
	"outputs that one operation makes": func(n int) string {
		return "ENTRY e {\n  p = " + vector + " parameter(0)\n" +
			repeated(n, "", func(k int) string { return fmt.Sprintf("  a%d = %s negate(p)\n", k, vector) }) +
			"  t = " + tupleOf(n) + " tuple(" + named("a", n) + ")\n  r = " + tupleOf(n) + " custom-call(t), custom_call_target=\"x\"\n" +
			"  ROOT c = " + tupleOf(n) + " copy(r)\n}\n"
	},
	"a chain in the memory of one output": func(n int) string {
		return "ENTRY e {\n  a0 = " + vector + " parameter(0)\n" +
			repeated(n, "", func(k int) string { return fmt.Sprintf("  a%d = %s negate(a%d)\n", k+1, vector, k) }) +
			fmt.Sprintf("  ROOT r = %s negate(a%d)\n}\n", vector, n)
	},
	"a forward and a backward pass": func(n int) string {
		return "ENTRY e {\n  a0 = " + vector + " parameter(0)\n" +
			repeated(n, "", func(k int) string { return fmt.Sprintf("  a%d = %s negate(a%d)\n", k+1, vector, k) }) +
			fmt.Sprintf("  b%d = %s negate(a%d)\n", n, vector, n) +
			repeated(n, "", func(k int) string {
				return fmt.Sprintf("  b%d = %s add(b%d, a%d)\n", n-1-k, vector, n-k, n-k)
			}) + "  ROOT r = " + vector + " negate(b0)\n}\n"
	},
}

func tupleOf(n int) string { return "(" + repeated(n, ", ", func(int) string { return vector }) + ")" }

func named(name string, n int) string {
	return repeated(n, ", ", func(k int) string { return fmt.Sprint(name, k) })
}

// looked is how much both models and the assignment look at.
func looked(t *testing.T, text string) map[string]int {
	t.Helper()
	m, err := hlo.ParseString("HloModule m, is_scheduled=true\n\n" + text)
	if err != nil {
		t.Fatal(err)
	}
	p := NewMeter(Options{})
	if _, err := p.Peak(m.Entry); err != nil {
		t.Fatal(err)
	}
	a, err := AnalyzeModule(m)
	if err != nil {
		t.Fatal(err)
	}
	g := &assigner{a: a, in: make([]int32, len(a.BufferBytes))}
	g.allocations()
	lives := 0
	for _, x := range g.list {
		lives += x.lives.Looked
	}
	return map[string]int{
		"the pass's model":       p.a.looked,
		"parts and operands":     a.flow.Looked(),
		"operands taken over":    a.looked,
		"lives in an allocation": lives,
	}
}

func TestWideModulesTakeTimeInProportion(t *testing.T) {
	const n = 400
	for name, text := range wideModules {
		t.Run(name, func(t *testing.T) {
			small, large := looked(t, text(n)), looked(t, text(4*n))
			for what, k := range large {
				// 4 times as much, and logarithms; the square would be 16 times.
				if k > 8*small[what]+1000 {
					t.Errorf("%s: looks at %d for %d, and at %d for %d", what, small[what], n, k, 4*n)
				}
			}
		})
	}
}

// An instruction that takes a tuple of n parts as n of its operands uses n*n of them.
func TestTooManyUsesAreRefused(t *testing.T) {
	const n = 200
	m, err := hlo.ParseString("HloModule m\n\nENTRY e {\n  p = " + tupleOf(n) + " parameter(0)\n  ROOT c = " + vector + " custom-call(" +
		repeated(n, ", ", func(int) string { return "p" }) + "), custom_call_target=\"x\"\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	a := newAnalyzer(Options{})
	a.maxUses = (n+1)*n - 1 // the table, too
	if _, err := a.analyze(m.Entry); err == nil || err.Error() != "line 5: c in e: with it, the parts of results have more than 40199 uses" {
		t.Errorf("error %v; want one of too many uses", err)
	}
	a.maxUses = (n + 1) * n
	if _, err := a.analyze(m.Entry); err != nil {
		t.Error(err)
	}
}
