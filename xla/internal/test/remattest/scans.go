package remattest

// Random pairs of loops, as jax.lax.scan under jax.grad makes them.

import (
	"fmt"
	"strings"

	"pgregory.net/rapid"
)

// Scans returns the text of a random scheduled module with two loops. The body of the first
// stacks up some of its values, and that of the second reads them in reverse, in fusions and by
// itself.
func Scans(t *rapid.T) string {
	const value, slot = "f32[256]{0}", "f32[1,256]{1,0}"
	rounds := rapid.IntRange(2, 5).Draw(t, "rounds")
	stack := fmt.Sprintf("f32[%d,256]{1,0}", rounds)
	var computations, forward, backward strings.Builder
	n := 0
	line := func(w *strings.Builder, format string, a ...any) string {
		n++
		fmt.Fprintf(w, "  v%d = %s\n", n, fmt.Sprintf(format, a...))
		return fmt.Sprint("v", n)
	}
	computation := func(text string) string {
		n++
		fmt.Fprintf(&computations, "c%d {\n%s}\n", n, text)
		return fmt.Sprint("c", n)
	}
	// at returns slot at of a loop that runs forwards or backwards, in a fused computation.
	const ahead = "  k = s32[] bitcast(i)\n"
	back := fmt.Sprintf("  last = s32[] constant(%d)\n  k = s32[] subtract(last, i)\n", rounds-1)
	// The forward loop may run backwards.
	fore, aft := ahead, back
	if rapid.Bool().Draw(t, "reversed") {
		fore, aft = back, ahead
	}
	slice := func(w *strings.Builder, from, i, at string) string {
		c := computation(fmt.Sprintf("  s = %s parameter(0)\n  i = s32[] parameter(1)\n%s  z = s32[] constant(0)\n  d = %s dynamic-slice(s, k, z), dynamic_slice_sizes={1,256}\n  ROOT b = %s bitcast(d)\n", stack, at, slot, value))
		return line(w, "%s fusion(%s, %s), kind=kLoop, calls=%s", value, from, i, c)
	}
	compute := func(w *strings.Builder, from []string) string {
		x, y := rapid.SampledFrom(from).Draw(t, "x"), rapid.SampledFrom(from).Draw(t, "y")
		switch rapid.IntRange(0, 4).Draw(t, "op") {
		case 0:
			return line(w, "%s add(%s, %s)", value, x, y)
		case 1:
			return line(w, "%s multiply(%s, %s)", value, x, y)
		case 2:
			return line(w, "%s tanh(%s)", value, x)
		case 3:
			c := computation(fmt.Sprintf("  a = %[1]s parameter(0)\n  b = %[1]s parameter(1)\n  m = %[1]s subtract(a, b)\n  ROOT r = %[1]s cosine(m)\n", value))
			return line(w, "%s fusion(%s, %s), kind=kLoop, calls=%s", value, x, y, c)
		}
		c := computation(fmt.Sprintf("  a = %[1]s parameter(0)\n  b = %[1]s parameter(1)\n  m = %[1]s multiply(a, b)\n  o = %[1]s sine(a)\n  ROOT r = (%[1]s, %[1]s) tuple(m, o)\n", value))
		both := line(w, "(%[1]s, %[1]s) fusion(%[2]s, %[3]s), kind=kLoop, calls=%[4]s", value, x, y, c)
		return line(w, "%s get-tuple-element(%s), index=%d", value, both, rapid.IntRange(0, 1).Draw(t, "output"))
	}

	// The forward state is i, x, the stacks, w and c.
	values := []string{"x", slice(&forward, "w", "i", fore), "c"}
	for range rapid.IntRange(1, 8).Draw(t, "steps") {
		values = append(values, compute(&forward, values))
	}
	var stacks []string
	for k, v := range values {
		if k != 2 && (k == 0 && rapid.IntRange(0, 3).Draw(t, "input") > 0 || rapid.Bool().Draw(t, "stacked")) {
			name := fmt.Sprint("s", len(stacks))
			op := fmt.Sprintf("  m = %s bitcast(v)\n", value)
			if rapid.Bool().Draw(t, "inside") {
				op = fmt.Sprintf("  n = %[1]s negate(v)\n  m = %[1]s tanh(n)\n", value)
			}
			c := computation(fmt.Sprintf("  s = %s parameter(0)\n  v = %s parameter(1)\n%s  u = %s bitcast(m)\n  i = s32[] parameter(2)\n%s  z = s32[] constant(0)\n  ROOT d = %s dynamic-update-slice(s, u, k, z)\n", stack, value, op, slot, fore, stack))
			stacks = append(stacks, line(&forward, "%s fusion(%s, %s, i), kind=kLoop, calls=%s", stack, name, v, c))
		}
	}
	next := line(&forward, "%s add(%s, c)", value, values[len(values)-1])
	state := func(more ...string) string {
		list := []string{"s32[]", value}
		for range stacks {
			list = append(list, stack)
		}
		return "(" + strings.Join(append(list, more...), ", ") + ")"
	}
	body := func(name, state, counter string, gets []string, text, root string) {
		fmt.Fprintf(&computations, "%s {\n  t = %s parameter(0)\n", name, state)
		for k, g := range gets {
			name, shape, _ := strings.Cut(g, " ")
			fmt.Fprintf(&computations, "  %s = %s get-tuple-element(t), index=%d\n", name, shape, k)
		}
		fmt.Fprintf(&computations, "%s  one = s32[] constant(1)\n  next = s32[] add(%s, one)\n  ROOT r = %s tuple(next, %s)\n}\n", text, counter, state, root)
		fmt.Fprintf(&computations, "%s_less {\n  t = %s parameter(0)\n  i = s32[] get-tuple-element(t), index=0\n  n = s32[] constant(%d)\n  ROOT lt = pred[] compare(i, n), direction=LT\n}\n", name, state, rounds)
	}
	gets := []string{"i s32[]", "x " + value}
	names := func(format string) (list []string) {
		for k := range stacks {
			list = append(list, fmt.Sprintf(format, k))
		}
		return list
	}
	for k := range stacks {
		gets = append(gets, fmt.Sprintf("s%d %s", k, stack))
	}
	ahd := state(stack, value)
	body("ahead", ahd, "i", append(gets, "w "+stack, "c "+value), forward.String(), strings.Join(append(append([]string{next}, stacks...), "w", "c"), ", "))

	// The backward state is j, g, the stacks, a stack of gradients, and w.
	grads := []string{"x"}
	for k := range stacks {
		name := fmt.Sprint("s", k)
		if rapid.Bool().Draw(t, "by itself") {
			grads = append(grads, slice(&backward, name, "i", aft))
			continue
		}
		c := computation(fmt.Sprintf("  s = %s parameter(0)\n  g = %s parameter(1)\n  i = s32[] parameter(2)\n%s  z = s32[] constant(0)\n  d = %s dynamic-slice(s, k, z), dynamic_slice_sizes={1,256}\n  b = %[2]s bitcast(d)\n  ROOT m = %[2]s multiply(g, b)\n", stack, value, aft, slot))
		grads = append(grads, line(&backward, "%s fusion(%s, %s, i), kind=kLoop, calls=%s", value, name, rapid.SampledFrom(grads).Draw(t, "g"), c))
	}
	if rapid.Bool().Draw(t, "weights again") {
		grads = append(grads, slice(&backward, "w", "i", aft))
	}
	g := grads[0]
	for _, x := range grads[1:] {
		g = line(&backward, "%s add(%s, %s)", value, g, x)
	}
	c := computation(fmt.Sprintf("  s = %s parameter(0)\n  v = %s parameter(1)\n  u = %s bitcast(v)\n  i = s32[] parameter(2)\n%s  z = s32[] constant(0)\n  ROOT d = %s dynamic-update-slice(s, u, k, z)\n", stack, value, slot, aft, stack))
	made := line(&backward, "%s fusion(gs, %s, i), kind=kLoop, calls=%s", stack, g, c)
	behind := state(stack, stack)
	body("behind", behind, "i", append(gets, "gs "+stack, "w "+stack), backward.String(), strings.Join(append(append([]string{g}, names("s%d")...), made, "w"), ", "))

	var e strings.Builder
	fmt.Fprintf(&e, "ENTRY e {\n  p0 = %[1]s parameter(0)\n  w = %[2]s parameter(1)\n  c = %[1]s parameter(2)\n  zero = f32[] constant(0)\n  first = s32[] constant(0)\n  i0 = s32[] copy(first)\n  j0 = s32[] copy(first)\n  x0 = %[1]s copy(p0)\n  gs0 = %[2]s broadcast(zero), dimensions={}\n", value, stack)
	for k := range stacks {
		fmt.Fprintf(&e, "  z%d = %s broadcast(zero), dimensions={}\n", k, stack)
	}
	config := fmt.Sprintf(`, backend_config={"known_induction_variable":{"tuple_index":"0"},"known_trip_count":{"n":"%d"}}`, rounds)
	fmt.Fprintf(&e, "  a = %s tuple(%s)\n", ahd, strings.Join(append(append([]string{"i0", "x0"}, names("z%d")...), "w", "c"), ", "))
	fmt.Fprintf(&e, "  f = %s while(a), condition=ahead_less, body=ahead%s\n", ahd, config)
	fmt.Fprintf(&e, "  y = %s get-tuple-element(f), index=1\n  g0 = %[1]s negate(y)\n", value)
	for k := range stacks {
		fmt.Fprintf(&e, "  f%d = %s get-tuple-element(f), index=%d\n", k, stack, k+2)
	}
	fmt.Fprintf(&e, "  b = %s tuple(%s)\n", behind, strings.Join(append(append([]string{"j0", "g0"}, names("f%d")...), "gs0", "w"), ", "))
	fmt.Fprintf(&e, "  h = %s while(b), condition=behind_less, body=behind%s\n", behind, config)
	fmt.Fprintf(&e, "  gx = %s get-tuple-element(h), index=1\n  gw = %s get-tuple-element(h), index=%d\n  ROOT r = (%[1]s, %[2]s) tuple(gx, gw)\n}\n", value, stack, len(stacks)+2)
	return "HloModule m, is_scheduled=true\n\n" + computations.String() + e.String()
}
