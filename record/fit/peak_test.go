package fit

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/record/formats"
	"gpumem/record/trace"
)

// A train step whose weights are updated in place, and whose moments are returned anew.
const stepModule = `HloModule jit_step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }

ENTRY main {
  w = f32[1024,1024]{1,0} parameter(0), metadata={op_name="state.params[\'w\']"}
  m = f32[1024,1024]{1,0} parameter(1), metadata={op_name="state.opt_state[0].mu[\'w\']"}
  x = f32[512,1024]{1,0} parameter(2), metadata={op_name="batch"}
  t = f32[1024,1024]{1,0} add(w, m), metadata={op_name="jit(step)/add" source_file="train.py" source_line=7}
  u = f32[512,1024]{1,0} negate(x)
  r = f32[1024,1024]{1,0} multiply(t, m)
  s = f32[1024,1024]{1,0} subtract(t, r)
  ROOT out = (f32[1024,1024]{1,0}, f32[1024,1024]{1,0}) tuple(s, r)
}
`

func compiled(t *testing.T, name, text string, temp uint64) Compiled {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Compiled{Name: name, Temp: temp, path: path}
}

// TestPeak: the parts of the peak, from a recording in our text format and a module.
func TestPeak(t *testing.T) {
	const mib = 1 << 20
	for _, tc := range []struct {
		name     string
		blocks   []uint64 // allocated in this order, all live
		function string
		parts    string
	}{
		{"a step", []uint64{4 * mib, 4 * mib, 2 * mib, 3 * mib, 4 * mib, 6 * mib}, "jit_step",
			"state in place state.params['w'] 4, state state.opt_state[0].mu['w'] 4, input batch 2, results 4, temporaries 6, other 3"},
		{"with small blocks between", []uint64{4 * mib, 4 * mib, 2 * mib, 4 * mib, 16, 6 * mib, 256}, "jit_step",
			"state in place state.params['w'] 4, state state.opt_state[0].mu['w'] 4, input batch 2, results 4, temporaries 6, other 0"},
		{"one array for two arguments", []uint64{4 * mib, 2 * mib, 4 * mib, 6 * mib}, "jit_step",
			"state in place state.params['w'] 4, input batch 2, results 4, temporaries 6"},
		{"a copy to the GPU", []uint64{4 * mib, 4 * mib, 2 * mib, 4 * mib, 6 * mib, 100 * mib}, "", ""},
		{"no results yet", []uint64{4 * mib, 2 * mib, 6 * mib}, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			list, notes, err := functions(t.Context(), []Compiled{compiled(t, "jit_step", stepModule, 6*mib), {Name: "without a module", Temp: 6 * mib}, compiled(t, "jit_bad", "no module", 1)})
			if err != nil || len(list) != 1 || len(notes) != 1 || !strings.Contains(notes[0], "jit_bad is not looked for at the peak: its module cannot be read") {
				t.Fatal(list, notes, err)
			}
			tr := allocated(t, tc.blocks...)
			all, notes, err := peaks(t.Context(), tr, list)
			if err != nil || len(all) != 1 || len(notes) != 0 {
				t.Fatal(all, notes, err)
			}
			p := all[0]
			var parts []string
			sum := uint64(0)
			for _, x := range p.Parts {
				parts = append(parts, strings.Join(strings.Fields(fmt.Sprintf("%s %s %d", x.Kind, x.Name, x.Bytes/mib)), " "))
				sum += x.Bytes
			}
			if got := strings.Join(parts, ", "); p.Function != tc.function || got != tc.parts || p.Function != "" && sum != p.Bytes {
				t.Errorf("%s: %s", p.Function, got)
			}
			if p.Function != "" && (len(p.Largest) == 0 || p.Largest[0].Source != "train.py:7") {
				t.Errorf("%+v", p.Largest)
			}
		})
	}
}

// readAll reads functions, all of them.
func readAll(t *testing.T, compiled ...Compiled) []*function {
	t.Helper()
	list, notes, err := functions(t.Context(), compiled)
	if err != nil || len(list) != len(compiled) || len(notes) != 0 {
		t.Fatal(list, notes, err)
	}
	return list
}

