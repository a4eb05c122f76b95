package remattest

// Training steps as JAX writes them, and what they take and compute.

import (
	"fmt"
	"strings"

	"pgregory.net/rapid"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
	"gpumem/xla/internal/test/hlointerp"
	"gpumem/xla/internal/verify"
)

// Layers returns a training step of n layers, out = tanh(sin(x*w)) + x, with their
// backward passes in the reverse order, as JAX names them.
func Layers(n int, names bool) string {
	var b strings.Builder
	meta := func(op string) string {
		if !names {
			return ""
		}
		return fmt.Sprintf(", metadata={op_name=\"jit(step)/%s\"}", op)
	}
	b.WriteString("HloModule step, is_scheduled=true\n\nENTRY main {\n  x0 = f32[256] parameter(0)\n")
	for k := range n {
		fmt.Fprintf(&b, "  w%d = f32[256] parameter(%d)\n", k, k+1)
	}
	for k := range n {
		in := fmt.Sprintf("jvp(layer_%d)/", k)
		fmt.Fprintf(&b, "  layer_%[1]d_a = f32[256] multiply(x%[1]d, w%[1]d)%[2]s\n", k, meta(in+"mul"))
		fmt.Fprintf(&b, "  layer_%[1]d_s = f32[256] sine(layer_%[1]d_a)%[2]s\n", k, meta(in+"sin"))
		fmt.Fprintf(&b, "  layer_%[1]d_t = f32[256] tanh(layer_%[1]d_s)%[2]s\n", k, meta(in+"tanh"))
		fmt.Fprintf(&b, "  x%d = f32[256] add(layer_%d_t, x%[2]d)%[3]s\n", k+1, k, meta("jvp(residual)/add"))
	}
	fmt.Fprintf(&b, "  g%[1]d = f32[256] negate(x%[1]d)%[2]s\n", n, meta("jvp(loss)/neg"))
	for k := n - 1; k >= 0; k-- {
		in := fmt.Sprintf("transpose(jvp(layer_%d))/", k)
		fmt.Fprintf(&b, "  t%[1]d = f32[256] multiply(g%[2]d, layer_%[1]d_t)%[3]s\n", k, k+1, meta(in+"mul"))
		fmt.Fprintf(&b, "  s%[1]d = f32[256] multiply(t%[1]d, layer_%[1]d_s)%[2]s\n", k, meta(in+"mul"))
		fmt.Fprintf(&b, "  g%[1]d = f32[256] multiply(s%[1]d, layer_%[1]d_a)%[2]s\n", k, meta(in+"mul"))
	}
	b.WriteString("  ROOT out = f32[256] add(g0, g1)\n}\n")
	return b.String()
}

// Parsed reads a module and checks it.
func Parsed(t rapid.TB, text string) *hlo.Module {
	t.Helper()
	m, err := hlo.ParseString(text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if err := verify.Module(m); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return m
}

// Written prints and parses a module, and checks it.
func Written(t rapid.TB, m *hlo.Module) *hlo.Module {
	t.Helper()
	if err := verify.Module(m); err != nil {
		t.Fatalf("%v\n%s", err, m)
	}
	return Parsed(t, m.String())
}

// Same runs both modules on the same arguments.
func Same(t rapid.TB, a, b *hlo.Module) {
	t.Helper()
	args, err := hlointerp.Arguments(a, 1)
	if err != nil {
		t.Fatal(err)
	}
	x, err := hlointerp.Run(a, args, hlointerp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	y, err := hlointerp.Run(b, args, hlointerp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !hlointerp.Equal(x, y) {
		t.Error("the results differ")
	}
}

// TempPeak returns the peak of a module without parameters and results.
func TempPeak(t rapid.TB, m *hlo.Module) uint64 {
	t.Helper()
	n, _, err := memory.TempPeak(m, memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// BySize is a price in seconds that grows with the bytes made.
func BySize(i *hlo.Instruction) float64 {
	n, err := i.Shape.TotalBytes()
	if err != nil {
		return 0
	}
	return float64(n)
}
