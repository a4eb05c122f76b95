package measure_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpumem/internal/input"
	"gpumem/xla/measure"
)

// dumped is a folder with files as XLA names them: each is a copy of one of testdata, or a text.
func dumped(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		b := []byte(content)
		if from, ok := strings.CutPrefix(content, "@"); ok {
			var err error
			if b, err = os.ReadFile(folder + from); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const (
	small  = "HloModule m, is_scheduled=true\n\nENTRY e {\n  ROOT p = f32[25] parameter(0)\n}\n"
	broken = "HloModule m\n\nENTRY e {\n  ROOT p = f32[25] parameter(\n"
)

func TestFolderListsModulesLargestFirst(t *testing.T) {
	dir := dumped(t, map[string]string{
		"module_0001.jit_small.cpu_after_optimizations.txt":                                 small,
		"module_0002.jit_small.cpu_after_optimizations.txt":                                 small,
		"module_0003.jit_small.before_optimizations.txt":                                    broken, // not compiled, so not read
		"module_0004.jit_step.sm_9.0a_gpu_after_optimizations-buffer-assignment.txt":        "@loop-gpu-0.11.2.assignment.txt",
		"module_0004.jit_step.sm_9.0a_gpu_after_optimizations.hlo.pb":                       "@loop-gpu-0.11.2.dump.pb",
		"module_0004.jit_step.sm_9.0a_gpu_after_optimizations-buffer-assignment-values.txt": "x",
		"module_0005.jit_f.g.cpu_after_optimizations-buffer-assignment.txt":                 "@loop-0.11.2.assignment.txt",
		"module_0005.jit_f.g.cpu_after_optimizations.txt":                                   "@loop-0.11.2.txt",
		"module_0006.jit_broken.cpu_after_optimizations.txt":                                broken,
	})
	f, err := measure.ReadFolder(t.Context(), dir, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range f.Modules {
		largest := ""
		if len(m.Largest) > 0 {
			largest = " " + m.Largest[0].Instruction + " " + m.Largest[0].OpName
		}
		got = append(got, fmt.Sprint(m.Name, " ", m.Total, " ", m.Same, " ", m.Exact, largest))
	}
	// The names of operations are those of the binary module and of the text, which the
	// assignment in text does not have.
	want := []string{"jit_step 216900 1 true w.1 w", "jit_f.g 196868 1 true w.1 w", "jit_small 200 2 false"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if len(f.Notes) != 1 || !strings.Contains(f.Notes[0], "module_0006.jit_broken") {
		t.Errorf("notes %q", f.Notes)
	}
	if got, want := f.Title(), dir+": 4 modules, by XLA's own assignment, 2 by a model of it, the largest first"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestFolderWithoutModules(t *testing.T) {
	if _, err := measure.ReadFolder(t.Context(), dumped(t, map[string]string{"module_0003.jit_small.before_optimizations.txt": small}), 1, 1); !errors.Is(err, measure.ErrNoModules) {
		t.Error(err)
	}
	dir := dumped(t, map[string]string{"module_0003.jit_small.cpu_after_optimizations.txt": broken})
	if _, err := measure.ReadFolder(t.Context(), dir, 1, 1); err == nil || !strings.Contains(err.Error(), "module_0003") {
		t.Error(err)
	}
	if _, err := measure.ReadFolder(t.Context(), filepath.Join(dir, "absent"), 1, 1); err == nil || strings.Count(err.Error(), "absent") != 1 {
		t.Error(err)
	}
}

func TestDamagedAssignmentInTextIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"BufferAssignment:\n": ": a buffer assignment without allocations",
		"BufferAssignment:\nallocation 1: size 4, page 0, constant:\n":                                                          `:2: "allocation 1: size 4, page 0, constant:", where allocation 0 should be; the file is damaged`,
		"BufferAssignment:\nallocation 0: size 4":                                                                               `:2: "allocation 0: size 4", where allocation 0 should be; the file is damaged`,
		"BufferAssignment:\nallocation 0: size x:\n":                                                                            `:2: "allocation 0: size x:": "x" is no number for a size; the file is damaged`,
		"BufferAssignment:\nallocation 0: constant:\n":                                                                          `:2: "allocation 0: constant:" has no size; the file is damaged`,
		"BufferAssignment:\nallocation 0: size 4, constant:\n value: <1 a @0> (size=5,offset=0): f32[]\n":                       `:3: "a" lies beyond the end of its allocation of 4 bytes; the file is damaged`,
		"BufferAssignment:\nallocation 0: size 4, constant:\n value: <1 a @0> (size=1,offset=18446744073709551615): f32[]\n":    `:3: "a" lies beyond the end of its allocation of 4 bytes; the file is damaged`,
		"BufferAssignment:\nallocation 0: size 4, constant:\n value: a\n":                                                       `:3: " value: a", where a value should be; the file is damaged`,
		"BufferAssignment:\nallocation 0: size 576460752303423488, constant:\nallocation 1: size 576460752303423488, constant:": ":3: the allocations have more than 2^59 bytes",
	} {
		file := filepath.Join(dumped(t, map[string]string{"x": text}), "x")
		_, err := measure.Files(t.Context(), []string{file}, 1)
		var e *input.Error
		if !errors.As(err, &e) || err.Error() != file+want {
			t.Errorf("%q:\n got %v\nwant %s%s", text, err, file, want)
		}
	}
}

// An allocation of very many values, the last one first, is read in no time.
func TestAllocationOfManyValues(t *testing.T) {
	const n = 200_000
	text := []byte(fmt.Sprintf("BufferAssignment:\nallocation 0: size %d, preallocated-temp:\n", n))
	for k := range n {
		text = fmt.Appendf(text, " value: <%d v%d @0> (size=1,offset=%d): pred[]\n", k, k, n-1-k)
	}
	file := filepath.Join(dumped(t, map[string]string{"x": string(text)}), "x")
	a, err := measure.Files(t.Context(), []string{file}, 3)
	if err != nil {
		t.Fatal(err)
	}
	if a.Temporaries != n || len(a.Own.Allocations[0].Buffers) != n || len(a.Largest) != 3 {
		t.Errorf("%+v, %d values, %d listed", a.Totals, len(a.Own.Allocations[0].Buffers), len(a.Largest))
	}
}

func FuzzAssignmentText(f *testing.F) {
	text, err := os.ReadFile(folder + "loop-0.11.2.assignment.txt")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text[:2000])
	f.Add([]byte("BufferAssignment:\nallocation 0: 0x3c8a, size 9, color 1, parameter 0, shape |(f32[], s32[])| at ShapeIndex {1}, maybe-live-out:\n value: <3 a{0,1} (phi) @0> (size=4,offset=5): f32[]\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		file := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(file, append([]byte("BufferAssignment:\n"), in...), 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := measure.Files(t.Context(), []string{file}, 10)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("%q", err)
			}
			return
		}
		// Values beside each other are no more than what they lie in.
		sum := uint64(0)
		for _, x := range a.Own.Allocations {
			peak := uint64(0)
			for _, b := range x.Peak {
				peak += b.Bytes
			}
			if peak > x.Bytes {
				t.Fatalf("%d bytes beside each other in %d", peak, x.Bytes)
			}
			sum += x.Bytes
		}
		if a.Total > sum {
			t.Fatalf("%d bytes of %d", a.Total, sum)
		}
	})
}
