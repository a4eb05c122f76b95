package alias_test

import (
	"fmt"
	"testing"

	"gpumem/xla/internal/alias"
	"gpumem/xla/internal/hlo"
)

// onGPU is a module of XLA:GPU with one fusion of the given computation, result and operands.
// The operands are negations of parameters.
func onGPU(t *testing.T, fused, result string, operands ...string) (*hlo.Module, *alias.Flow) {
	t.Helper()
	text := "HloModule m, is_scheduled=true, frontend_attributes={fingerprint_before_lhs=\"0\"}\n\n" +
		"sum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b)\n}\n\n" +
		"set {\n  old = f32[] parameter(0)\n  ROOT new = f32[] parameter(1)\n}\n\n" +
		"fused {" + fused + "}\n\nENTRY e {\n"
	list := ""
	for k, shape := range operands {
		text += fmt.Sprintf("  p%d = %s parameter(%d)\n  n%d = %s negate(p%d)\n", k, shape, k, k, shape, k)
		if list += fmt.Sprintf("n%d", k); k+1 < len(operands) {
			list += ", "
		}
	}
	text += fmt.Sprintf("  ROOT f = %s fusion(%s), kind=kLoop, calls=fused\n}\n", result, list)
	m, err := hlo.ParseString(text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	f, err := alias.Analyze(m)
	if err != nil {
		t.Fatal(err)
	}
	return m, f
}

// What may share memory on a GPU: the operands that each part of a fusion's result may take
// the place of. On a CPU, or where the compiler is unknown, the shapes have to be equal and
// everything element by element.
func TestSharingOnGPU(t *testing.T) {
	for _, tc := range []struct {
		name, fused, result string
		operands            []string
		want                string // for each part of the result, the operands
	}{
		{"behind a bitcast", `
  a = f32[8,128] parameter(0)
  b = f32[1024] bitcast(a)
  ROOT n = f32[1024] negate(b)
`, "f32[1024]", []string{"f32[8,128]"}, "[[0]]"},
		{"another type of the same width", `
  a = f32[8] parameter(0)
  ROOT b = s32[8] convert(a)
`, "s32[8]", []string{"f32[8]"}, "[[0]]"},
		{"another width", `
  a = f32[8] parameter(0)
  ROOT b = bf16[8] convert(a)
`, "bf16[8]", []string{"f32[8]"}, "[[]]"},
		{"another order of the elements", `
  a = f32[8] parameter(0)
  r = f32[8] reverse(a), dimensions={0}
  ROOT b = f32[8] add(a, r)
`, "f32[8]", []string{"f32[8]"}, "[[]]"},
		{"a copy", `
  a = f32[8] parameter(0)
  ROOT c = f32[8] copy(a)
`, "f32[8]", []string{"f32[8]"}, "[[]]"},
		{"two results of two operands", `
  a = f32[8] parameter(0)
  b = f32[8] parameter(1)
  n = f32[8] negate(a)
  m = f32[8] negate(b)
  ROOT t = (f32[8], f32[8]) tuple(n, m)
`, "(f32[8], f32[8])", []string{"f32[8]", "f32[8]"}, "[[0] [1]]"},
		{"another output in the same order", `
  a = f32[8] parameter(0)
  n = f32[8] negate(a)
  m = f32[8] cosine(a)
  ROOT t = (f32[8], f32[8]) tuple(n, m)
`, "(f32[8], f32[8])", []string{"f32[8]"}, "[[0] [0]]"},
		{"another output reads the result elsewhere", `
  a = f32[8,128] parameter(0)
  q = f32[1024] parameter(1)
  b = f32[1024] bitcast(a)
  n = f32[1024] negate(q)
  x = f32[1024] add(b, n)
  s = f32[1024] reverse(n), dimensions={0}
  ROOT t = (f32[1024], f32[1024]) tuple(x, s)
`, "(f32[1024], f32[1024])", []string{"f32[8,128]", "f32[1024]"}, "[[0] []]"},
		{"a reduction that runs first", `
  a = f32[64,1024] parameter(0)
  z = f32[] constant(0)
  r = f32[64] reduce(a, z), dimensions={1}, to_apply=sum
  n = f32[64,1024] negate(a)
  ROOT t = (f32[64], f32[64,1024]) tuple(r, n)
`, "(f32[64], f32[64,1024])", []string{"f32[64,1024]"}, "[[] [0]]"},
		{"a reduction in a loop over its result", `
  a = f32[64,4] parameter(0)
  z = f32[] constant(0)
  r = f32[4] reduce(a, z), dimensions={0}, to_apply=sum
  n = f32[64,4] negate(a)
  ROOT t = (f32[4], f32[64,4]) tuple(r, n)
`, "(f32[4], f32[64,4])", []string{"f32[64,4]"}, "[[] []]"},
		{"a scatter into the operand", `
  a = f32[8,4] parameter(0)
  i = s32[2,1] parameter(1)
  u = f32[2,4] parameter(2)
  ROOT s = f32[8,4] scatter(a, i, u), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=set
`, "f32[8,4]", []string{"f32[8,4]", "s32[2,1]", "f32[2,4]"}, "[[0]]"},
		{"an update of what is read", `
  a = f32[8,4] parameter(0)
  i = s32[] parameter(1)
  z = s32[] constant(0)
  d = f32[1,4] dynamic-slice(a, i, z), dynamic_slice_sizes={1,4}
  n = f32[1,4] negate(d)
  ROOT s = f32[8,4] dynamic-update-slice(a, n, i, z)
`, "f32[8,4]", []string{"f32[8,4]", "s32[]"}, "[[0]]"},
		{"an update of something else", `
  a = f32[8,4] parameter(0)
  i = s32[] parameter(1)
  z = s32[] constant(0)
  d = f32[1,4] dynamic-slice(a, z, i), dynamic_slice_sizes={1,4}
  n = f32[1,4] negate(d)
  ROOT s = f32[8,4] dynamic-update-slice(a, n, i, z)
`, "f32[8,4]", []string{"f32[8,4]", "s32[]"}, "[[]]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, f := onGPU(t, tc.fused, tc.result, tc.operands...)
			root := m.Entry.Root
			parts := [][]int{{}}
			if root.Shape.Type == hlo.Tuple {
				parts = nil
				for k := range root.Shape.Elements {
					parts = append(parts, []int{k})
				}
			}
			got := [][]int{}
			for _, to := range parts {
				may := []int{}
				for k, o := range root.Operands {
					if f.MayShare(alias.Position{Instruction: o}, alias.Position{Instruction: root, Index: to}) {
						may = append(may, k)
					}
				}
				got = append(got, may)
			}
			if fmt.Sprint(got) != tc.want {
				t.Errorf("%v, want %s", got, tc.want)
			}
		})
	}
}

