package hlointerp

import (
	"errors"
	"strings"
	"testing"

	"gpumem/xla/internal/hlo"

	"pgregory.net/rapid"
)

// tests are modules, the literals of their arguments and the result's, or the
// error's text. Where a result is not plain by hand, it is that of XLA on a CPU
// (jaxlib 0.12.0.1).
var tests = []struct{ name, text, arguments, want string }{
	{"add", "ENTRY e { p = f32[3] parameter(0)\n ROOT r = f32[3] add(p, p) }", "{1, 0.5, inf}", "{2, 1, inf}"},
	{"bf16 rounds to even", "ENTRY e { p = bf16[2] parameter(0)\n q = bf16[2] parameter(1)\n ROOT r = bf16[2] add(p, q) }", "{256, 258}; {1, 1}", "{256, 260}"},
	{"f16 overflows", "ENTRY e { p = f16[2] parameter(0)\n ROOT r = f16[2] multiply(p, p) }", "{256, 255}", "{inf, 65024}"},
	{"NaN", "ENTRY e { p = f32[3] parameter(0)\n z = f32[3] parameter(1)\n ROOT r = f32[3] maximum(p, z) }", "{nan, 1, -inf}; {1, nan, 0}", "{nan, nan, 0}"},
	{"wraps around", "ENTRY e { p = s8[2] parameter(0)\n ROOT r = s8[2] add(p, p) }", "{100, -100}", "{-56, 56}"},
	{"by zero", "ENTRY e { p = s32[3] parameter(0)\n q = s32[3] parameter(1)\n d = s32[3] divide(p, q)\n m = s32[3] remainder(p, q)\n ROOT r = (s32[3], s32[3]) tuple(d, m) }", "{7, -7, -2147483648}; {0, 2, -1}", "({-1, -3, -2147483648}, {7, -1, 0})"},
	{"unsigned by zero", "ENTRY e { p = u8[2] parameter(0)\n q = u8[2] parameter(1)\n ROOT r = u8[2] divide(p, q) }", "{7, 7}; {0, 2}", "{255, 3}"},
	{"shifts", "ENTRY e { p = s8[3] parameter(0)\n q = s8[3] parameter(1)\n a = s8[3] shift-left(p, q)\n b = s8[3] shift-right-logical(p, q)\n c = s8[3] shift-right-arithmetic(p, q)\n ROOT r = (s8[3], s8[3], s8[3]) tuple(a, b, c) }", "{-7, -7, 3}; {1, 9, -1}", "({-14, 0, 0}, {124, 0, 0}, {-4, -1, 0})"},
	{"power of whole numbers", "ENTRY e { p = s32[5] parameter(0)\n q = s32[5] parameter(1)\n ROOT r = s32[5] power(p, q) }", "{3, -1, -1, 2, 1}; {4, -3, -2, -1, -9}", "{81, -1, 1, 0, 1}"},
	{"unary", "ENTRY e { p = s16[3] parameter(0)\n a = s16[3] abs(p)\n b = s16[3] negate(p)\n c = s16[3] not(p)\n d = s16[3] popcnt(p)\n f = s16[3] count-leading-zeros(p)\n g = s16[3] sign(p)\n ROOT r = (s16[3], s16[3], s16[3], s16[3], s16[3], s16[3]) tuple(a, b, c, d, f, g) }", "{-5, 0, 9}", "({5, 0, 9}, {5, 0, -9}, {4, -1, -10}, {15, 0, 2}, {0, 16, 12}, {-1, 0, 1})"},
	{"functions", "ENTRY e { p = f64[2] parameter(0)\n a = f64[2] sqrt(p)\n b = f64[2] floor(p)\n c = f64[2] round-nearest-even(p)\n d = f64[2] sign(p)\n f = pred[2] is-finite(p)\n ROOT r = (f64[2], f64[2], f64[2], f64[2], pred[2]) tuple(a, b, c, d, f) }", "{6.25, 2.5}", "({2.5, 1.5811388300841898}, {6, 2}, {6, 2}, {1, 1}, {true, true})"},
	{"pred", "ENTRY e { p = pred[2] parameter(0)\n q = pred[2] parameter(1)\n a = pred[2] and(p, q)\n b = pred[2] or(p, q)\n c = pred[2] xor(p, q)\n d = pred[2] not(p)\n ROOT r = (pred[2], pred[2], pred[2], pred[2]) tuple(a, b, c, d) }", "{true, 0}; {1, true}", "({true, false}, {true, true}, {false, true}, {false, true})"},
	{"compare", "ENTRY e { p = f32[3] parameter(0)\n q = f32[3] parameter(1)\n a = pred[3] compare(p, q), direction=LE\n b = pred[3] compare(p, q), direction=NE\n c = pred[3] compare(p, q), direction=LT, type=TOTALORDER\n ROOT r = (pred[3], pred[3], pred[3]) tuple(a, b, c) }", "{1, -0, nan}; {1, 0, nan}", "({true, true, false}, {false, false, true}, {false, true, false})"},
	{"compare unsigned", "ENTRY e { p = u8[2] parameter(0)\n q = u8[2] parameter(1)\n ROOT r = pred[2] compare(p, q), direction=GT }", "{200, 1}; {100, 1}", "{true, false}"},
	{"select", "ENTRY e { c = pred[2] parameter(0)\n p = f32[2] parameter(1)\n q = f32[2] parameter(2)\n one = pred[] constant(false)\n a = f32[2] select(c, p, q)\n b = f32[2] select(one, p, q)\n ROOT r = (f32[2], f32[2]) tuple(a, b) }", "{1, 0}; {1, 2}; {3, 4}", "({1, 4}, {3, 4})"},
	{"clamp", "ENTRY e { a = s32[] constant(-1)\n p = s32[3] parameter(0)\n b = s32[] constant(4)\n ROOT r = s32[3] clamp(a, p, b) }", "{-7, 2, 7}", "{-1, 2, 4}"},
	{"convert", "ENTRY e { p = f32[5] parameter(0)\n a = s8[5] convert(p)\n b = u8[5] convert(p)\n c = pred[5] convert(p)\n d = bf16[5] convert(p)\n f = s64[5] convert(p)\n ROOT r = (s8[5], u8[5], pred[5], bf16[5], s64[5]) tuple(a, b, c, d, f) }", "{-1.7, 300, nan, 0.1, 1e30}", "({-1, 127, 0, 0, 127}, {0, 255, 0, 0, 255}, {true, true, true, true, true}, {-1.703125, 300, nan, 0.100097656, 1.00025555e+30}, {-1, 300, 0, 0, 9223372036854775807})"},
	{"convert whole numbers", "ENTRY e { p = s32[3] parameter(0)\n a = u8[3] convert(p)\n b = s64[3] convert(p)\n c = f32[3] convert(p)\n ROOT r = (u8[3], s64[3], f32[3]) tuple(a, b, c) }", "{-1, 257, 16777217}", "({255, 1, 1}, {-1, 257, 16777217}, {-1, 257, 1.6777216e+07})"},
	{"reduce-precision", "ENTRY e { p = f32[4] parameter(0)\n ROOT r = f32[4] reduce-precision(p), exponent_bits=5, mantissa_bits=3 }", "{1.07, 1e9, 1e-9, -3.3}", "{1.125, inf, 0, -3.25}"},
	{"bitcast-convert", "ENTRY e { p = f32[1] parameter(0)\n a = u32[1] bitcast-convert(p)\n b = u8[1,4] bitcast-convert(p)\n c = f32[1] bitcast-convert(b)\n ROOT r = (u32[1], u8[1,4], f32[1]) tuple(a, b, c) }", "{1}", "({1065353216}, {{0, 0, 128, 63}}, {1})"},
	{"bitcast by layouts", "ENTRY e { p = s32[2,3]{0,1} parameter(0)\n ROOT r = s32[6]{0} bitcast(p) }", "{{1,2,3},{4,5,6}}", "{1, 4, 2, 5, 3, 6}"},
	{"broadcast", "ENTRY e { p = s32[2] parameter(0)\n ROOT r = s32[3,2] broadcast(p), dimensions={1} }", "{1, 2}", "{{1, 2}, {1, 2}, {1, 2}}"},
	{"reshape", "ENTRY e { p = s32[2,3] parameter(0)\n ROOT r = s32[3,2] reshape(p) }", "{{1,2,3},{4,5,6}}", "{{1, 2}, {3, 4}, {5, 6}}"},
	{"transpose", "ENTRY e { p = s32[2,3] parameter(0)\n ROOT r = s32[3,2] transpose(p), dimensions={1,0} }", "{{1,2,3},{4,5,6}}", "{{1, 4}, {2, 5}, {3, 6}}"},
	{"reverse", "ENTRY e { p = s32[2,3] parameter(0)\n ROOT r = s32[2,3] reverse(p), dimensions={1} }", "{{1,2,3},{4,5,6}}", "{{3, 2, 1}, {6, 5, 4}}"},
	{"slice", "ENTRY e { p = s32[6] parameter(0)\n ROOT r = s32[2] slice(p), slice={[1:5:2]} }", "{0,1,2,3,4,5}", "{1, 3}"},
	{"pad", "ENTRY e { p = s32[3] parameter(0)\n z = s32[] constant(9)\n ROOT r = s32[6] pad(p, z), padding=2_-1_1 }", "{1,2,3}", "{9, 9, 1, 9, 2, 9}"},
	{"concatenate", "ENTRY e { p = s32[2,1] parameter(0)\n q = s32[2,2] parameter(1)\n ROOT r = s32[2,3] concatenate(p, q), dimensions={1} }", "{{1},{2}}; {{3,4},{5,6}}", "{{1, 3, 4}, {2, 5, 6}}"},
	{"iota", "ENTRY e { ROOT r = f32[2,3] iota(), iota_dimension=1 }", "", "{{0, 1, 2}, {0, 1, 2}}"},
	{"dynamic-slice moves in", "ENTRY e { p = s32[5] parameter(0)\n i = s32[] parameter(1)\n ROOT r = s32[2] dynamic-slice(p, i), dynamic_slice_sizes={2} }", "{0,1,2,3,4}; 7", "{3, 4}"},
	{"dynamic-slice below 0", "ENTRY e { p = s32[5] parameter(0)\n i = s32[1] parameter(1)\n ROOT r = s32[2] dynamic-slice(p, i), dynamic_slice_sizes={2} }", "{0,1,2,3,4}; {-3}", "{0, 1}"},
	{"dynamic-update-slice", "ENTRY e { p = s32[2,3] parameter(0)\n u = s32[1,2] parameter(1)\n i = u8[] parameter(2)\n ROOT r = s32[2,3] dynamic-update-slice(p, u, i, i) }", "{{1,2,3},{4,5,6}}; {{8,9}}; 1", "{{1, 2, 3}, {4, 8, 9}}"},
	{"dot", "ENTRY e { p = f32[2,3] parameter(0)\n q = f32[3,2] parameter(1)\n ROOT r = f32[2,2] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0} }", "{{1,2,3},{4,5,6}}; {{1,0},{0,1},{1,1}}", "{{4, 5}, {10, 11}}"},
	{"dot in batches", "ENTRY e { p = s32[2,3] parameter(0)\n ROOT r = s32[2] dot(p, p), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={1}, rhs_contracting_dims={1} }", "{{1,2,3},{4,5,6}}", "{14, 77}"},
	{"dot of s8 to s32", "ENTRY e { p = s8[2] parameter(0)\n q = u8[2] parameter(1)\n ROOT r = s32[] dot(p, q), lhs_contracting_dims={0}, rhs_contracting_dims={0} }", "{-128, 100}; {255, 255}", "-7140"},
	{"reduce", sum + "ENTRY e { p = s32[2,3] parameter(0)\n z = s32[] constant(10)\n ROOT r = s32[3] reduce(p, z), dimensions={0}, to_apply=sum }", "{{1,2,3},{4,5,6}}", "{15, 17, 19}"},
	{"reduce of pairs", `best { a = s32[] parameter(0)
		i = s32[] parameter(1)
		b = s32[] parameter(2)
		j = s32[] parameter(3)
		c = pred[] compare(a, b), direction=GE
		x = s32[] select(c, a, b)
		y = s32[] select(c, i, j)
		ROOT t = (s32[], s32[]) tuple(x, y) }
		ENTRY e { p = s32[2,3] parameter(0)
		n = s32[2,3] iota(), iota_dimension=1
		z = s32[] constant(-99)
		m = s32[] constant(0)
		ROOT r = (s32[2], s32[2]) reduce(p, n, z, m), dimensions={1}, to_apply=best }`, "{{1,7,3},{4,5,6}}", "({7, 6}, {1, 2})"},
	{"reduce-window", sum + "ENTRY e { p = s32[5] parameter(0)\n z = s32[] constant(0)\n ROOT r = s32[3] reduce-window(p, z), window={size=3 stride=2 pad=1_1}, to_apply=sum }", "{1,2,3,4,5}", "{3, 9, 9}"},
	{"select-and-scatter", `ge { a = s32[] parameter(0)
		b = s32[] parameter(1)
		ROOT c = pred[] compare(a, b), direction=GE }
		` + sum + "ENTRY e { p = s32[4] parameter(0)\n s = s32[2] parameter(1)\n z = s32[] constant(0)\n ROOT r = s32[4] select-and-scatter(p, s, z), window={size=2 stride=2}, select=ge, scatter=sum }", "{1,5,7,3}; {10,20}", "{0, 10, 20, 0}"},
	{"convolution", "ENTRY e { p = s32[1,4,1] parameter(0)\n k = s32[2,1,1] parameter(1)\n ROOT r = s32[1,4,1] convolution(p, k), window={size=2 pad=0_1}, dim_labels=b0f_0io->b0f }", "{{{1},{2},{3},{4}}}; {{{10}},{{1}}}", "{{{12}, {23}, {34}, {40}}}"},
	{"convolution turned, dilated and in groups", "ENTRY e { p = s32[1,3,2] parameter(0)\n k = s32[2,1,2] parameter(1)\n ROOT r = s32[1,4,2] convolution(p, k), window={size=2 lhs_dilate=2 rhs_reversal=1}, dim_labels=b0f_0io->b0f, feature_group_count=2 }", "{{{1,2},{3,4},{5,6}}}; {{{10,20}},{{1,2}}}", "{{{1, 4}, {30, 80}, {3, 8}, {50, 120}}}"},
	{"map", "f { a = s32[] parameter(0)\n b = s32[] parameter(1)\n c = s32[] multiply(a, b)\n ROOT d = s32[] negate(c) }\nENTRY e { p = s32[3] parameter(0)\n ROOT r = s32[3] map(p, p), dimensions={0}, to_apply=f }", "{1,2,3}", "{-1, -4, -9}"},
	{"sort", less + "ENTRY e { p = s32[2,3] parameter(0)\n ROOT r = s32[2,3] sort(p), dimensions={1}, to_apply=lt }", "{{3,1,2},{6,5,4}}", "{{1, 2, 3}, {4, 5, 6}}"},
	{"sort with its order, stable", "lt { a = s32[] parameter(0)\n b = s32[] parameter(1)\n c = s32[] parameter(2)\n d = s32[] parameter(3)\n ROOT l = pred[] compare(a, b), direction=LT }\nENTRY e { p = s32[4] parameter(0)\n n = s32[4] iota(), iota_dimension=0\n ROOT r = (s32[4], s32[4]) sort(p, n), dimensions={0}, to_apply=lt }", "{2,1,2,1}", "({1, 1, 2, 2}, {1, 3, 0, 2})"},
	{"gather rows", "ENTRY e { p = s32[3,2] parameter(0)\n i = s32[2,1] parameter(1)\n ROOT r = s32[2,2] gather(p, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,2} }", "{{1,2},{3,4},{5,6}}; {{2},{9}}", "{{5, 6}, {5, 6}}"},
	{"gather in batches", "ENTRY e { p = s32[2,3] parameter(0)\n i = s32[2] parameter(1)\n ROOT r = s32[2] gather(p, i), offset_dims={}, collapsed_slice_dims={1}, start_index_map={1}, operand_batching_dims={0}, start_indices_batching_dims={0}, index_vector_dim=1, slice_sizes={1,1} }", "{{1,2,3},{4,5,6}}; {2,0}", "{3, 4}"},
	{"scatter", sum + "ENTRY e { p = s32[4] parameter(0)\n i = s32[3,1] parameter(1)\n u = s32[3] parameter(2)\n ROOT r = s32[4] scatter(p, i, u), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=sum }", "{1,2,3,4}; {{1},{1},{9}}; {10,20,30}", "{1, 32, 3, 4}"},
	{"tuple constant", "ENTRY e { ROOT c = (s32[2], (f32[], pred[])) constant(({1, 2}, (0.5, true))) }", "", "({1, 2}, (0.5, true))"},
	{"call", "f { a = s32[] parameter(0)\n ROOT b = s32[] add(a, a) }\nENTRY e { p = s32[] parameter(0)\n q = s32[] call(p), to_apply=f\n ROOT r = s32[] call(q), to_apply=f }", "3", "12"},
	{"fusion", "f { a = s32[2] parameter(0)\n b = s32[2] negate(a)\n ROOT t = (s32[2], s32[2]) tuple(a, b) }\nENTRY e { p = s32[2] parameter(0)\n ROOT r = (s32[2], s32[2]) fusion(p), kind=kLoop, calls=f }", "{1,2}", "({1, 2}, {-1, -2})"},
	{"conditional", branches + "ENTRY e { c = pred[] parameter(0)\n p = s32[] parameter(1)\n ROOT r = s32[] conditional(c, p, p), true_computation=plus, false_computation=minus }", "true; 5", "10"},
	{"conditional, not", branches + "ENTRY e { c = pred[] parameter(0)\n p = s32[] parameter(1)\n ROOT r = s32[] conditional(c, p, p), true_computation=plus, false_computation=minus }", "false; 5", "-5"},
	{"the last branch for all others", branches + "ENTRY e { c = s32[] parameter(0)\n p = s32[] parameter(1)\n ROOT r = s32[] conditional(c, p, p, p), branch_computations={plus, plus, minus} }", "-4; 5", "-5"},
	{"to the host and back", `ENTRY e { p = s32[2] parameter(0)
		s = (s32[2]{0:S(5)}, s32[2], u32[]) copy-start(p)
		d = s32[2]{0:S(5)} copy-done(s)
		t = (s32[2], s32[2]{0:S(5)}, u32[]) copy-start(d)
		ROOT b = s32[2] copy-done(t) }`, "{3, -4}", "{3, -4}"},
	{"while", `body { t = (s32[], s32[]) parameter(0)
		i = s32[] get-tuple-element(t), index=0
		x = s32[] get-tuple-element(t), index=1
		one = s32[] constant(1)
		j = s32[] add(i, one)
		y = s32[] multiply(x, j)
		ROOT r = (s32[], s32[]) tuple(j, y) }
		cond { t = (s32[], s32[]) parameter(0)
		i = s32[] get-tuple-element(t), index=0
		n = s32[] constant(6)
		ROOT l = pred[] compare(i, n), direction=LT }
		ENTRY e { p = (s32[], s32[]) parameter(0)
		ROOT w = (s32[], s32[]) while(p), condition=cond, body=body }`, "(0, 1)", "(6, 720)"},
	{"barrier, copy and sharding", "ENTRY e { p = (s32[], s32[2]) parameter(0)\n q = (s32[], s32[2]) opt-barrier(p)\n s = (s32[], s32[2]) copy(q)\n x = s32[2] get-tuple-element(s), index=1\n ROOT r = s32[2] custom-call(x), custom_call_target=\"Sharding\" }", "(1, {2, 3})", "{2, 3}"},
	{"what the result does not need is not run", "ENTRY e { p = s32[] parameter(0)\n o = s32[] what-is-this(p)\n ROOT r = s32[] negate(p) }", "3", "-3"},
	{"after-all", "ENTRY e { p = s32[] parameter(0)\n t = token[] after-all()\n ROOT r = s32[] add-dependency(p, t) }", "3", "3"},
	{"nothing in it", sum + "ENTRY e { p = s32[0,2] parameter(0)\n z = s32[] constant(4)\n ROOT r = s32[2] reduce(p, z), dimensions={0}, to_apply=sum }", "{}", "{4, 4}"},

	{"unknown opcode", "ENTRY e { p = s32[] parameter(0)\n ROOT r = s32[] what-is-this(p) }", "3", "error: line 3: r in e: opcode what-is-this is not interpreted for s32[]"},
	{"collective", sum + "ENTRY e { p = s32[] parameter(0)\n ROOT r = s32[] all-reduce(p), to_apply=sum }", "3", "error: opcode all-reduce is not interpreted"},
	{"custom call", "ENTRY e { p = s32[] parameter(0)\n ROOT r = s32[] custom-call(p), custom_call_target=\"f\" }", "3", "error: opcode custom-call"},
	{"unknown type", "ENTRY e { c = f8e5m2[] constant(1)\n ROOT r = f8e5m2[] negate(c) }", "", "error: line 2: c in e: f8e5m2[]: the type is not interpreted"},
	{"no such function", "ENTRY e { p = s32[] parameter(0)\n ROOT r = s32[] tanh(p) }", "3", "error: opcode tanh is not interpreted for s32"},
	{"mixed", "ENTRY e { p = f32[] parameter(0)\n q = bf16[] convert(p)\n ROOT r = f32[] add(p, q) }", "3", "error: add of f32 and bf16"},
	{"mixed reshape", "ENTRY e { p = f32[] parameter(0)\n ROOT r = bf16[1] reshape(p) }", "3", "error: reshape of f32 to bf16"},
	{"inside a call", "f { a = s32[] parameter(0)\n ROOT b = s32[] tanh(a) }\nENTRY e { p = s32[] parameter(0)\n ROOT q = s32[] call(p), to_apply=f }", "3", "error: line 3: b in f: opcode tanh"},
	{"left out", "ENTRY e { ROOT c = s32[9] constant({...}) }", "", "error: its values are left out"},
	{"not as many", "ENTRY e { ROOT c = s32[3] constant({1, 2}) }", "", "error: 2 elements, expected 3"},
	{"too large", "ENTRY e { ROOT c = s8[100000,100000] iota(), iota_dimension=0 }", "", "error: 10000000000 elements"},
	{"dynamic", "ENTRY e { p = s32[<=4] parameter(0)\n ROOT r = s32[<=4] negate(p) }", "", "error: dynamic dimensions"},
	{"no end", `body { ROOT t = s32[] parameter(0) }
		cond { t = s32[] parameter(0)
		ROOT l = pred[] constant(true) }
		ENTRY e { p = s32[] parameter(0)
		ROOT w = s32[] while(p), condition=cond, body=body }`, "1", "error: the limit of work is reached"},
	{"bad module", "ENTRY e { p = s32[] parameter(0)\n ROOT r = s32[2] negate(p) }", "1", "error: line 3: r in e: operand 0 is s32[], the result s32[2]"},
	{"bad gather", "ENTRY e { p = s32[3,2] parameter(0)\n i = s32[2,1] parameter(1)\n ROOT r = s32[2,2] gather(p, i), offset_dims={1}, collapsed_slice_dims={0,1}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,2} }", "{{1,2},{3,4},{5,6}}; {{2},{9}}", "error: the dimension numbers of gather do not fit"},
	{"bad scatter", sum + "ENTRY e { p = s32[4] parameter(0)\n i = s32[3,1] parameter(1)\n u = s32[3] parameter(2)\n ROOT r = s32[4] scatter(p, i, u), update_window_dims={7}, to_apply=sum }", "{1,2,3,4}; {{1},{1},{9}}; {10,20,30}", "error: attribute update_window_dims={7}"},
}

