package measure_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/xla/internal/memory"
	"gpumem/xla/measure"
)

const folder = "testdata/"

func names(a *measure.Answer) (list []string) {
	for _, v := range a.Largest {
		list = append(list, v.Instruction+" "+v.Shape)
	}
	return list
}

// The figures of XLA's own assignment are those of memory_analysis, of each release and of
// each way in which it comes.
func TestFilesWithAssignment(t *testing.T) {
	for _, tc := range []struct {
		files, json string
		first       string // of the values at the peak
		module      bool
	}{
		{"loop-0.12.0.1.module.pb loop-0.12.0.1.assignment.pb", "loop-0.12.0.1", "w.1 f32[3,64,64]{2,1,0}", true},
		{"loop-0.12.0.1.assignment.pb loop-0.12.0.1.module.pb", "loop-0.12.0.1", "w.1 f32[3,64,64]{2,1,0}", true},
		{"loop-0.12.0.1.txt loop-0.12.0.1.assignment.pb", "loop-0.12.0.1", "w.1 f32[3,64,64]{2,1,0}", true},
		{"loop-0.12.0.1.assignment.pb", "loop-0.12.0.1", "parameter 0 ", false},
		{"loop-0.4.38.dump.pb", "loop-0.4.38", "Arg_0.1 f32[3,64,64]{2,1,0}", true},
		{"loop-gpu-0.12.0.1.dump.pb", "loop-gpu-0.12.0.1", "w.1 f32[3,64,64]{2,1,0}", true},
	} {
		t.Run(tc.files, func(t *testing.T) {
			var paths []string
			for _, f := range strings.Fields(tc.files) {
				paths = append(paths, folder+f)
			}
			a, err := measure.Files(t.Context(), paths, 3)
			if err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(folder + tc.json + ".json")
			if err != nil {
				t.Fatal(err)
			}
			var xla struct{ Argument, Output, Alias, Temp uint64 }
			if err := json.Unmarshal(text, &xla); err != nil {
				t.Fatal(err)
			}
			want := memory.Totals{Arguments: xla.Argument, Results: xla.Output, Aliased: xla.Alias, Temporaries: xla.Temp, Total: xla.Argument + xla.Output - xla.Alias + xla.Temp, Constants: a.Constants}
			if !a.Exact || a.Totals != want || (a.Module != nil) != tc.module {
				t.Errorf("%+v, want %+v", a.Totals, want)
			}
			if list := names(a); len(list) != 3 || list[0] != tc.first || a.Alive < 3 {
				t.Errorf("%q of %d, want %q first", list, a.Alive, tc.first)
			}
			sum, arguments := uint64(0), uint64(0)
			for _, x := range a.Allocations {
				if sum += x.Bytes; x.For == "argument" {
					arguments += x.Bytes
				}
				if x.For == "thread" {
					sum -= x.Bytes
				}
			}
			if sum != a.Total+a.Constants || arguments != a.Arguments {
				t.Errorf("allocations of %d bytes, %d of them arguments", sum, arguments)
			}
		})
	}
}

// Without an assignment the model is asked, which is right to the byte for these.
func TestFilesWithoutAssignment(t *testing.T) {
	for _, file := range []string{"loop-0.12.0.1.txt", "loop-0.12.0.1.module.pb"} {
		a, err := measure.Files(t.Context(), []string{folder + file}, 1)
		if err != nil {
			t.Fatal(err)
		}
		b, err := measure.Files(t.Context(), []string{folder + file, folder + "loop-0.12.0.1.assignment.pb"}, 1)
		if err != nil {
			t.Fatal(err)
		}
		if a.Exact || a.Totals != b.Totals || a.Allocations != nil {
			t.Errorf("%s: exact %t, %+v, XLA has %+v", file, a.Exact, a.Totals, b.Totals)
		}
	}
}

func TestFilesThatDoNotFit(t *testing.T) {
	other := filepath.Join(t.TempDir(), "other.hlo")
	if err := os.WriteFile(other, []byte("HloModule m\n\nENTRY e {\n  ROOT p = f32[2] parameter(0)\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		files []string
		want  string
	}{
		{"two modules", []string{other, folder + "loop-0.12.0.1.txt"}, "expected one module"},
		{"two assignments", []string{folder + "loop-0.12.0.1.assignment.pb", folder + "loop-0.4.38.dump.pb"}, "has a buffer assignment"},
		{"another text", []string{other, folder + "loop-0.12.0.1.assignment.pb"}, "that of another module"},
		{"no file", []string{folder + "absent"}, "absent"},
	} {
		_, err := measure.Files(t.Context(), tc.files, 1)
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}

func ExampleFiles() {
	a, err := measure.Files(context.Background(), []string{"testdata/loop-gpu-0.12.0.1.dump.pb"}, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("exact:", a.Exact)
	fmt.Println(a.Arguments, "+", a.Results, "-", a.Aliased, "+", a.Temporaries, "=", a.Total)
	// Output:
	// exact: true
	// 57344 + 49172 - 49152 + 159536 = 216900
}

// The text of an assignment has the figures of the binary one, and of memory_analysis.
func TestAssignmentInTextHasTheFiguresOfTheBinaryOne(t *testing.T) {
	for _, name := range []string{"loop-0.11.2", "loop-gpu-0.11.2"} {
		text, err := measure.Files(t.Context(), []string{folder + name + ".assignment.txt"}, 3)
		if err != nil {
			t.Fatal(err)
		}
		binary, err := measure.Files(t.Context(), []string{folder + name + ".dump.pb"}, 3)
		if err != nil {
			t.Fatal(err)
		}
		if !text.Exact || text.Totals != binary.Totals || len(text.Notes) != 1 {
			t.Errorf("%s: %+v, the binary one has %+v; notes %q", name, text.Totals, binary.Totals, text.Notes)
		}
		if d := cmp.Diff(binary.Allocations, text.Allocations); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		// What lies beside each other at any time is no less than what lives at the peak.
		if got, want := text.Largest[0], binary.Largest[0]; got.Bytes < want.Bytes || got.Shape == "" {
			t.Errorf("%s: largest %+v, the binary one's is %+v", name, got, want)
		}
	}
}

// With a module beside it the text gives the sizes, and the model the values at the peak.
func TestAssignmentInTextBesideItsModule(t *testing.T) {
	a, err := measure.Files(t.Context(), []string{folder + "loop-0.11.2.txt", folder + "loop-0.11.2.assignment.txt"}, 3)
	if err != nil {
		t.Fatal(err)
	}
	if !a.Exact || a.Temporaries != 139504 || len(a.Notes) > 0 || names(a)[0] != "w.1 f32[3,64,64]{2,1,0}" {
		t.Errorf("exact %t, %+v, notes %q, %q", a.Exact, a.Totals, a.Notes, names(a))
	}
}
