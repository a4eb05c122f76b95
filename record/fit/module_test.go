package fit_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/device/sim"
	"gpumem/internal/test/standin"
	"gpumem/record/fit"
	"gpumem/record/trace"
	"gpumem/xla/measure"
)

// step is a scheduled module: two arguments of 4 MiB, the first of which is given away, a
// temporary, a result in the place of the argument and one in new memory.
const step = `HloModule jit_step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }, entry_computation_layout={(f32[1024,1024]{1,0}, f32[1024,1024]{1,0})->(f32[1024,1024]{1,0}, f32[1024,1024]{1,0})}

ENTRY main {
  p0 = f32[1024,1024]{1,0} parameter(0), metadata={op_name="p[\'w\']"}
  p1 = f32[1024,1024]{1,0} parameter(1), metadata={op_name="x"}
  dot.1 = f32[1024,1024]{1,0} dot(p0, p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/dot_general" source_file="train.py" source_line=7}
  dot.2 = f32[1024,1024]{1,0} dot(dot.1, p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  add.3 = f32[1024,1024]{1,0} add(p0, dot.1)
  ROOT tuple.4 = (f32[1024,1024]{1,0}, f32[1024,1024]{1,0}) tuple(add.3, dot.2)
}
`

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFileOfModule(t *testing.T) {
	const mib = 1 << 20
	packed := file(t, "step.hlo.gz", "")
	out, err := os.Create(packed)
	if err != nil {
		t.Fatal(err)
	}
	w := gzip.NewWriter(out)
	fmt.Fprint(w, step)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	out.Close()
	unscheduled := strings.Replace(step, "is_scheduled=true, ", "", 1)
	for _, tc := range []struct {
		name, path string
		total      uint64
		fits       bool
		refused    string
		scheduled  bool
	}{
		{"fits", file(t, "step.hlo", step), 1 << 30, true, "", true},
		{"packed", packed, 1 << 30, true, "", true},
		{"needs a setting", file(t, "step.hlo", step), 20 * mib, true, "the temporaries, in one block", true},
		{"without a place for a result", file(t, "step.hlo", step), 10 * mib, false, "the result 1", true},
		{"not even the first", file(t, "step.hlo", step), 3 * mib, false, "the argument p['w']", true},
		{"not even its arguments", file(t, "step.hlo", step), 6 * mib, false, "the argument x", true},
		{"not scheduled", file(t, "before.hlo", unscheduled), 1 << 30, true, "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := fit.File(t.Context(), tc.path, fit.Config{Sim: sim.Config{Total: tc.total}})
			if err != nil {
				t.Fatal(err)
			}
			m := *r.Module
			if want := (fit.Module{Name: "jit_step", Scheduled: tc.scheduled, Totals: measure.Totals{Arguments: 8 * mib, Results: 8*mib + 16, Aliased: 4 * mib, Temporaries: 4 * mib, Total: 16*mib + 16}}); m != want {
				t.Errorf("%+v, want %+v", m, want)
			}
			if m.Total != 16*mib+16 || r.Trace.PeakLive != m.Total {
				t.Errorf("total %d, live %d", m.Total, r.Trace.PeakLive)
			}
			refused := ""
			if r.Refused != nil {
				refused = r.Refused.What
			}
			if (r.Advice != nil && !r.Advice.Ours) != tc.fits || refused != tc.refused {
				t.Errorf("advice %+v, refused %q", r.Advice, refused)
			}
			s, where := r.Summary, ""
			if s.Refusal != nil {
				where = s.Refusal.Where
			}
			for name, holds := range map[string]bool{
				"peak":            s.PeakBytes == m.Total,
				"refusal":         (s.Refusal != nil) == (tc.refused != "") && where == tc.refused,
				"settings":        (len(s.Settings) > 0) == (s.Fits && !r.FitsAsItIs),
				"contents":        len(s.Contents) == len(r.Peak),
				"smallest device": s.SmallestDevice != nil && *s.SmallestDevice >= m.Total,
				"card":            s.Card == "4 GiB",
			} {
				if !holds {
					t.Errorf("%s of %+v", name, s)
				}
			}
			found := false
			for _, p := range r.Peak {
				found = found || p.What == "dot.1 f32[1024,1024]{1,0}" && p.Where == "jit(step)/dot_general train.py:7" && p.Bytes == 4*mib
			}
			if !found {
				t.Errorf("peak %+v", r.Peak)
			}
		})
	}
}

