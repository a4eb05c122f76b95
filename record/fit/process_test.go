package fit_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpumem/device/sim"
	"gpumem/internal/test/standin"
	"gpumem/record/fit"
	"gpumem/record/formats"
	"gpumem/record/trace"
)

// pythonPath returns the path of python3, without which a test is skipped.
func pythonPath(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: there is no python3 on PATH")
	}
	return path
}

// python returns python3, and an environment that has stand-ins for the frameworks.
func python(t *testing.T) (string, []string) {
	t.Helper()
	path := pythonPath(t)
	frameworks, err := filepath.Abs("testdata/frameworks")
	if err != nil {
		t.Fatal(err)
	}
	return path, append(environ(t), "PYTHONPATH="+frameworks, "SNAPSHOT=../trace/testdata/torch2023.pickle", "PYTHONDONTWRITEBYTECODE=1")
}

// TestEnds: the answer is about all that the program took, however it ended, or there is none.
func TestEnds(t *testing.T) {
	python, env := python(t)
	recorded, err := formats.Open(t.Context(), "../trace/testdata/torch2023.pickle", trace.Options{}) // what torch's stand-in has
	if err != nil {
		t.Fatal(err)
	}
	snapshot := recorded.PeakLive
	if err := recorded.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name      string
		command   []string // behind python
		framework string
		peak      uint64 // MiB; 0 for the snapshot's
		tooLarge  bool
		want      string // of the error
	}{
		{name: "Python's end", command: []string{"none", "200", "end"}, peak: 200},
		{name: "os._exit", command: []string{"none", "200", "os._exit"}, peak: 200},
		{name: "C's _exit", command: []string{"none", "200", "C's _exit"}, peak: 200},
		{name: "a signal's handler", command: []string{"none", "200", "a signal's handler"}, peak: 200},
		{name: "two threads at once", command: []string{"none", "200", "two ends"}, peak: 200},
		{name: "a child that holds its streams", command: []string{"none", "200", "a child"}, peak: 200},
		{name: "JAX larger than the card", command: []string{"jax", "6000", "end"}, framework: "jax", peak: 6000},
		{name: "JAX, C's _exit", command: []string{"jax", "200", "C's _exit"}, framework: "jax", peak: 200},
		{name: "JAX larger than any", command: []string{"jax", "2000000", "end"}, framework: "jax", tooLarge: true},
		{name: "larger than any", command: []string{"none", "2000000", "end"}, tooLarge: true},
		{name: "PyTorch", command: []string{"torch", "200", "end"}, framework: "pytorch"},
		{name: "PyTorch, os._exit", command: []string{"torch", "200", "os._exit"}, framework: "pytorch"},
		{name: "PyTorch, C's _exit", command: []string{"torch", "200", "C's _exit"}, framework: "pytorch", peak: 200}, // the driver's calls
		{name: "PyTorch, its recorder off", command: []string{"torch", "200", "its recorder off"}, framework: "pytorch"},
		{name: "PyTorch, aborted after its end", command: []string{"torch", "200", "abort"}, framework: "pytorch"},
		{name: "PyTorch, aborted after an exception", command: []string{"torch", "200", "abort, exception"}, want: "ValueError: no dataset"},
		{name: "PyTorch, aborted after a status", command: []string{"torch", "200", "abort, status"}, want: "signal: aborted"},
		{name: "an exception of memory alone", command: []string{"none", "200", "no memory"}, tooLarge: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel() // some wait for a second
			cfg := fit.Config{Command: append([]string{python, "testdata/driver.py"}, tc.command...), Env: env, Sim: sim.Config{Total: 4 << 30}, Stderr: io.Discard}
			cfg.Record = filepath.Join(t.TempDir(), "record")
			r, err := fit.Run(t.Context(), cfg)
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%v, want %q", err, tc.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if r.Program.TooLarge != tc.tooLarge || r.Program.Framework != tc.framework {
				t.Errorf("%+v", r.Program)
			}
			if _, err := os.Stat(cfg.Record); (err != nil) != tc.tooLarge || (r.NotKept != nil) != tc.tooLarge {
				t.Errorf("kept: %v, and why not: %v", err, r.NotKept)
			}
			if tc.tooLarge {
				if r.Fits || r.Advice != nil {
					t.Error("it fits")
				}
				return
			}
			if tc.peak == 0 {
				tc.peak = snapshot >> 20
			}
			if r.PeakBytes>>20 != tc.peak || r.Fits != (tc.peak < 4096) {
				t.Errorf("fits %v, %d MiB, want %d", r.Fits, r.PeakBytes>>20, tc.peak)
			}
		})
	}
}

