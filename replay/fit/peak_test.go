package fit

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/trace"
	"gpumem/trace/formats"
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
			list, err := functions(t.Context(), []Compiled{compiled(t, "jit_step", stepModule, 6*mib), {Name: "without a module", Temp: 6 * mib}, compiled(t, "jit_bad", "no module", 1)})
			if err != nil || len(list) != 1 {
				t.Fatal(list, err)
			}
			var text strings.Builder
			for i, n := range tc.blocks {
				fmt.Fprintf(&text, "a %d %d\n", i, n)
			}
			recording := filepath.Join(t.TempDir(), "r")
			if err := os.WriteFile(recording, []byte(text.String()), 0o600); err != nil {
				t.Fatal(err)
			}
			tr, err := formats.Open(t.Context(), recording, trace.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			all, err := peaks(t.Context(), tr, list)
			if err != nil || len(all) != 1 {
				t.Fatal(all, err)
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

func TestBreaks(t *testing.T) {
	const mib = 1 << 20
	list, err := functions(t.Context(), []Compiled{compiled(t, "jit_step", stepModule, 6*mib), compiled(t, "jit_other", stepModule, 4*mib)})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		bytes uint64
		want  Breaks
	}{
		{6 * mib, Breaks{6 * mib, "jit_step", Temporaries}},
		{4 * mib, Breaks{4 * mib, "jit_other", Temporaries}},
		{5 * mib, Breaks{Bytes: 5 * mib}},
	} {
		if got := breaks(tc.bytes, list); *got != tc.want {
			t.Errorf("%+v, want %+v", *got, tc.want)
		}
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
