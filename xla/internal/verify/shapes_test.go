package verify

import (
	"fmt"
	"strings"
	"testing"

	"gpumem/xla/internal/hlo"
)

// given begins a module: each test of TestVerifyShapes is its last line.
const given = `HloModule m
add { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT c = f32[] add(a, b) }
lt { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT c = pred[] compare(a, b), direction=LT }
neg { a = f32[4,6] parameter(0)
 ROOT c = f32[4,6] negate(a) }
pair { a = f32[4,6] parameter(0)
 b = s32[] parameter(1)
 ROOT c = (f32[4,6], s32[]) tuple(a, b) }
body { t = (s32[], f32[4,6]) parameter(0)
 i = s32[] get-tuple-element(t), index=0
 x = f32[4,6] get-tuple-element(t), index=1
 ROOT c = (s32[], f32[4,6]) tuple(i, x) }
cond { t = (s32[], f32[4,6]) parameter(0)
 ROOT c = pred[] constant(true) }
ENTRY e {
 x = f32[4,6] parameter(0)
 y = f32[4,6] parameter(1)
 i = s32[] parameter(2)
 p = pred[] parameter(3)
 f = f32[] parameter(4)
 t = (s32[], f32[4,6]) tuple(i, x)
 m = pred[4,6] compare(x, y), direction=EQ
 h = bf16[4,6] convert(x)
 k = f32[3,3,2,5] parameter(5)
 v = f32[1,8,8,2] parameter(6)
 u = f32[2,3] parameter(7)
 d = f32[?,6] parameter(8)
 c = c64[4,6] parameter(9)
 n = s32[4,6] parameter(10)
 `