const (
	sum      = "sum { a = s32[] parameter(0)\n b = s32[] parameter(1)\n ROOT s = s32[] add(a, b) }\n"
	less     = "lt { a = s32[] parameter(0)\n b = s32[] parameter(1)\n ROOT c = pred[] compare(a, b), direction=LT }\n"
	branches = "plus { a = s32[] parameter(0)\n ROOT b = s32[] add(a, a) }\nminus { a = s32[] parameter(0)\n ROOT b = s32[] negate(a) }\n"
)

func parsed(t testing.TB, text string) *hlo.Module {
	t.Helper()
	m, err := hlo.ParseString("HloModule m\n" + text)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// literals reads the arguments of a module.
func literals(t testing.TB, m *hlo.Module, text string) []Value {
	t.Helper()
	var list []Value
	if text == "" {
		return nil
	}
	for n, part := range strings.Split(text, ";") {
		v, err := Literal(m.Entry.Parameters()[n].Shape, part)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, v)
	}
	return list
}

func TestRun(t *testing.T) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := parsed(t, test.text)
			arguments := literals(t, m, test.arguments)
			if test.name == "dynamic" {
				arguments = []Value{{Shape: m.Entry.Root.Shape, Bits: make([]uint64, 4)}}
			}
			got, err := Run(m, arguments, Options{Work: 1 << 16})
			if want, fails := strings.CutPrefix(test.want, "error: "); fails {
				if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
					t.Fatalf("got %v, %v, want an error with %q", got, err, want)
				}
				if test.name == "no end" && !errors.Is(err, ErrWork) {
					t.Errorf("%v is not ErrWork", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			if err := fits(got, m.Entry.Root.Shape); err != nil {
				t.Error(err)
			}
			again, err := Run(m, arguments, Options{})
			if err != nil || !Equal(got, again) {
				t.Errorf("the second time %s, %v", again, err)
			}
		})
	}
}

