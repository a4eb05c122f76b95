package hlotest

// Random modules.

import (
	"fmt"
	"strings"

	"pgregory.net/rapid"
)

// A maker writes random modules: a and b are arrays of 4 and 8 numbers, t is a
// tuple of both.
type maker struct {
	t        *rapid.T
	done     []string // computations
	callable []string // those from t to t
	names    int
}

func (m *maker) pick(label string, n int) int { return rapid.IntRange(0, n-1).Draw(m.t, label) }

func (m *maker) name(prefix string) string {
	m.names++
	return fmt.Sprint(prefix, m.names)
}

const tShape = "(f32[4], f32[8])"

// body writes a computation that ends with a t.
func (m *maker) body(head string, pool map[string][]string, lines []string, depth int) string {
	from := func(kind string) string {
		return pool[kind][m.pick("of "+kind, len(pool[kind]))]
	}
	add := func(kind, text string) {
		n := m.name(kind)
		shape := map[string]string{"a": "f32[4]", "b": "f32[8]", "t": tShape}[kind]
		lines = append(lines, fmt.Sprintf("  %s = %s %s", n, shape, text))
		pool[kind] = append(pool[kind], n)
	}
	for range 1 + m.pick("length", 8) {
		kind := []string{"a", "b"}[m.pick("kind", 2)]
		switch m.pick("op", 16) {
		case 0, 1:
			add(kind, "negate("+from(kind)+")")
		case 2, 3:
			add(kind, "add("+from(kind)+", "+from(kind)+")")
		case 4:
			add(kind, "custom-call("+from("a")+", "+from("t")+"), custom_call_target=\"x\"")
		case 5:
			add("b", "dynamic-update-slice("+from("b")+", "+from("a")+", zero)")
		case 6, 7:
			add("t", "tuple("+from("a")+", "+from("b")+")")
		case 8:
			add("a", "get-tuple-element("+from("t")+"), index=0")
		case 9:
			add("b", "get-tuple-element("+from("t")+"), index=1")
		case 10:
			add("a", "bitcast("+from("a")+")")
		case 11:
			kind = []string{"a", "b", "t"}[m.pick("copied", 3)]
			add(kind, "copy("+from(kind)+")")
		case 12:
			add("t", "opt-barrier("+from("t")+")")
		case 13:
			if depth > 0 || len(m.callable) > 0 {
				add("t", "call("+from("t")+"), to_apply="+m.callee(depth, true))
			}
		case 14:
			if depth > 0 {
				add("t", "while("+from("t")+"), condition="+m.condition()+", body="+m.callee(depth, false))
			}
		case 15:
			if depth > 0 {
				add("t", "conditional(which, "+from("t")+", "+from("t")+"), true_computation="+m.callee(depth, false)+", false_computation="+m.callee(depth, false))
			}
		}
	}
	root := pool["t"][len(pool["t"])-1]
	if m.pick("other root", 4) == 0 {
		root = from("t")
	}
	for k, l := range lines {
		if strings.HasPrefix(l, "  "+root+" ") {
			lines[k] = "  ROOT" + l[1:]
		}
	}
	return head + " {\n" + strings.Join(lines, "\n") + "\n}\n"
}

func (m *maker) callee(depth int, again bool) string {
	if again && len(m.callable) > 0 && (depth == 0 || m.pick("again", 3) == 0) {
		return m.callable[m.pick("callee", len(m.callable))]
	}
	n := m.name("f")
	lines := []string{"  p" + n + " = " + tShape + " parameter(0)", "  x" + n + " = f32[4] get-tuple-element(p" + n + "), index=0",
		"  y" + n + " = f32[8] get-tuple-element(p" + n + "), index=1", "  zero = s32[] constant(0)", "  which = pred[] constant(true)"}
	text := m.body(n, map[string][]string{"a": {"x" + n}, "b": {"y" + n}, "t": {"p" + n}}, lines, depth-1)
	m.done = append(m.done, text)
	if again {
		m.callable = append(m.callable, n)
	}
	return n
}

func (m *maker) condition() string {
	n := m.name("c")
	m.done = append(m.done, fmt.Sprintf("%s {\n  q%s = %s parameter(0)\n  r%s = f32[4] get-tuple-element(q%s), index=0\n  ROOT s%s = pred[] custom-call(r%s), custom_call_target=\"x\"\n}\n", n, n, tShape, n, n, n, n))
	return n
}

// DrawModule draws the text of a module: loops, branches, calls, tuples and operations in
// place, with few values.
func DrawModule(t *rapid.T) string {
	m := &maker{t: t}
	lines := []string{"  p = f32[4] parameter(0)", "  q = f32[8] parameter(1)", "  zero = s32[] constant(0)", "  which = pred[] constant(true)", "  k = f32[8] constant({0,0,0,0,0,0,0,0})", "  t = " + tShape + " tuple(p, q)"}
	entry := m.body("ENTRY main", map[string][]string{"a": {"p"}, "b": {"q", "k"}, "t": {"t"}}, lines, 2)
	return "HloModule m, is_scheduled=true\n\n" + strings.Join(m.done, "\n") + "\n" + entry
}