// allocated is a recording of blocks of these bytes, one after the other. A block of 0 is
// the free of the last one that is live.
func allocated(t *testing.T, blocks ...uint64) *trace.Trace {
	t.Helper()
	var text strings.Builder
	var live []int
	for i, n := range blocks {
		if n == 0 {
			fmt.Fprintf(&text, "f %d\n", live[len(live)-1])
			live = live[:len(live)-1]
			continue
		}
		fmt.Fprintf(&text, "a %d %d\n", i, n)
		live = append(live, i)
	}
	tr, err := formats.Read(t.Context(), strings.NewReader(text.String()), "run.txt", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

// resultsModule is a module whose entry has n results of 4 MiB in new memory.
func resultsModule(n int) string {
	shape := strings.TrimSuffix(strings.Repeat("f32[1024,1024]{1,0}, ", n), ", ")
	values := strings.TrimSuffix(strings.Repeat("r, ", n), ", ")
	return fmt.Sprintf("HloModule jit_step, is_scheduled=true\n\nENTRY main {\n  w = f32[1024,1024]{1,0} parameter(0)\n  r = f32[1024,1024]{1,0} negate(w)\n  ROOT out = (%s) tuple(%s)\n}\n", shape, values)
}

// TestBreaks: the function that makes a request, and what for, by the blocks around it.
func TestBreaks(t *testing.T) {
	const mib = 1 << 20
	step := compiled(t, "jit_step", stepModule, 6*mib) // a result of 4 MiB, temporaries of 6
	same := compiled(t, "jit_same", stepModule, 6*mib)
	equal := compiled(t, "jit_equal", resultsModule(3), 4*mib) // three results and temporaries, all of 4 MiB
	other := compiled(t, "jit_other", resultsModule(1), 4*mib) // a result and temporaries
	none := compiled(t, "jit_none", resultsModule(2), 0)       // no temporaries
	for _, tc := range []struct {
		name   string
		list   []Compiled
		blocks []uint64
		event  uint64
		want   Breaks
	}{
		{"temporaries", []Compiled{step, other}, []uint64{4 * mib, 4 * mib, 6 * mib}, 3, Breaks{6 * mib, "jit_step", Temporaries}},
		{"a result", []Compiled{step, other}, []uint64{4 * mib, 4 * mib, 6 * mib}, 2, Breaks{4 * mib, "jit_step", Results}},
		{"an argument", []Compiled{step}, []uint64{4 * mib, 4 * mib, 6 * mib}, 1, Breaks{Bytes: 4 * mib}},
		{"another size", []Compiled{step}, []uint64{5 * mib, 4 * mib, 6 * mib}, 1, Breaks{Bytes: 5 * mib}},
		{"small ones between", []Compiled{step}, []uint64{4 * mib, 16, 0, 16, 6 * mib}, 1, Breaks{4 * mib, "jit_step", Results}},
		{"a small one", []Compiled{step}, []uint64{16, 4 * mib, 6 * mib}, 1, Breaks{Bytes: 16}},
		{"a result of the size of the temporaries", []Compiled{equal}, []uint64{4 * mib, 4 * mib, 4 * mib, 4 * mib, 4 * mib, 4 * mib, 0}, 5, Breaks{4 * mib, "jit_equal", Results}},
		{"temporaries of the size of the results", []Compiled{equal}, []uint64{4 * mib, 4 * mib, 4 * mib, 4 * mib, 4 * mib, 4 * mib, 0}, 6, Breaks{4 * mib, "jit_equal", Temporaries}},
		{"then the next call", []Compiled{equal}, []uint64{4 * mib, 4 * mib, 4 * mib, 4 * mib, 0, 4 * mib, 4 * mib, 4 * mib, 4 * mib, 0}, 4, Breaks{4 * mib, "jit_equal", Temporaries}},
		{"the function with the most bytes", []Compiled{other, equal}, []uint64{4 * mib, 4 * mib, 4 * mib, 4 * mib, 0}, 3, Breaks{4 * mib, "jit_equal", Results}},
		{"without temporaries", []Compiled{none}, []uint64{5 * mib, 4 * mib, 4 * mib}, 3, Breaks{4 * mib, "jit_none", Results}},
		{"one of two", []Compiled{step, same, same}, []uint64{4 * mib, 6 * mib}, 2, Breaks{6 * mib, "jit_step or jit_same", Temporaries}},
		{"one of two, for one or the other", []Compiled{other, none}, []uint64{4 * mib, 4 * mib}, 2, Breaks{4 * mib, "jit_other or jit_none", ""}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := breaks(t.Context(), allocated(t, tc.blocks...).Pools[0], tc.event, readAll(t, tc.list...))
			if err != nil || *got != tc.want {
				t.Errorf("%+v, %v, want %+v", got, err, tc.want)
			}
		})
	}
}

// TestRead: which arguments are state, and which results lie in new memory.
func TestRead(t *testing.T) {
	const shape = "f32[1024,1024]{1,0}"
	for _, tc := range []struct{ name, aliases, kinds, results string }{
		{"two arguments of a result's shape", "", "state input state", "4194304 8"},
		{"the second result in an argument", ", input_output_alias={ {1}: (2, {}, may-alias) }", "state input state in place", "4194304"},
		{"the first result in an argument", ", input_output_alias={ {0}: (1, {}, may-alias) }", "input state in place state", "8"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := readAll(t, compiled(t, "jit_step", "HloModule jit_step, is_scheduled=true"+tc.aliases+`

ENTRY main {
  a = `+shape+` parameter(0)
  b = `+shape+` parameter(1)
  c = f32[2]{0} parameter(2)
  s = `+shape+` add(a, b)
  n = f32[2]{0} negate(c)
  ROOT out = (`+shape+`, f32[2]{0}) tuple(s, n)
}
`, 0))[0]
			var kinds []string
			for _, a := range f.arguments {
				kinds = append(kinds, string(a.kind))
			}
			if got := strings.Join(kinds, " "); got != tc.kinds || strings.Trim(fmt.Sprint(f.results), "[]") != tc.results {
				t.Errorf("%s, results %v", got, f.results)
			}
		})
	}
}