func TestArguments(t *testing.T) {
	m := parsed(t, "ENTRY e { p = (f32[2], (s8[3], pred[], token[])) parameter(0)\n q = u64[] parameter(1)\n ROOT r = u64[] negate(q) }")
	a, err := Arguments(m, 1)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := Arguments(m, 1)
	c, _ := Arguments(m, 2)
	if !Equal(a[0], b[0]) || Equal(a[0], c[0]) {
		t.Errorf("%v, %v, %v", a, b, c)
	}
	if _, err := Run(m, a, Options{}); err != nil {
		t.Error(err)
	}
	for _, bad := range [][]Value{nil, {a[0]}, {a[1], a[0]}, {a[0], {Shape: a[1].Shape}}, {{Shape: a[0].Shape}, a[1]}, {{}, {}}} {
		if v, err := Run(m, bad, Options{}); err == nil {
			t.Errorf("%v: %v", bad, v)
		}
	}
	m = parsed(t, "ENTRY e { p = f8e5m2[] parameter(0)\n ROOT r = f8e5m2[] negate(p) }")
	if v, err := Arguments(m, 1); err == nil {
		t.Error(v)
	}
}

// Folding through a run of the computation gives what the short way does.
func TestFolder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape := rapid.SampledFrom([]string{"f32", "bf16", "f16", "f64", "s8", "u32"}).Draw(t, "type")
		op := rapid.SampledFrom([]string{"add", "multiply", "maximum", "subtract"}).Draw(t, "op")
		text := strings.NewReplacer("@", shape, "OP", op).Replace(`
short { a = @[] parameter(0)
 b = @[] parameter(1)
 ROOT c = @[] OP(a, b) }
long { a = @[] parameter(0)
 b = @[] parameter(1)
 c = @[] OP(a, b)
 ROOT d = @[] copy(c) }
ENTRY e { p = @[4,5] parameter(0)
 z = @[] parameter(1)
 x = @[5] reduce(p, z), dimensions={0}, to_apply=short
 y = @[5] reduce(p, z), dimensions={0}, to_apply=long
 ROOT r = (@[5], @[5]) tuple(x, y) }`)
		m, err := hlo.ParseString("HloModule m\n" + text)
		if err != nil {
			t.Fatal(err)
		}
		arguments, err := Arguments(m, rapid.Uint64().Draw(t, "seed"))
		if err != nil {
			t.Fatal(err)
		}
		v, err := Run(m, arguments, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if !Equal(v.Elements[0], v.Elements[1]) {
			t.Fatalf("%s and %s", v.Elements[0], v.Elements[1])
		}
	})
}

