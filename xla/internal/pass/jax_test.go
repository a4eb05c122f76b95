package pass

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gpumem/internal/test/standin"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/load"
	"gpumem/xla/internal/memory"
)

var jaxParts = flag.String("jax-parts", ".7", "parts of the peak that TestAsXLA takes for limits, with commas between")

// TestAsXLA: the pass does to a module what XLA's own does, instruction by instruction and name
// by name. JAX compiles programs for a simulated GPU, under limits that make XLA's pass act, and
// dumps each module before and after it. GPUMEM_TEST_JAX_GPU is a Python with jax and its CUDA
// plugin. All programs take an hour or less: -timeout 90m. Arguments of the test are their names;
// with -v it writes a line for each.
func TestAsXLA(t *testing.T) {
	python := os.Getenv("GPUMEM_TEST_JAX_GPU")
	if python == "" {
		t.Skip("SKIPPED: GPUMEM_TEST_JAX_GPU names no Python with jax and its CUDA plugin")
	}
	args := []string{"testdata/gpu_check.py", t.TempDir()}
	for part := range strings.SplitSeq(*jaxParts, ",") {
		args = append(args, "--part", part)
	}
	cmd := exec.CommandContext(t.Context(), python, append(args, flag.Args()...)...)
	t.Cleanup(standin.Remove)
	cmd.Env = standin.JAX(t, python, "sim@"+filepath.Join(t.TempDir(), "gpus")+",create,total=1GiB/1GiB/1GiB/1GiB", "TF_CPP_MIN_LOG_LEVEL=0", "TF_CPP_VMODULE=hlo_rematerialization=1")
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	runs, acted := 0, map[string]bool{}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var r asXLA
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("%v: %s", err, lines.Bytes())
		}
		if r.Failed != "" {
			t.Logf("%s: does not compile: %s", r.Name, r.Failed)
			continue
		}
		if len(r.Chosen) > 0 {
			runs++
			acted[r.Name] = true
		}
		if err := r.check(t.Context()); err != nil {
			t.Errorf("%s at %d %%: %v", r.Name, r.Percent, err)
		}
		t.Logf("| %s | %d | %.2f | %d | %d | %d | %d | %d |", r.Name, r.Before, float64(r.limit)/float64(r.Before-r.result), r.After, r.Rematerialized, r.Added, r.Temp, r.TempAfter)
	}
	if err := cmd.Wait(); err != nil {
		text, _ := os.ReadFile(log.Name())
		t.Fatalf("%v\n%s", err, text[max(0, len(text)-3000):])
	}
	if len(acted) == 0 {
		t.Error("the pass acted on no program")
	}
	t.Logf("the pass acted in %d runs on %d programs", runs, len(acted))
}

// asXLA is one run of XLA's pass.
type asXLA struct {
	Name, Failed   string
	Percent        uint64
	Pool           uint64 `json:"pool_bytes"`
	Temp           uint64 `json:"temp_bytes"`
	TempAfter      uint64 `json:"temp_after_bytes"`
	Chosen         []string
	Rematerialized int
	Added          int
	// The log's figures have the result besides.
	Before uint64  `json:"before_bytes"`
	After  uint64  `json:"after_bytes"`
	Limit  *uint64 `json:"limit_bytes"` // logged if it was missed
	Files  struct{ Before, After string }

	limit, result uint64
}

// check compares XLA's run with that of this package.
func (r *asXLA) check(ctx context.Context) error {
	m, err := load.Module(ctx, r.Files.Before)
	if err != nil {
		return err
	}
	want, err := load.Module(ctx, r.Files.After)
	if err != nil {
		return err
	}
	io, err := arguments(m)
	if err != nil {
		return err
	}
	var result total
	result.add(m.Entry.Root.Shape)
	r.result = result.bytes
	if io < r.Pool {
		r.limit = (r.Pool - io) * r.Percent / 100
	}
	if r.Limit != nil && *r.Limit != r.limit+r.result {
		return fmt.Errorf("the limit is %d bytes, XLA has %d", r.limit+r.result, *r.Limit)
	}
	p, err := Run(m, Options{Limit: r.limit})
	if err != nil {
		return err
	}
	got := fmt.Sprintf("%d bytes before, %d after, %d recomputed, %d added", p.Before+r.result, p.After+r.result, p.Chosen, p.Added)
	if xla := fmt.Sprintf("%d bytes before, %d after, %d recomputed, %d added", r.Before, r.After, r.Rematerialized, r.Added); got != xla {
		err = fmt.Errorf("%s; XLA has %s", got, xla)
	}
	if at := difference(m, want); at != "" {
		return fmt.Errorf("%s (%v)", at, err)
	}
	return err
}

