package memory

import (
	"testing"

	"gpumem/xla/internal/hlo"
)

// The order in which temporary allocations are put together decides what is rounded up.
func TestTemporariesTogether(t *testing.T) {
	other, table, heap := kept{}, kept{temp: true, bytes: 24}, kept{temp: true, bytes: 1000}
	for _, tc := range []struct {
		name string
		all  []kept
		want uint64
	}{
		{"nothing", nil, 0},
		{"no temporaries", []kept{other, other}, 0},
		{"the heap alone", []kept{other, heap}, 1000},
		{"the heap is last of all", []kept{other, table, heap}, 256 + 1000},
		{"one of a thread behind it", []kept{table, heap, other}, 1024 + 24},
		{"as many of threads as temporaries", []kept{table, heap, other, other}, 1024 + 24},
		{"an output between", []kept{table, other, heap}, 256 + 1000},
		{"two tables, turned around", []kept{{temp: true, bytes: 8}, table, heap, other, other, other}, 1024 + 256 + 8},
		{"two memory spaces", []kept{{temp: true, space: 1, bytes: 10}, table, heap, other, other, other}, 1024 + 24 + 10},
	} {
		if got := bytesTogether(tc.all, 256); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}

// The text of an asynchronous operation does not show the computation that it runs, whose
// result has a table if it is a tuple.
func TestTablesOfWrappedOperations(t *testing.T) {
	const head = "HloModule m, is_scheduled=true\n\nENTRY e {\n  p = f32[64] parameter(0)\n  q = f32[64] parameter(1)\n"
	const attributes = ", replica_groups={}, dimensions={0}"
	for _, tc := range []struct {
		name, body string
		want       int
	}{
		{"one operand", "  s = ((f32[64]), f32[128]) all-gather-start(p)" + attributes + "\n  ROOT d = f32[128] all-gather-done(s)\n", 0},
		{"several", "  s = ((f32[64], f32[64]), (f32[32], f32[32])) reduce-scatter-start(p, q)" + attributes + "\n  ROOT d = (f32[32], f32[32]) reduce-scatter-done(s)\n", 1},
		{"several, as releases before 2026 write it", "  s = ((f32[64], f32[64]), (f32[128], f32[128])) all-gather-start(p, q)" + attributes + "\n  ROOT d = (f32[128], f32[128]) all-gather-done(s)\n", 0},
		{"several, beside one", "  r = ((f32[64]), f32[128]) all-gather-start(p)" + attributes + "\n  c = f32[128] all-gather-done(r)\n" +
			"  s = ((f32[64], f32[64]), (f32[128], f32[128])) all-gather-start(p, q)" + attributes + "\n  ROOT d = (f32[128], f32[128]) all-gather-done(s)\n", 1},
	} {
		m, err := hlo.ParseString(head + tc.body + "}\n")
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		a, err := AnalyzeModule(m)
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if list := a.wrappedTables(); len(list) != tc.want || tc.want > 0 && list[0].bytes != 16 {
			t.Errorf("%s: %v, want %d", tc.name, list, tc.want)
		}
	}
}