// TestNVMLFirst: a program that asks NVML before it uses the GPU, as engines do, is recorded.
func TestNVMLFirst(t *testing.T) {
	python, env := python(t)
	const script = `import ctypes, runpy, sys
nvml, handle, name = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), ctypes.create_string_buffer(96)
assert nvml.nvmlInit_v2() == nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == nvml.nvmlDeviceGetName(handle, name, 96) == 0
print(name.value.decode(), flush=True)
sys.argv = ["testdata/driver.py", "none", "200", "end"]
runpy.run_path(sys.argv[0], run_name="__main__")`
	var out bytes.Buffer
	r, err := fit.Run(t.Context(), fit.Config{Command: []string{python, "-c", script}, Env: env, Sim: sim.Config{Total: 4 << 30, Name: "sim:L4"}, Stdout: &out})
	if err != nil || r.PeakBytes != 200<<20 {
		t.Errorf("%+v, %v", r, err)
	}
	if !strings.HasPrefix(out.String(), "NVIDIA L4\n") {
		t.Errorf("the card is called %q", out.String())
	}
}

// TestOwnLimits: what a program sets in its environment or by calls is left out of the run,
// and named.
func TestOwnLimits(t *testing.T) {
	python, env := python(t)
	for _, tc := range []struct {
		framework string
		env, want []string
	}{
		{"jax", []string{"XLA_PYTHON_CLIENT_PREALLOCATE=false", "XLA_PYTHON_CLIENT_MEM_FRACTION=.5"}, []string{
			"XLA_PYTHON_CLIENT_MEM_FRACTION=.5", "XLA_PYTHON_CLIENT_PREALLOCATE=false",
			"jax.config.update('jax_pjrt_client_create_options', {'memory_fraction': 0.5})",
		}},
		{"torch", []string{"PYTORCH_ALLOC_CONF=expandable_segments:True"}, []string{
			"PYTORCH_ALLOC_CONF=expandable_segments:True",
			"torch.cuda.memory._set_allocator_settings('max_split_size_mb:64')",
			"torch.cuda.memory.caching_allocator_enable(False)",
			"torch.cuda.memory.change_current_allocator(...)",
			"torch.cuda.set_per_process_memory_fraction(0.02, 0)",
		}},
		{"tensorflow", []string{"TF_GPU_ALLOCATOR=cuda_malloc", "TF_FORCE_GPU_ALLOW_GROWTH=true"}, []string{
			"TF_FORCE_GPU_ALLOW_GROWTH=true", "TF_GPU_ALLOCATOR=cuda_malloc",
			"tf.compat.v1.GPUOptions(per_process_gpu_memory_fraction=0.25)",
			"tf.config.experimental.set_memory_growth(..., True)",
			"tf.config.set_logical_device_configuration(..., [100, 200])",
			"tf.config.set_logical_device_configuration(..., [300])",
		}},
	} {
		t.Run(tc.framework, func(t *testing.T) {
			r, err := fit.Run(t.Context(), fit.Config{Command: []string{python, "testdata/driver.py", tc.framework, "200", "limits"}, Env: append(slices.Clone(env), tc.env...), Sim: sim.Config{Total: 4 << 30}, Stderr: os.Stderr})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(r.Program.Own, tc.want) {
				t.Errorf("%q", r.Program.Own)
			}
			varies := func(s string) bool { return strings.Contains(s, "peak varies") }
			if slices.ContainsFunc(r.Differs, varies) != (tc.framework == "tensorflow") {
				t.Errorf("%q", r.Differs)
			}
		})
	}
}

