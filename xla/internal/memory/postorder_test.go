package memory

import (
	"strings"
	"testing"

	"gpumem/xla/internal/alias"
	"gpumem/xla/internal/hlo"
)

// Buffers of equal size are sorted by an order that follows operands, not the schedule, and
// has callers before what they call.
func TestPostOrder(t *testing.T) {
	m, err := hlo.ParseString(`HloModule m, is_scheduled=true

body {
  b = (s32[], f32[4]) parameter(0)
  x = f32[4] get-tuple-element(b), index=1
  y = f32[4] negate(x)
  i = s32[] get-tuple-element(b), index=0
  ROOT t = (s32[], f32[4]) tuple(i, y)
}

cond {
  c = (s32[], f32[4]) parameter(0)
  k = s32[] get-tuple-element(c), index=0
  n = s32[] constant(10)
  ROOT l = pred[] compare(k, n), direction=LT
}

ENTRY e {
  p = f32[4] parameter(0)
  z = s32[] constant(0)
  s = (s32[], f32[4]) tuple(z, p)
  w = (s32[], f32[4]) while(s), condition=cond, body=body
  g = f32[4] get-tuple-element(w), index=1
  late = f32[4] negate(p)
  early = f32[4] cosine(p), control-predecessors={late}
  ROOT r = f32[4] add(early, g)
}
`)
	if err != nil {
		t.Fatal(err)
	}
	a, err := AnalyzeModule(m)
	if err != nil {
		t.Fatal(err)
	}
	at := postOrder(a.flow)
	names := make([]string, len(at))
	for n, place := range at {
		names[place] = a.flow.Instruction(alias.Node(n)).Name
	}
	const want = "p late early z s w g r c k n l b i x y t"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