func TestFileOfRecording(t *testing.T) {
	path := file(t, "run.txt", "a w 3145728\na x 1048576\na y 1048576\nf x\nf y\n")
	r, err := fit.File(t.Context(), path, fit.Config{Sim: sim.Config{Total: 64 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	want := []fit.Place{{What: "requests of 3 MiB", Bytes: 3 << 20, Blocks: 1}, {What: "requests of 1 MiB", Bytes: 2 << 20, Blocks: 2}}
	if r.Module != nil || r.Advice == nil || fmt.Sprint(r.Peak) != fmt.Sprint(want) {
		t.Errorf("%+v, peak %+v", r.Advice, r.Peak)
	}
}

// TestConstants: they lie outside the pool, count, and are not called an assumption.
func TestConstants(t *testing.T) {
	const mib = 1 << 20
	path := file(t, "c.hlo", `HloModule c, is_scheduled=true

ENTRY main {
  p = f32[1024,1024]{1,0} parameter(0)
  c = f32[1024,1024]{1,0} constant({...})
  ROOT add = f32[1024,1024]{1,0} add(p, c)
}
`)
	for _, tc := range []struct {
		total uint64
		fits  bool
	}{{20 * mib, true}, {15 * mib, true}, {14 * mib, false}} { // 4 beside, 4 of constants, 4 and 4 in pages of 2
		r, err := fit.File(t.Context(), path, fit.Config{Sim: sim.Config{Total: tc.total}, Context: 3 * mib})
		if err != nil {
			t.Fatal(err)
		}
		if r.Module.Constants != 4*mib || r.ContextBytes != 3*mib || r.ConstantBytes != 4*mib || r.Outside != 7*mib {
			t.Errorf("%+v, outside %d, %d and %d", r.Module, r.Outside, r.ContextBytes, r.ConstantBytes)
		}
		if r.Fits != tc.fits {
			t.Errorf("fits %d: %v", tc.total, r.Fits)
		}
		if s := r.Second; s != nil && s.Bytes+r.ContextBytes != r.Left {
			t.Errorf("left %d, %d for a second program", r.Left, s.Bytes)
		}
	}
}

// TestHostValues: what lies in the host's memory takes none of the device.
func TestHostValues(t *testing.T) {
	const mib = 1 << 20
	path := file(t, "host.hlo", `HloModule host, is_scheduled=true

ENTRY main {
  p = f32[1024,1024]{1,0} parameter(0)
  q = f32[1024,1024]{1,0:S(5)} parameter(1)
  n = f32[1024,1024]{1,0} negate(p)
  ROOT out = (f32[1024,1024]{1,0}, f32[1024,1024]{1,0:S(5)}) tuple(n, q)
}
`)
	r, err := fit.File(t.Context(), path, fit.Config{Sim: sim.Config{Total: 1 << 30}})
	if err != nil {
		t.Fatal(err)
	}
	if m := *r.Module; m.Arguments != 4*mib || m.Results != 4*mib+16 {
		t.Errorf("%+v", m)
	}
}

// TestFileOfSeveralPools: what fills the peak is that of a GPU, and not of the host.
func TestFileOfSeveralPools(t *testing.T) {
	var text bytes.Buffer
	w, err := trace.NewWriter(&text)
	for i, pool := range []string{"xla_gpu_host_bfc", "GPU_0_bfc", "GPU_1_bfc", "executable"} {
		err = errors.Join(err, w.Alloc(trace.Call{Pool: pool, ID: uint64(i), Bytes: []uint64{300, 100, 200, 250}[i] << 20, Time: 1}))
	}
	if err := errors.Join(err, w.Flush()); err != nil {
		t.Fatal(err)
	}
	r, err := fit.File(t.Context(), file(t, "pools", text.String()), fit.Config{Sim: sim.Config{Total: 1 << 30}})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Peak) != 1 || r.Peak[0].Bytes != 200<<20 || r.PeakBytes != 200<<20 {
		t.Errorf("%+v, %d", r.Peak, r.PeakBytes)
	}
}

// TestFileSettings: statements for the program are settings, too, and the smallest device is
// that of the framework's.
func TestFileSettings(t *testing.T) {
	path := file(t, "run.txt", "a w 104857600\na x 209715200\nf x\n")
	for as, want := range map[string]string{
		"jax":        "XLA_CLIENT_MEM_FRACTION=.78",
		"tensorflow": "memory_limit=",
		"none":       "policy bfc:fraction=.78",
	} {
		r, err := fit.File(t.Context(), path, fit.Config{Sim: sim.Config{Total: 384 << 20}, Context: 64 << 20, As: as})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range r.Settings {
			switch {
			case p.Name == "":
				got = append(got, p.Value)
			case p.Name == "policy":
				got = append(got, p.Name+" "+p.Value)
			default:
				got = append(got, p.Name+"="+p.Value)
			}
		}
		if len(got) != 1 || !strings.Contains(got[0], want) {
			t.Errorf("%s: %q", as, got)
		}
	}
	r, err := fit.File(t.Context(), "../../examples/fragmentation.txt.gz", fit.Config{Sim: sim.Config{Total: 24 << 30}, As: "jax"})
	if err != nil {
		t.Fatal(err)
	}
	least, ours := uint64(1<<63), uint64(0)
	for _, c := range r.Candidates {
		if c.Ours {
			ours = *c.SmallestDevice
		} else {
			least = min(least, *c.SmallestDevice)
		}
	}
	if ours >= least || *r.SmallestDevice != least {
		t.Errorf("%d, of the framework %d, of this project's pool %d", *r.SmallestDevice, least, ours)
	}
}

func TestFileErrors(t *testing.T) {
	for _, tc := range []struct{ name, path, want string }{
		{"no file", "no/such/file", "no such file"},
		{"empty", file(t, "x", ""), "empty"},
		{"a log", file(t, "x", "loss 3.2\n"), "not a recording that this version knows"},
		{"a damaged module", file(t, "x", strings.Replace(step, "dot(p0", "dot(p9", 1)), "x:6:"},
		{"StableHLO", file(t, "x", "module @jit_step attributes {}\n"), "StableHLO"},
		{"a folder", t.TempDir(), "director"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := fit.File(t.Context(), tc.path, fit.Config{Sim: sim.Config{Total: 1 << 30}})
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// TestFileOfBinaryModule: binary modules are told from the recordings that are messages, too.
func TestFileOfBinaryModule(t *testing.T) {
	modules, err := filepath.Glob("../../xla/internal/load/testdata/*.pb")
	if err != nil || len(modules) == 0 {
		t.Fatal(modules, err)
	}
	for _, path := range append(modules, "../trace/testdata/jax092.memdump", "../trace/testdata/jax092.pprof") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			r, err := fit.File(t.Context(), path, fit.Config{Sim: sim.Config{Total: 24 << 30}})
			if err != nil {
				t.Fatal(err)
			}
			if is := strings.HasSuffix(path, ".pb"); (r.Module != nil) != is {
				t.Errorf("format %s, module %v", r.Trace.Format, r.Module)
			}
		})
	}
}

// TestFileOfManyGPUs: a file is of one.
func TestFileOfManyGPUs(t *testing.T) {
	_, err := fit.File(t.Context(), file(t, "step.hlo", step), fit.Config{Sim: sim.Config{Total: 1 << 30}, GPUs: 2})
	if err == nil || !strings.Contains(err.Error(), "leave *2 out") {
		t.Error(err)
	}
}

func TestIsFile(t *testing.T) {
	module := file(t, "step.hlo", step)
	script := file(t, "train", "#!/bin/sh\n")
	if err := os.Chmod(script, 0o700); err != nil {
		t.Fatal(err)
	}
	runnable := file(t, "run.hlo", step) // as on a file system that has no such bits
	if err := os.Chmod(runnable, 0o700); err != nil {
		t.Fatal(err)
	}
	for word, want := range map[string]bool{module: true, runnable: true, "-": true, script: false, "train": false, t.TempDir(): false} {
		if got := fit.IsFile(word); got != want {
			t.Errorf("%s: %v", word, got)
		}
	}
}

// TestModules compares the figures of compiled modules with XLA's own, to the byte, for GPUs
// and for CPUs. GPUMEM_TEST_JAX is as for TestJAX. It takes minutes: -timeout 30m. With -v it
// writes a line for each module, which docs/fit.md sums up.
func TestModules(t *testing.T) {
	python := os.Getenv("GPUMEM_TEST_JAX")
	if python == "" {
		t.Skip("SKIPPED: GPUMEM_TEST_JAX names no Python with jax and its CUDA plugin")
	}
	gpu := standin.JAX(t, python, "sim:24GiB")
	for name, env := range map[string][]string{"GPU": gpu, "CPU": append(os.Environ(), "JAX_PLATFORMS=cpu", "TF_CPP_MIN_LOG_LEVEL=3")} {
		t.Run(name, func(t *testing.T) { compareModules(t, python, env) })
	}
}

// compareModules compiles the programs of testdata/modules.py with an environment.
func compareModules(t *testing.T, python string, env []string) {
	folder := t.TempDir()
	cmd := exec.CommandContext(t.Context(), python, "testdata/modules.py", folder)
	cmd.Env = env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	list, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil || len(list) != 56 { // docs/fit.md
		t.Fatalf("%d modules, %v", len(list), err)
	}
	for _, path := range list {
		base := strings.TrimSuffix(path, ".json")
		name := filepath.Base(base)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var xla struct{ Argument, Output, Alias, Temp uint64 }
		if err := json.Unmarshal(text, &xla); err != nil {
			t.Fatal(err)
		}
		want := measure.Totals{Arguments: xla.Argument, Results: xla.Output, Aliased: xla.Alias, Temporaries: xla.Temp, Total: xla.Argument + xla.Output - xla.Alias + xla.Temp}
		var got [2]measure.Totals
		for i, end := range []string{".hlo", ".before.hlo"} {
			r, err := fit.File(t.Context(), base+end, fit.Config{Sim: sim.Config{Total: 24 << 30}})
			if err != nil {
				t.Fatal(err)
			}
			got[i] = r.Module.Totals
		}
		if want.Constants = got[0].Constants; got[0] != want { // XLA says nothing of constants
			t.Errorf("%s: %+v, XLA has %+v", name, got[0], want)
		}
		t.Logf("| %s | %d | %d | %d | %d | %+.2f %% |", name, xla.Argument, xla.Output, xla.Alias, xla.Temp, 100*(float64(got[1].Total)/float64(want.Total)-1))
		// Where XLA hands out its assignment, that is read, too.
		if _, err := os.Stat(base + ".pb"); err != nil {
			continue
		}
		a, err := measure.Files(t.Context(), []string{base + ".hlo", base + ".pb"}, 10)
		if err != nil {
			t.Error(err)
			continue
		}
		if want.Constants = a.Constants; !a.Exact || a.Totals != want {
			t.Errorf("%s: exact %t, %+v, XLA has %+v", name, a.Exact, a.Totals, want)
		}
	}
}