// TestStartIsMissed: a Python that does not read the start-up file is no answer.
func TestStartIsMissed(t *testing.T) {
	python, env := python(t)
	for _, tc := range []struct {
		name   string
		script string
		missed bool
	}{
		{"as it is", `"$0" testdata/driver.py none 200 end`, false},
		{"-I", `"$0" -I testdata/driver.py none 200 end`, true},
		{"-E", `"$0" -E testdata/driver.py none 200 end`, true},
		{"-S", `"$0" -S testdata/driver.py none 200 end`, true},
		{"another PYTHONPATH", `PYTHONPATH=/tmp "$0" testdata/driver.py none 200 end`, true},
		{"another PYTHONPATH before", `PYTHONPATH="/tmp:$PYTHONPATH" "$0" testdata/driver.py none 200 end`, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := fit.Run(t.Context(), fit.Config{Command: []string{"sh", "-c", tc.script, python}, Env: env, Sim: sim.Config{Total: 4 << 30}, Stderr: io.Discard})
			if missed := err != nil && strings.Contains(err.Error(), "has read no start-up file"); missed != tc.missed || !missed && err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCutRecording: a recording that could not be written is no answer.
func TestCutRecording(t *testing.T) {
	env := environ(t)
	program := standin.Compile(t, "testdata/program.c")
	_, err := fit.Run(t.Context(), fit.Config{Command: []string{"sh", "-c", `trap "" XFSZ; ulimit -f 1; exec "$0" 1000`, program}, Env: env, Sim: sim.Config{Total: 4 << 30}})
	if err == nil || !strings.Contains(err.Error(), "the recording is not whole") {
		t.Error(err)
	}
}

// TestRecord: a place for the recording that cannot be is found before the run, and one that
// cannot be written to does not cost the answer.
func TestRecord(t *testing.T) {
	env := environ(t)
	program := standin.Compile(t, "testdata/program.c")
	folder := t.TempDir()
	ran := filepath.Join(folder, "ran")
	run := func(record string) (*fit.Report, error) {
		return fit.Run(t.Context(), fit.Config{Command: []string{"sh", "-c", `touch "$1"; exec "$0" 100`, program, ran}, Env: env, Sim: sim.Config{Total: 4 << 30}, Record: record})
	}
	if _, err := run(filepath.Join(folder, "no", "record")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("it ran")
	}
	path := filepath.Join(folder, "record")
	r, err := run(path)
	if err != nil || r.NotKept != nil {
		t.Fatal(err, r.NotKept)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

// noRoom is standard error on a full disk.
type noRoom struct{}

func (noRoom) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestOutputIsNotNeeded(t *testing.T) {
	program := standin.Compile(t, "testdata/program.c")
	command := []string{"sh", "-c", `for i in 1 2 3; do echo a || exit 5; echo b >&2 || exit 6; done; exec "$0" 100`, program}
	if _, err := fit.Run(t.Context(), fit.Config{Command: command, Env: environ(t), Sim: sim.Config{Total: 4 << 30}, Stdout: noRoom{}, Stderr: noRoom{}}); err != nil {
		t.Error(err)
	}
}

// TestTerminal: the program may read the terminal that fit was started in.
func TestTerminal(t *testing.T) {
	python, env := python(t)
	program := standin.Compile(t, "testdata/program.c")
	const script = `
import os, pty, sys, time
pid, fd = pty.fork()
if not pid: os.execv(sys.argv[1], sys.argv[1:])
os.write(fd, b"100\n")
out = b""
while True:
    try: part = os.read(fd, 4096)
    except OSError: break
    if not part: break
    out += part
sys.stdout.buffer.write(out)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
`
	c := exec.CommandContext(t.Context(), python, "-c", script, os.Args[0])
	c.Env = append(env, "GPUMEM_TEST_FIT="+program)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil || !strings.Contains(out.String(), "peak 104857600") {
		t.Errorf("%v: %s", err, out.Bytes())
	}
}

// TestNoProgram: words that name no program are answered with what was meant.
func TestNoProgram(t *testing.T) {
	env := environ(t)
	script := file(t, "step.py", "import jax\n")
	for word, want := range map[string]string{
		script:         "gpumem fit -- python " + script,
		"no-such-name": "no such file, and no such program on PATH",
	} {
		if _, err := fit.Run(t.Context(), fit.Config{Command: []string{word}, Env: env, Sim: sim.Config{Total: 1 << 30}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := fit.File(t.Context(), script, fit.Config{Sim: sim.Config{Total: 1 << 30}}); err == nil || !strings.Contains(err.Error(), "gpumem fit -- python") {
		t.Error(err)
	}
	if _, err := fit.Run(t.Context(), fit.Config{Command: []string{"true"}, Env: env, Sim: sim.Config{Total: 9 << 60}}); err == nil || !strings.Contains(err.Error(), "at most 1 TiB") {
		t.Error(err)
	}
}