// A fusion without results, and one that returns a tuple in a tuple, share nothing.
func TestSharingOfOddFusionsOnGPU(t *testing.T) {
	for _, tc := range []struct{ fused, result string }{
		{"\n  a = f32[2] parameter(0)\n  ROOT t = () tuple()\n", "()"},
		{"\n  a = f32[2] parameter(0)\n  s = (f32[2]) tuple(a)\n  ROOT t = ((f32[2])) tuple(s)\n", "((f32[2]))"},
	} {
		m, f := onGPU(t, tc.fused, tc.result, "f32[2]")
		for _, to := range [][]int{nil, {0}, {0, 0}} {
			at := alias.Position{Instruction: m.Entry.Root, Index: to}
			if m.Entry.Root.Shape.At(to...) == nil {
				continue
			}
			for _, o := range f.Candidates(at) {
				if f.MayShare(alias.Position{Instruction: o}, at) {
					t.Errorf("%s %v in the place of %s", tc.result, to, o.Name)
				}
			}
		}
	}
}

// A fusion of many operands and results takes time in proportion: each operand is looked at
// once for all results.
func TestWideFusionsOnGPU(t *testing.T) {
	looked := func(n int) int {
		fused, list, shapes := "\n", "", ""
		operands := make([]string, n)
		for k := range n {
			operands[k] = "f32[64]"
			fused += fmt.Sprintf("  q%d = f32[64] parameter(%d)\n", k, k)
		}
		for k := range n {
			fused += fmt.Sprintf("  a%d = f32[64] add(q%d, q0)\n", k, k)
			list += fmt.Sprintf(", a%d", k)
			shapes += ", f32[64]"
		}
		result := "(" + shapes[2:] + ")"
		m, f := onGPU(t, fused+"  ROOT t = "+result+" tuple("+list[2:]+")\n", result, operands...)
		for k := range n {
			at := alias.Position{Instruction: m.Entry.Root, Index: []int{k}}
			if got := len(f.Candidates(at)); got != min(k+1, 2) {
				t.Fatalf("%d candidates of result %d", got, k)
			}
		}
		return f.Looked()
	}
	if few, many := looked(100), looked(1000); many > 15*few {
		t.Errorf("%d looked at for 100 operands, %d for 1000", few, many)
	}
}