func TestVerifyShapes(t *testing.T) {
	for _, test := range []struct{ line, want string }{
		{"r = f32[4,6] add(x, y)", ""},
		{"r = f32[4,6] add(x, h)", ""}, // mixed precision
		{"r = f32[4,6] add(x, d)", ""}, // a dimension without bound
		{"r = f32[6,4] add(x, y)", "operand 0 is f32[4,6], the result f32[6,4]"},
		{"r = f32[4,6] add(x, n)", "operand 1 is s32[4,6], the result f32[4,6]: expected the same type"},
		{"r = f32[4,6] add(x)", "add has 1 operands, expected 2"},
		{"r = f32[4,6] add(x, t)", "operand 1 is a tuple of 2, expected an array"},
		{"r = (f32[4,6]) negate(x)", "negate of an array is a tuple of 1"},
		{"r = s32[4,6] convert(x)", ""},
		{"r = s32[6] convert(x)", "expected the same dimensions"},
		{"r = f32[4,6] abs(c)", ""},
		{"r = pred[4,6] is-finite(x)", ""},
		{"r = (s32[], f32[4,6]) copy(t)", ""},
		{"r = (s32[], f32[6,4]) copy(t)", "shape element 1: f32[6,4], expected f32[4,6]"},
		{"r = pred[4,6] compare(x, y), direction=LT", ""},
		{"r = f32[4,6] compare(x, y), direction=LT", "expected pred of the same dimensions"},
		{"r = pred[4,6] compare(x, n), direction=LT", "compare of f32[4,6] and s32[4,6]"},
		{"r = pred[4,6] compare(x, y), direction=UP", "direction=UP"},
		{"r = f32[4,6] select(m, x, y)", ""},
		{"r = f32[4,6] select(p, x, y)", ""},
		{"r = f32[4,6] select(x, x, y)", "operand 0 is f32[4,6], expected pred[] or pred[4,6]"},
		{"r = f32[4,6] select(m, x, n)", "operand 2 is s32[4,6]"},
		{"r = f32[4,6] clamp(f, x, f)", ""},
		{"r = f32[4,6] clamp(y, x, f)", ""},
		{"r = f32[4,6] clamp(u, x, f)", "operand 0 is f32[2,3], expected one element"},
		{"r = f32[4,6] clamp(f, u, f)", "operand 1 is f32[2,3]"},
		{"r = (f32[4,6], s32[]) tuple(x, i)", ""},
		{"r = (f32[4,6], s32[]) tuple(x)", "expected a tuple of 1"},
		{"r = (f32[4,6], s64[]) tuple(x, i)", "element 1 is s64[], its operand s32[]"},
		{"r = f32[4,6] get-tuple-element(t), index=1", ""},
		{"r = f32[4,6] get-tuple-element(t), index=0", "shape f32[4,6], expected s32[]"},
		{"r = f32[4,6] get-tuple-element(t), index=2", "element 2 of a tuple of 2"},
		{"r = f32[4,6] get-tuple-element(x), index=0", "element 0 of f32[4,6]"},
		{"r = f32[4,6] call(x), to_apply=neg", ""},
		{"r = f32[4,6] call(x, y), to_apply=neg", "2 operands, neg has 1 parameters"},
		{"r = f32[4,6] call(n), to_apply=neg", "operand 0 against its parameter of neg: s32[4,6], expected f32[4,6]"},
		{"r = f32[6,4] call(x), to_apply=neg", "the root of neg: f32[4,6], expected f32[6,4]"},
		{"r = f32[6,4] call(x)", "it names no computation"},
		{"r = (f32[4,6], s32[]) fusion(x, i), kind=kLoop, calls=pair", ""},
		{"r = (f32[4,6], s32[]) fusion(i, x), kind=kLoop, calls=pair", "operand 0 against its parameter of pair: s32[], expected f32[4,6]"},
		{"r = (s32[], f32[4,6]) while(t), condition=cond, body=body", ""},
		{"r = (s32[], f32[4,6]) while(x), condition=cond, body=body", "body: operand 0 against its parameter of body: f32[4,6], expected a tuple of 2"},
		{"r = (s32[], f32[6,4]) while(t), condition=cond, body=body", "body: the root of body: element 1: f32[4,6], expected f32[6,4]"},
		{"r = (s32[], f32[4,6]) while(t), condition=body, body=body", "condition: the root of body: a tuple of 2, expected pred[]"},
		{"r = (s32[], f32[4,6]) while(t), body=body", "condition: it names no computation"},
		{"r = f32[4,6] conditional(p, x, y), true_computation=neg, false_computation=neg", ""},
		{"r = f32[4,6] conditional(i, x, y, x), branch_computations={neg, neg, neg}", ""},
		{"r = f32[4,6] conditional(p, x, y, x), branch_computations={neg, neg, neg}", "operand 0 is pred[]"},
		{"r = f32[4,6] conditional(p, x), true_computation=neg, false_computation=neg", "2 branches and 2 operands"},
		{"r = f32[4,6] conditional(p, x, i), true_computation=neg, false_computation=neg", "branch 1: operand 0 against its parameter of neg: s32[], expected f32[4,6]"},
		{"r = f32[4,6] conditional(p, x)", "0 branches"},
		{"r = f32[4,6] opt-barrier(x)", ""},
		{"r = f32[6,4] opt-barrier(x)", "shape f32[6,4], expected f32[4,6]"},
		{"r = f32[9,4,6] broadcast(x), dimensions={1,2}", ""},
		{"r = f32[6,4] broadcast(x), dimensions={1,0}", ""},
		{"r = f32[9,4,6] broadcast(x), dimensions={0,2}", "dimension 0 of the operand has 4, dimension 0 of the result 9"},
		{"r = f32[9,4,6] broadcast(x), dimensions={1}", "dimensions=[1] for an operand of 2 dimensions"},
		{"r = f32[9,4,6] broadcast(x), dimensions={1,3}", "each has to be a dimension below 3, once"},
		{"r = f32[9,4,6] broadcast(x), dimensions={1,a}", "expected numbers"},
		{"r = f32[9,4,6] broadcast(x), dimensions={1,1}", "once"},
		{"r = f32[24] reshape(x)", ""},
		{"r = f32[25] reshape(x)", "24 and 25 elements"},
		{"r = s32[24] reshape(x)", "expected the same type"},
		{"r = f32[6,4] transpose(x), dimensions={1,0}", ""},
		{"r = f32[4,6] transpose(x), dimensions={1,0}", "expected dimensions [6,4]"},
		{"r = f32[4,6] transpose(x), dimensions={1}", "dimensions=[1] for"},
		{"r = f32[4,6] reverse(x), dimensions={1}", ""},
		{"r = f32[4,6] reverse(x), dimensions={2}", "below 2"},
		{"r = s32[4,6] iota(), iota_dimension=1", ""},
		{"r = s32[4,6] iota()", "iota_dimension is missing"},
		{"r = s32[4,6] iota(), iota_dimension=2", "below 2"},
		{"r = s32[] iota(), iota_dimension=0", "an array with dimensions"},
		{"r = f32[8,6] concatenate(x, y), dimensions={0}", ""},
		{"r = f32[4,6] concatenate(x, y), dimensions={0}", "expected dimensions [8,6]"},
		{"r = f32[6,6] concatenate(x, u), dimensions={0}", "operand 1 is f32[2,3], operand 0 f32[4,6]"},
		{"r = f32[4,6] concatenate(), dimensions={0}", "concatenate of nothing"},
		{"r = f32[2,2] slice(x), slice={[1:3], [0:6:3]}", ""},
		{"r = f32[2,2] slice(x), slice={[1:3], [0:7:3]}", "of dimension 1, which has 6"},
		{"r = f32[2,2] slice(x), slice={[3:1], [0:6:3]}", "slice [3:1:1]"},
		{"r = f32[2,2] slice(x), slice={[1:3]}", "slice of 1 dimensions of f32[4,6]"},
		{"r = f32[2,3] slice(x), slice={[1:3], [0:6:3]}", "expected dimensions [2,2]"},
		{"r = f32[5,16] pad(x, f), padding=0_1x-1_1_2", ""},
		{"r = f32[5,15] pad(x, f), padding=0_1x-1_1_2", "expected dimensions [5,16]"},
		{"r = f32[5,15] pad(x, f), padding=0_1", "expected L_H"},
		{"r = f32[5,15] pad(x, f), padding=0_1x0_0_-1", "dimension 1 of 6 padded by 0_0_-1"},
		{"r = f32[4,6] pad(x, y), padding=0_0x0_0", "operand 1 is f32[4,6], expected one element"},
		{"r = f32[1,2] dynamic-slice(x, i, i), dynamic_slice_sizes={1,2}", ""},
		{"r = f32[1,3] dynamic-slice(x, i, i), dynamic_slice_sizes={1,2}", "expected dimensions [1,2]"},
		{"r = f32[1,7] dynamic-slice(x, i, i), dynamic_slice_sizes={1,7}", "slice of 7 of dimension 1, which has 6"},
		{"r = f32[1,2] dynamic-slice(x, i), dynamic_slice_sizes={1,2}", "1 starts for 2 dimensions"},
		{"r = f32[1,2] dynamic-slice(x, i, f), dynamic_slice_sizes={1,2}", "operand 2 is f32[], expected a whole number"},
		{"r = f32[4,6] dynamic-update-slice(x, u, i, i)", ""},
		{"r = f32[2,3] dynamic-update-slice(u, x, i, i)", "update f32[4,6] into f32[2,3]"},
		{"r = f32[2,3] dynamic-update-slice(x, u, i, i)", "expected dimensions [4,6]"},
		{"r = f32[4,6] dynamic-update-slice(x, f)", "update f32[] into f32[4,6]"},
		{"r = f32[4,4] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={1}", ""},
		{"r = f32[4,6,6] dot(x, y), lhs_batch_dims={0}, rhs_batch_dims={0}", ""},
		{"r = f32[4] dot(x, y), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={1}, rhs_contracting_dims={1}", ""},
		{"r = f32[4,6,4,6] dot(x, y)", ""},
		{"r = f32[4,4] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}", "contracting dimension 1 of the left has 6, 0 of the right 4"},
		{"r = f32[4,4] dot(x, y), lhs_contracting_dims={1}", "contracting dimensions [1] and []"},
		{"r = f32[4,6] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={1}", "expected dimensions [4,4]"},
		{"r = f32[1,4,8,5] convolution(v, k), window={size=3x3 stride=2x1 pad=1_1x1_1}, dim_labels=b01f_01io->b01f", ""},
		{"r = f32[1,4,8,5] convolution(v, k), window={size=3x3 stride=1x1 pad=1_1x1_1}, dim_labels=b01f_01io->b01f", "expected dimensions [1,8,8,5]"},
		{"r = f32[1,8,8,5] convolution(v, k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01oi->b01f", "2 input features, the kernel has 5"},
		{"r = f32[1,8,8,5] convolution(v, k), window={size=2x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f", "the window has 2, the kernel 3"},
		{"r = f32[1,8,8,5] convolution(v, k), window={size=3}, dim_labels=b01f_01io->b01f", "a window of 1 dimensions for 2"},
		{"r = f32[1,8,8,5] convolution(v, k), window={size=3x3}", "expected dim_labels"},
		{"r = f32[1,8,8,5] convolution(v, k), window={size=3x3 stride=0x1}, dim_labels=b01f_01io->b01f", "the window is none"},
		{"r = f32[4] reduce(x, f), dimensions={1}, to_apply=add", ""},
		{"r = f32[6] reduce(x, f), dimensions={1}, to_apply=add", "expected dimensions [4]"},
		{"r = f32[4] reduce(x, y), dimensions={1}, to_apply=add", "operand 1 is f32[4,6], expected one element"},
		{"r = f32[4] reduce(x, f), dimensions={1}, to_apply=neg", "expected a computation of 2 parameters"},
		{"r = f32[4] reduce(x), dimensions={1}, to_apply=add", "reduce has 1 operands"},
		{"r = (f32[4]) reduce(x, f), dimensions={1}, to_apply=add", ""},
		{"r = (f32[4], f32[4]) reduce(x, f), dimensions={1}, to_apply=add", "reduce of 1 arrays is a tuple of 2"},
		{"r = f32[2,6] reduce-window(x, f), window={size=3x1}, to_apply=add", ""},
		{"r = f32[4,6] reduce-window(x, f), window={size=3x1}, to_apply=add", "expected dimensions [2,6]"},
		{"r = f32[4,6] reduce-window(x, f), window={size=3}, to_apply=add", "expected 2 dimensions"},
		{"r = f32[4,6] map(x, y), dimensions={0,1}, to_apply=add", ""},
		{"r = f32[4,6] map(x), dimensions={0,1}, to_apply=add", "expected a computation of 1 parameters"},
		{"r = f32[6] map(x, y), dimensions={0,1}, to_apply=add", "operand 0 is f32[4,6], the result f32[6]"},
		{"r = f32[4,6] sort(x), dimensions={0}, to_apply=lt", ""},
		{"r = f32[6,4] sort(x), dimensions={0}, to_apply=lt", "operand 0 is f32[4,6], its result f32[6,4]"},
		{"r = (f32[4,6], f32[4,6]) sort(x, y), dimensions={0}, to_apply=lt", "a computation of 4 parameters"},
		{"r = f32[4,6] all-reduce(x), to_apply=add", ""},
		{"r = (f32[4,6], f32[]) all-reduce(x, f), to_apply=add", ""},
		{"r = f32[6,4] all-reduce(x), to_apply=add", "f32[4,6] becomes f32[6,4]"},
		{"r = (f32[4,6], f32[1]) all-reduce(x, f), to_apply=add", "operand 1: f32[] becomes f32[1]"},
		{"r = (f32[4,6]) all-reduce(x, f), to_apply=add", "2 operands give a tuple of 1"},
		{"r = f32[4,6] scatter(x, n, y), to_apply=add", ""},
		{"r = f32[4,6] scatter(x, n), to_apply=add", "scatter of 2 operands"},
		{"r = f32[6,4] scatter(x, n, y), to_apply=add", "operand 0 is f32[4,6], its result f32[6,4]"},
		{"r = f32[3] what-is-this(x, t)", ""},
	} {
		t.Run(test.line, func(t *testing.T) {
			m, err := hlo.ParseString(given + "ROOT " + test.line + "\n}\n")
			if err != nil {
				t.Fatal(err)
			}
			err = Module(m)
			if test.want == "" && err != nil {
				t.Error(err)
			} else if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "line 34: r in e: ")) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func ExampleModule() {
	m, err := hlo.ParseString(`HloModule sum
ENTRY main {
  x = f32[4] parameter(0)
  y = f32[5] parameter(1)
  ROOT z = f32[4] add(x, y)
}`)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(Module(m))
	// Output: line 5: z in main: operand 1 is f32[5], the result f32[4]: expected the same dimensions
}
