package remattest

// Random modules.

import (
	"fmt"
	"strings"

	"pgregory.net/rapid"
)

// A generator writes a module line by line and knows the values of each shape.
type generator struct {
	t     *rapid.T
	lines strings.Builder
	n     int
	of    map[string][]string // names by shape
	all   []string
}

var vectors = []string{"f32[256]{0}", "f32[1024]{0}", "f32[64,4]{1,0}", "f32[256,4]{1,0}"}

func (g *generator) pick(list []string) string {
	return list[rapid.IntRange(0, len(list)-1).Draw(g.t, "which")]
}

// add writes an instruction and returns its name.
func (g *generator) add(shape, text string) string {
	g.n++
	name := fmt.Sprint("v", g.n)
	// Sometimes it has to run after another.
	if len(g.all) > 2 && rapid.IntRange(0, 19).Draw(g.t, "control") == 0 {
		text += ", control-predecessors={" + g.pick(g.all) + "}"
	}
	fmt.Fprintf(&g.lines, "  %s = %s %s\n", name, shape, text)
	g.of[shape] = append(g.of[shape], name)
	g.all = append(g.all, name)
	return name
}

// value is one of a shape, new if there is none. Old ones are as likely as young ones:
// so they live long.
func (g *generator) value(shape string) string {
	if list := g.of[shape]; len(list) > 0 {
		return g.pick(list)
	}
	return g.add(shape, "broadcast(s), dimensions={}")
}

func (g *generator) step() {
	shape := g.pick(vectors)
	switch rapid.IntRange(0, 12).Draw(g.t, "op") {
	case 0, 1:
		g.add(shape, "broadcast(s), dimensions={}")
	case 2, 3, 4:
		a, b := g.value(shape), g.value(shape)
		g.add(shape, "add("+a+", "+b+")")
	case 5:
		g.add(shape, "negate("+g.value(shape)+")")
	case 6:
		g.add("f32[256]{0}", "bitcast("+g.value("f32[64,4]{1,0}")+")")
	case 7:
		pair := g.add("(f32[1024]{0}, f32[1024]{0})", "fusion(s, s), kind=kLoop, calls=pair")
		for range rapid.IntRange(1, 3).Draw(g.t, "elements") {
			g.add("f32[1024]{0}", fmt.Sprintf("get-tuple-element(%s), index=%d", pair, rapid.IntRange(0, 1).Draw(g.t, "index")))
		}
	case 8:
		if list := g.of["(f32[1024]{0}, f32[1024]{0})"]; len(list) > 0 {
			g.add("f32[1024]{0}", "fusion("+g.pick(list)+"), kind=kLoop, calls=sum"+fmt.Sprint(g.fusion("sum")))
		}
	case 9:
		g.add("f32[1024]{0}", "call("+g.value("f32[1024]{0}")+"), to_apply=double")
	case 10:
		a, b := g.value("f32[256]{0}"), g.value("f32[1024]{0}")
		state := g.add("(f32[256]{0}, f32[1024]{0})", "tuple("+a+", "+b+")")
		g.add("(f32[256]{0}, f32[1024]{0})", "while("+state+"), condition=always, body=body")
	case 11:
		if list := g.of["(f32[256]{0}, f32[1024]{0})"]; len(list) > 0 {
			g.add("f32[256]{0}", "get-tuple-element("+g.pick(list)+"), index=0")
		}
	case 12:
		g.add(shape, "copy("+g.value(shape)+")")
	}
}

// fusion counts the fusions: each has its own computation.
func (g *generator) fusion(string) int {
	g.of["fusions"] = append(g.of["fusions"], "")
	return len(g.of["fusions"])
}

// Random returns the text of a random module with loops, calls and fusions.
func Random(t *rapid.T) string {
	g := &generator{t: t, of: map[string][]string{}}
	for range rapid.IntRange(3, 40).Draw(t, "steps") {
		g.step()
	}
	var out []string
	for range rapid.IntRange(1, 3).Draw(t, "results") {
		out = append(out, g.value(g.pick(vectors)))
	}
	pairs := strings.Count(g.lines.String(), "calls=pair")
	body := g.lines.String()
	var text strings.Builder
	text.WriteString(`HloModule m, is_scheduled=true
always {
  q = (f32[256]{0}, f32[1024]{0}) parameter(0)
  ROOT y = pred[] constant(true)
}
body {
  q = (f32[256]{0}, f32[1024]{0}) parameter(0)
  a = f32[256]{0} get-tuple-element(q), index=0
  b = f32[1024]{0} get-tuple-element(q), index=1
  n = f32[1024]{0} negate(b)
  m = f32[1024]{0} multiply(n, b)
  c = f32[2048]{0} concatenate(m, m), dimensions={0}
  d = f32[1024]{0} slice(c), slice={[0:1024]}
  e = f32[1024]{0} add(n, d)
  ROOT o = (f32[256]{0}, f32[1024]{0}) tuple(a, e)
}
` + strings.Replace(pair, "pair {", "deep {", 1) + `double {
  q = f32[1024]{0} parameter(0)
  z = f32[] constant(0)
  f = (f32[1024]{0}, f32[1024]{0}) fusion(z, z), kind=kLoop, calls=deep
  f0 = f32[1024]{0} get-tuple-element(f), index=0
  n = f32[1024]{0} subtract(f0, q)
  k = f32[2048]{0} concatenate(n, q), dimensions={0}
  l = f32[1024]{0} slice(k), slice={[0:1024]}
  f1 = f32[1024]{0} get-tuple-element(f), index=1
  h = f32[1024]{0} add(l, f1)
  ROOT s = f32[1024]{0} add(h, n)
}
`)
	for n := range pairs {
		name := fmt.Sprint("pair", n+1)
		text.WriteString(strings.Replace(pair, "pair {", name+" {", 1))
		body = strings.Replace(body, "calls=pair\n", "calls="+name+"\n", 1)
		body = strings.Replace(body, "calls=pair,", "calls="+name+",", 1)
	}
	for n := range g.of["fusions"] {
		text.WriteString(fmt.Sprint("sum", n+1, ` {
  q = (f32[1024]{0}, f32[1024]{0}) parameter(0)
  a = f32[1024]{0} get-tuple-element(q), index=`, n%2, `
  ROOT r = f32[1024]{0} negate(a)
}
`))
	}
	text.WriteString("ENTRY e {\n  s = f32[] parameter(0)\n" + body)
	// The root is a tuple of what was picked last: its shape is looked up in the lines.
	shapes := make([]string, len(out))
	for k, name := range out {
		_, rest, _ := strings.Cut(body, "  "+name+" = ")
		shapes[k], _, _ = strings.Cut(rest, " ")
	}
	fmt.Fprintf(&text, "  ROOT o = (%s) tuple(%s)\n}\n", strings.Join(shapes, ", "), strings.Join(out, ", "))
	return text.String()
}

// pair is a loop fusion with two results.
const pair = `pair {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  bx = f32[1024]{0} broadcast(x), dimensions={}
  by = f32[1024]{0} broadcast(y), dimensions={}
  a = f32[1024]{0} add(bx, by)
  m = f32[1024]{0} multiply(bx, by)
  ROOT o = (f32[1024]{0}, f32[1024]{0}) tuple(a, m)
}
`
