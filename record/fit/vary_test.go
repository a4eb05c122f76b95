package fit_test

import (
	"slices"
	"strings"
	"testing"

	"gpumem/device/sim"
	"gpumem/internal/test/standin"
	"gpumem/record/fit"
)

func TestVaryIn(t *testing.T) {
	v := fit.Vary{Name: "batch"}
	for _, tc := range []struct {
		name, command, env string
		wantCommand        string // "" if the variable is set
		bad                bool
	}{
		{name: "two words", command: "python train.py --batch 8 --lr 1", wantCommand: "python train.py --batch 64 --lr 1"},
		{name: "one word", command: "python train.py --batch=8", wantCommand: "python train.py --batch=64"},
		{name: "one dash", command: "python train.py -batch 8", wantCommand: "python train.py -batch 64"},
		{name: "no dash", command: "python train.py batch=8 model.batch=8", wantCommand: "python train.py batch=64 model.batch=8"},
		{name: "twice", command: "python train.py --batch 8 --batch=9", wantCommand: "python train.py --batch 64 --batch=64"},
		{name: "a negative value", command: "python train.py --batch -1", wantCommand: "python train.py --batch 64"},
		{name: "argument and variable", command: "python train.py --batch 8", env: "batch=8", wantCommand: "python train.py --batch 64"},
		{name: "variable", command: "python train.py batch", env: "batch=8"},
		{name: "the program's name", command: "batch=8", bad: true},
		{name: "no value", command: "python train.py --batch --lr 1", bad: true},
		{name: "at the end", command: "python train.py --batch", bad: true},
		{name: "another", command: "python train.py --batches 8 ---batch 8 batch 8", bad: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			command, env := strings.Fields(tc.command), []string{"HOME=/", tc.env}
			got, gotEnv, err := v.In(command, env, "64")
			if (err != nil) != tc.bad {
				t.Fatal(err)
			}
			want, wantEnv := tc.wantCommand, env
			if want == "" && !tc.bad {
				want, wantEnv = tc.command, []string{"HOME=/", "batch=64"}
			}
			if strings.Join(got, " ") != want || !tc.bad && !slices.Equal(gotEnv, wantEnv) {
				t.Errorf("%q, %q", got, gotEnv)
			}
			if strings.Join(command, " ") != tc.command {
				t.Error("the command was changed")
			}
		})
	}
}

func TestParseVary(t *testing.T) {
	for _, tc := range []struct {
		text string
		want fit.Vary
		bad  string
	}{
		{text: "batch=8,16", want: fit.Vary{Name: "batch", Values: []string{"8", "16"}}},
		{text: "--batch-size=8", want: fit.Vary{Name: "batch-size", Values: []string{"8"}}},
		{text: "batch", bad: "want NAME=VALUE"},
		{text: "=8", bad: "want NAME=VALUE"},
		{text: "batch=8,,9", bad: "a value is empty"},
		{text: "batch=", bad: "a value is empty"},
		{text: "batch=8,9,8", bad: "8 is given twice"},
	} {
		t.Run(tc.text, func(t *testing.T) {
			v, err := fit.ParseVary(tc.text)
			if tc.bad != "" {
				if err == nil || !strings.Contains(err.Error(), tc.bad) {
					t.Error(err)
				}
			} else if err != nil || v.Name != tc.want.Name || !slices.Equal(v.Values, tc.want.Values) {
				t.Errorf("%+v, %v", v, err)
			}
		})
	}
}

func TestRunVary(t *testing.T) {
	env := append(environ(t), "MIB=1")
	program := standin.Compile(t, "testdata/program.c")
	for _, tc := range []struct {
		name    string
		values  []string
		largest string // "" for none
		tried   string
	}{
		{"some", []string{"100", "200", "300", "5000", "6000"}, "300", "300 5000 6000"},
		{"all", []string{"100", "200"}, "200", "200"},
		{"none", []string{"5000", "6000"}, "", "5000 6000"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := fit.Config{Command: []string{"sh", "-c", `exec "$0" "$MIB"`, program}, Env: env, Sim: sim.Config{Total: 4 << 30}, Context: 1 << 30}
			r, err := fit.RunVary(t.Context(), cfg, fit.Vary{Name: "MIB", Values: tc.values})
			if err != nil {
				t.Fatal(err)
			}
			var tried []string
			for _, x := range r.Varied.Tried {
				tried = append(tried, x.Value)
				if x.Fits != (len(x.Value) == 3) || x.Peak == 0 || x.Set == nil {
					t.Errorf("%+v", x)
				}
			}
			largest := ""
			if r.Varied.Largest != nil {
				largest = *r.Varied.Largest
			}
			if r.Summary.Largest != r.Varied.Largest || r.Summary.Fits != (largest != "") {
				t.Errorf("%+v", r.Summary)
			}
			if largest != tc.largest || strings.Join(tried, " ") != tc.tried {
				t.Errorf("largest %q, tried %q", largest, tried)
			}
		})
	}
	// This project's pool is a way to fit, as without --vary.
	holes := standin.Compile(t, "testdata/holes.c")
	r, err := fit.RunVary(t.Context(), fit.Config{Command: []string{"sh", "-c", `exec "$0" "$MIB"`, holes}, Env: env, Sim: sim.Config{Total: 620 << 20}}, fit.Vary{Name: "MIB", Values: []string{"600"}})
	if err != nil {
		t.Fatal(err)
	}
	if one := r.Varied.Tried[0]; !r.Fits || r.Largest == nil || !one.Fits || !slices.Equal(one.Set, []string{"gpumem run --pool elastic -- COMMAND"}) {
		t.Errorf("fits %v, %+v", r.Fits, one)
	}
	for _, cfg := range []fit.Config{{Smallest: true}, {Record: "r"}} {
		cfg.Command, cfg.Env, cfg.Sim = []string{program, "1"}, env, sim.Config{Total: 4 << 30}
		if _, err := fit.RunVary(t.Context(), cfg, fit.Vary{Name: "MIB", Values: []string{"1"}}); err == nil || !strings.Contains(err.Error(), "values are varied for one card") {
			t.Error(err)
		}
	}
	_, err = fit.RunVary(t.Context(), fit.Config{Command: []string{program, "5"}, Env: env}, fit.Vary{Name: "batch", Values: []string{"1"}})
	if err == nil || !strings.Contains(err.Error(), "no argument batch") {
		t.Error(err)
	}
}

// TestVaryUnordered: values whose memory contradicts their order are noted.
func TestVaryUnordered(t *testing.T) {
	program := standin.Compile(t, "testdata/program.c")
	for values, want := range map[string]bool{"n=10,100,1500": false, "n=10,1500,100": true} {
		v, err := fit.ParseVary(values)
		if err != nil {
			t.Fatal(err)
		}
		r, err := fit.RunVary(t.Context(), fit.Config{Command: []string{"sh", "-c", `exec "$0" $n`, program}, Env: append(environ(t), "n=1"), Sim: sim.Config{Total: 2 << 30}}, v)
		if err != nil {
			t.Fatal(err)
		}
		if r.Varied.Unordered != want {
			t.Errorf("%s: %+v", values, r.Varied)
		}
	}
}