func TestRandomBits(t *testing.T) {
	m := parsed(t, "ENTRY e { p = u64[2] parameter(0)\n ROOT r = (u64[2], u8[300]) rng-bit-generator(p), algorithm=rng_philox }")
	runs := map[string]Value{}
	for _, state := range []string{"{1, 2}", "{2, 1}", "{1, 2}"} {
		v, err := Run(m, literals(t, m, state), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if before, ok := runs[state]; ok && !Equal(v, before) {
			t.Errorf("%s and %s from the same state", v, before)
		}
		runs[state] = v
	}
	if Equal(runs["{1, 2}"], runs["{2, 1}"]) {
		t.Error("the same from two states")
	}
	seen := map[uint64]bool{}
	for _, b := range runs["{1, 2}"].Elements[1].Bits {
		seen[b] = true
	}
	if len(seen) < 150 {
		t.Errorf("%d of 256 bytes in 300", len(seen))
	}
}

func FuzzRun(f *testing.F) {
	for _, test := range tests {
		f.Add("HloModule m\n" + test.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := hlo.ParseString(text)
		if err != nil {
			return
		}
		for _, p := range m.Entry.Parameters() {
			if n, err := p.Shape.TotalBytes(); err != nil || n > 1<<16 {
				return
			}
		}
		arguments, err := Arguments(m, 1)
		if err != nil {
			return
		}
		v, err := Run(m, arguments, Options{Work: 1 << 14})
		if err != nil {
			return
		}
		if again, err := Run(m, arguments, Options{Work: 1 << 14}); err != nil || !Equal(v, again) {
			t.Errorf("%s, then %s, %v", v, again, err)
		}
	})
}