// difference returns the first line in which two modules differ, "" if there is none. The order
// of the computations means nothing: that of the instructions in each is what runs.
func difference(got, want *hlo.Module) string {
	a, b := computations(got), computations(want)
	for _, name := range slices.Sorted(maps.Keys(a)) {
		for k := range min(len(a[name]), len(b[name])) {
			if a[name][k] != b[name][k] {
				x, y := a[name][k], b[name][k]
				at := 0 // of where they begin to differ
				for at < min(len(x), len(y)) && x[at] == y[at] {
					at++
				}
				at = max(0, at-200)
				return fmt.Sprintf("%s, line %d: %.80s ...\n%.400s\nXLA has\n%.400s\n", name, k, x, x[at:], y[at:])
			}
		}
		if len(a[name]) != len(b[name]) {
			return fmt.Sprintf("%s: %d lines, XLA has %d", name, len(a[name]), len(b[name]))
		}
	}
	if len(a) != len(b) {
		return fmt.Sprintf("%d computations run, XLA has %d", len(a), len(b))
	}
	return ""
}

var (
	word   = regexp.MustCompile(`%[\w.-]+`)
	callee = regexp.MustCompile(`(calls|to_apply|select|scatter|comparator)=(%[\w.-]+)`)
)

// computations returns the lines of the computations that run by themselves or by loops, branches
// and calls. Those inside of instructions, such as fusions, stand there instead of their names, each
// instruction behind its operands: XLA names a clone of them by what it has named before in
// compiling, and no order is kept in them.
func computations(m *hlo.Module) map[string][]string {
	named := map[string]*hlo.Computation{}
	for _, c := range m.Computations {
		named["%"+c.Name] = c
	}
	lines := map[*hlo.Instruction]string{}
	for text := range strings.SplitSeq(m.String(), "\n\n") {
		if _, body, ok := strings.Cut(text, " {\n"); ok {
			for k, i := range named[word.FindString(text)].Instructions {
				lines[i] = strings.TrimSpace(strings.Split(body, "\n")[k])
			}
		}
	}
	runs := map[string][]string{}
	var whole func(line string) string
	whole = func(line string) string {
		return callee.ReplaceAllStringFunc(line, func(call string) string {
			attribute, name, _ := strings.Cut(call, "=")
			if runs[name] != nil {
				return call
			}
			var text strings.Builder
			seen := map[*hlo.Instruction]bool{}
			var write func(i *hlo.Instruction)
			write = func(i *hlo.Instruction) {
				if seen[i] {
					return
				}
				seen[i] = true
				for _, o := range i.Operands {
					write(o)
				}
				text.WriteString(whole(lines[i]) + "\n")
			}
			write(named[name].Root)
			numbers := map[string]string{}
			return attribute + "={" + word.ReplaceAllStringFunc(text.String(), func(w string) string {
				if numbers[w] == "" {
					numbers[w] = fmt.Sprint("%", len(numbers))
				}
				return numbers[w]
			}) + "}"
		})
	}
	var visit func(c *hlo.Computation)
	visit = func(c *hlo.Computation) {
		name := "%" + c.Name
		if runs[name] != nil {
			return
		}
		runs[name] = []string{}
		for _, i := range c.Instructions {
			for _, called := range memory.ControlFlow(i) {
				visit(called)
			}
		}
	}
	visit(m.Entry)
	for name := range runs {
		for _, i := range named[name].Instructions {
			runs[name] = append(runs[name], whole(lines[i]))
		}
	}
	return runs
}
