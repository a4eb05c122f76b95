package plan

import (
	"fmt"
	"strings"
	"testing"

	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/hlo"
)

// Fusions that call fusions twice each stand for 2^40 operations, and for 41 computations:
// planning looks at each computation once.
func TestSharedFusionsAreLookedAtOnce(t *testing.T) {
	const f = "f32[1024]{0}"
	var text strings.Builder
	fmt.Fprintf(&text, "HloModule m, is_scheduled=true\n\nc0 {\n  p0 = %s parameter(0)\n  ROOT n0 = %[1]s negate(p0)\n}\n\n", f)
	for k := 1; k <= 40; k++ {
		fmt.Fprintf(&text, "c%d {\n  p%[1]d = %[2]s parameter(0)\n  x%[1]d = %[2]s fusion(p%[1]d), kind=kLoop, calls=c%[3]d\n"+
			"  ROOT a%[1]d = %[2]s fusion(x%[1]d), kind=kLoop, calls=c%[3]d\n}\n\n", k, f, k-1)
	}
	fmt.Fprintf(&text, "ENTRY e {\n  p = %[1]s parameter(0)\n  z = %[1]s fusion(p), kind=kLoop, calls=c40\n  k = %[1]s custom-call(z), custom_call_target=\"a\"\n"+
		"  m1 = %[1]s custom-call(k), custom_call_target=\"a\"\n  m2 = %[1]s custom-call(m1), custom_call_target=\"a\"\n  ROOT r = %[1]s custom-call(m2, z), custom_call_target=\"a\"\n}\n", f)
	m, err := hlo.ParseString(text.String())
	if err != nil {
		t.Fatal(err)
	}
	p, err := xlaPlan(m, 9000, Options{Rates: cost.Rates{Flops: 1, Bytes: 1}})
	if err != nil {
		t.Fatal(err)
	}
	// One clone of each computation, which shares nothing with the original.
	if n := len(p.Module.Computations); n != 2*41+1 {
		t.Errorf("%d computations in the plan", n)
	}
}
