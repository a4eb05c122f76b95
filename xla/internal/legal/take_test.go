package legal_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/xla/internal/gap"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/legal"
	"gpumem/xla/internal/load"
	"gpumem/xla/internal/pass"
	"gpumem/xla/internal/test/remattest"
)

// TestCompilerTakesPlans hands plans of fused and scheduled modules to XLA's compiler for CPUs:
// it takes each of them, and the programs return the same to the bit. GPUMEM_TEST_JAX is a
// Python with jax 0.12.0.1 or later.
func TestCompilerTakesPlans(t *testing.T) {
	python := os.Getenv("GPUMEM_TEST_JAX")
	if python == "" {
		t.Skip("SKIPPED: GPUMEM_TEST_JAX names no Python with jax: not tried on the real compiler")
	}
	dir := t.TempDir()
	compile := func(mode string) string {
		cmd := exec.Command(python, "testdata/compile.py", mode, dir)
		var diagnostics strings.Builder
		cmd.Stderr = &diagnostics
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s", mode, err, diagnostics.String())
		}
		return string(out)
	}
	compile("dump")
	files, err := filepath.Glob(filepath.Join(dir, "*.pb"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %d modules", err, len(files))
	}
	plans, illegal, differs := 0, 0, 0
	for _, file := range files {
		m, err := load.Module(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		write := func(name string, m *hlo.Module) {
			if err := os.WriteFile(strings.TrimSuffix(file, "pb")+name+".hlo", []byte(m.String()), 0o666); err != nil {
				t.Fatal(err)
			}
			plans++
		}
		write("given", m)
		now := remattest.TempPeak(t, m)
		for percent := uint64(10); percent < 100; percent += 15 {
			after := m.Clone()
			_, err := gap.Run(after, gap.Options{Limit: now / 100 * percent, Seconds: remattest.BySize})
			if err != nil {
				t.Fatal(err)
			}
			if err := (legal.Options{}).Check(m, after); err != nil {
				t.Errorf("%s: gap: %v", file, err)
			}
			if after.String() != m.String() {
				write(fmt.Sprint("gap", percent), after)
			}
			after = m.Clone()
			r, err := pass.Run(after, pass.Options{Limit: now / 100 * percent})
			if err != nil {
				t.Fatal(err)
			}
			if err := (legal.Options{Collectives: true, Loops: true}).Check(m, after); err != nil {
				// The compiler takes that, too, and its program is wrong.
				t.Logf("%s: xla: %v", filepath.Base(file), err)
				write(fmt.Sprint("illegal", percent), after)
				illegal++
			} else if r.Chosen > 0 {
				write(fmt.Sprint("xla", percent), after)
			}
		}
	}
	taken := 0
	for line := range strings.Lines(compile("take")) {
		t.Log(strings.TrimSpace(line))
		switch fields := strings.Fields(line); {
		case strings.Contains(line, ".illegal"):
			if len(fields) > 1 && fields[1] == "differs" {
				differs++
			}
		case len(fields) > 1 && fields[1] == "taken":
			taken++
		default:
			t.Error("not taken")
		}
	}
	if taken != plans-illegal {
		t.Errorf("%d of %d plans were taken", taken, plans-illegal)
	}
	if differs == 0 {
		t.Errorf("%d plans of XLA's pass were refused, and none is wrong", illegal)
	}
	t.Logf("%d plans were taken; of %d that were refused %d compute something else", taken, illegal, differs)
}