// TestPeakOfTwoFunctions: both are named where both explain the newest blocks.
func TestPeakOfTwoFunctions(t *testing.T) {
	const mib = 1 << 20
	list := readAll(t, compiled(t, "jit_small", resultsModule(1), 0), compiled(t, "jit_one", resultsModule(2), 0), compiled(t, "jit_two", resultsModule(1), 4*mib), compiled(t, "jit_one", resultsModule(2), 0))
	all, _, err := peaks(t.Context(), allocated(t, 5*mib, 4*mib, 4*mib), list)
	if err != nil || all[0].Function != "jit_one or jit_two" {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestReportPeak: the peak of a report is that of the GPU with the most.
func TestReportPeak(t *testing.T) {
	r := Report{Peaks: []Peak{{Pool: "GPU_0", Bytes: 5}, {Pool: "GPU_1", Bytes: 7}, {Pool: "GPU_2", Bytes: 6}}}
	if got := r.Peak().Pool; got != "GPU_1" {
		t.Error(got)
	}
}

func TestGrouped(t *testing.T) {
	for _, tc := range []struct {
		name string
		list string // NAME:BYTES
		want string
	}{
		{"one that is most of it", "params['a']:10 params['b']:10 batch:3", "params['a'] 10, params['b'] 10, batch 3"},
		{"one tree", "state.params['a']:10 state.params['b']:10 state.opt[0].mu['a']:10 state.opt[0].mu['b']:10 state.opt[0].nu['a']:10 state.opt[0].nu['b']:10 x:1", "state.params 20, state.opt[0].mu 20, state.opt[0].nu 20, x 1"},
		{"many layers", "p[0]:1 p[1]:1 p[2]:1 p[3]:1 p[4]:1 p[5]:1 p[6]:1", "p 7"},
		{"no names", ":5 :6", " 11"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var list []argument
			for _, x := range strings.Split(tc.list, " ") {
				name, bytes, _ := strings.Cut(x, ":")
				a := argument{name: name, kind: Input}
				fmt.Sscan(bytes, &a.bytes)
				list = append(list, a)
			}
			var got []string
			for _, p := range grouped(list) {
				got = append(got, fmt.Sprintf("%s %d", p.Name, p.Bytes))
			}
			if strings.Join(got, ", ") != tc.want {
				t.Errorf("%q", got)
			}
		})
	}
}

// TestAs: a version that advise cannot read is left out.
func TestAs(t *testing.T) {
	for _, tc := range []struct {
		of   program
		want string
	}{
		{program{Framework: "pytorch", Version: "2.15.0"}, "pytorch@2.15.0"},
		{program{Framework: "pytorch", Version: "a0+git"}, "pytorch"},
		{program{Framework: "jax"}, "jax"},
		{program{}, ""},
	} {
		if got := tc.of.as(); got != tc.want {
			t.Errorf("%+v: %q, want %q", tc.of, got, tc.want)
		}
	}
}
