//go:build linux

package main

import (
	"archive/zip"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gpumem/internal/test/gpucheck/report"
)

// The bundle lies beside this program:
//
//	check, VERSION
//	cuda.test, pool.test, preload.test   tests compiled
//	c/                                   programs in C
//	python/                              programs in Python
//	overhead.txt                         of node/internal/overhead
//	sim/                                 the simulated GPU in the driver's place, and what frameworks load beside it
//	gpumem-*.whl                         the wheel, which has the command and the libraries; or, without Python,
//	gpumem, lib/                         these as they are
type bundle struct {
	root    string // its folder
	out     string // the report's
	scratch string // removed at the end
	options
	machine report.Machine
}

// The environment tells a check's process where everything is.
const (
	rootVar      = "GPU_CHECK_ROOT"
	outVar       = "GPU_CHECK_OUT"
	scratchVar   = "GPU_CHECK_SCRATCH"
	pythonVar    = "GPU_CHECK_PYTHON"
	simulatedVar = "GPU_CHECK_SIMULATED"
)

// simulatedTotal is the simulated GPU: an H200's size, and what a context takes there by the
// documents, so that what is measured on a GPU has something to be compared with.
const simulatedTotal, simulatedContext = 141 << 30, 528 << 20

// openBundle finds the files, makes the command runnable, and looks at the machine.
func openBundle(o options) (*bundle, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	b := &bundle{root: filepath.Dir(self), options: o}
	if b.out, err = filepath.Abs(o.out); err != nil {
		return nil, err
	}
	if strings.Contains(o.python, "/") { // programs run in other folders
		if b.python, err = filepath.Abs(o.python); err != nil {
			return nil, err
		}
	}
	if b.scratch, err = os.MkdirTemp("", "gpu-check"); err != nil {
		return nil, err
	}
	err = os.Mkdir(b.logFolder(), 0o755)
	if err == nil {
		err = b.unpack()
	}
	if err == nil && o.simulated {
		err = b.simulate()
	}
	if err == nil {
		err = b.look()
	}
	if err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *bundle) close() { _ = os.RemoveAll(b.scratch) }

// unpack puts the command and the libraries into scratch/bin and scratch/lib/gpumem, where the
// command finds the libraries by itself, with the simulated GPU for fit.
func (b *bundle) unpack() error {
	if err := b.unpackLibraries(); err != nil {
		return err
	}
	return os.Symlink(filepath.Join(b.root, "sim"), filepath.Join(b.scratch, "lib/gpumem/sim"))
}

func (b *bundle) unpackLibraries() error {
	wheels, _ := filepath.Glob(filepath.Join(b.root, "gpumem-*.whl"))
	if len(wheels) == 0 {
		if _, err := os.Stat(filepath.Join(b.root, "gpumem")); err != nil {
			return fmt.Errorf("%s has no wheel and no command; scripts/gpu-check --bundle FOLDER makes a bundle", b.root)
		}
		err := errors.Join(os.Mkdir(filepath.Join(b.scratch, "bin"), 0o755), os.MkdirAll(filepath.Join(b.scratch, "lib/gpumem"), 0o755),
			os.Symlink(filepath.Join(b.root, "gpumem"), b.command()))
		files, _ := filepath.Glob(filepath.Join(b.root, "lib/*"))
		for _, path := range files {
			err = errors.Join(err, os.Symlink(path, filepath.Join(b.scratch, "lib/gpumem", filepath.Base(path))))
		}
		return err
	}
	z, err := zip.OpenReader(wheels[0])
	if err != nil {
		return fmt.Errorf("%s: %w", wheels[0], err)
	}
	defer z.Close()
	for _, f := range z.File {
		name, ok := strings.CutPrefix(f.Name, "gpumem/")
		if !ok || !strings.HasPrefix(name, "bin/") && !strings.HasPrefix(name, "lib/") {
			continue
		}
		if err := unpackFile(f, filepath.Join(b.scratch, filepath.Clean(name))); err != nil {
			return fmt.Errorf("%s: %s: %w", wheels[0], f.Name, err)
		}
	}
	return nil
}

func unpackFile(f *zip.File, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	r, err := f.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}

// command is the gpumem command.
func (b *bundle) command() string { return filepath.Join(b.scratch, "bin/gpumem") }

// logFolder has what the checks' programs wrote, until saveLogs.
func (b *bundle) logFolder() string { return filepath.Join(b.scratch, "logs") }

// saveLogs writes the logs as one file beside the report, whole or not at all: machines that are
// lent may give back few files.
func (b *bundle) saveLogs() error {
	path := filepath.Join(b.out, "logs.zip")
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	z := zip.NewWriter(f)
	if err := errors.Join(z.AddFS(os.DirFS(b.logFolder())), z.Close(), f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// gpuFile is the simulated GPU that all of a run's programs share.
func (b *bundle) gpuFile() string { return filepath.Join(b.scratch, "gpu") }

// simulate makes the simulated GPU.
func (b *bundle) simulate() error {
	words := fmt.Sprintf("sim@%s,total=%d,context=%d,name=simulated H200,cc=9.0,create", b.gpuFile(), uint64(simulatedTotal), simulatedContext)
	out, err := exec.Command(b.command(), "devices", "--device", words).CombinedOutput()
	if err != nil {
		return fmt.Errorf("gpumem devices --device %s: %w: %s", words, err, out)
	}
	return nil
}

// environ is what every program gets beside the environment of this one.
func (b *bundle) environ() []string {
	env := []string{rootVar + "=" + b.root, outVar + "=" + b.out, scratchVar + "=" + b.scratch, pythonVar + "=" + b.python}
	if !b.simulated {
		return env
	}
	sim := filepath.Join(b.root, "sim")
	return append(env, simulatedVar+"=1", "GPUMEM_DEVICE=sim@"+b.gpuFile(), "LD_LIBRARY_PATH="+strings.TrimSuffix(sim+":"+os.Getenv("LD_LIBRARY_PATH"), ":"),
		"GPUMEM_LIBCUDA="+filepath.Join(sim, "libcuda.so.1"), "GPUMEM_LIBNVML="+filepath.Join(sim, "libnvidia-ml.so.1"))
}

// look finds out about the GPU, the driver and Python.
func (b *bundle) look() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	devices := exec.CommandContext(ctx, b.command(), "devices", "--json")
	devices.Env = append(os.Environ(), b.environ()...)
	out, err := devices.Output()
	if err != nil {
		return fmt.Errorf("gpumem devices --json: %w", err)
	}
	var seen struct {
		Driver  struct{ Version, Error string }
		Devices []struct {
			Name       string
			TotalBytes uint64 `json:"total_bytes"`
			Driver     string
			CC         string `json:"compute_capability"`
			MIG        string
		}
	}
	if err := json.Unmarshal(out, &seen); err != nil {
		return fmt.Errorf("gpumem devices --json: %w", err)
	}
	if len(seen.Devices) == 0 {
		return fmt.Errorf("no GPU to check: %s; --simulated uses the bundle's own", cmp.Or(seen.Driver.Error, "the driver shows none"))
	}
	gpu := seen.Devices[0]
	var uname unix.Utsname
	_ = unix.Uname(&uname)
	b.machine = report.Machine{
		Simulated: b.simulated, GPU: gpu.Name, Total: gpu.TotalBytes, Driver: gpu.Driver, CC: gpu.CC, MIG: gpu.MIG,
		Kernel: unix.ByteSliceToString(uname.Release[:]), Versions: versions(ctx, b.python),
	}
	return nil
}

// packages are the packages of Python that checks need, by the name that they are imported by, and what
// the distribution is called.
var packages = [][2]string{
	{"jax", "jax"}, {"jax-cuda13-plugin", "jax-cuda13-plugin"}, {"torch", "torch"}, {"cupy", "cupy-cuda13x"}, {"transformers", "transformers"}, {"flax", "flax"}, {"optax", "optax"},
}

// versions asks Python for its version and those of packages, without importing them. It is empty
// where there is no Python.
func versions(ctx context.Context, python string) map[string]string {
	program := "import importlib.metadata as m, json, platform, sys\nv = {'python': platform.python_version()}\nfor name, dist in zip(sys.argv[1::2], sys.argv[2::2]):\n" +
		"    try: v[name] = m.version(dist)\n    except m.PackageNotFoundError: pass\nprint(json.dumps(v))"
	args := []string{"-c", program}
	for _, p := range packages {
		args = append(args, p[0], p[1])
	}
	found := map[string]string{}
	if out, err := exec.CommandContext(ctx, python, args...).Output(); err == nil {
		_ = json.Unmarshal(out, &found)
	}
	return found
}

// lacks says which of the needs is not there, or nothing.
func (b *bundle) lacks(needs []string) string {
	for _, need := range needs {
		switch {
		case need == "gpu":
			if b.simulated {
				return "a simulated GPU cannot answer this"
			}
		case need == "python":
			if b.machine.Versions["python"] == "" {
				return b.python + " is not there"
			}
		case b.machine.Versions[need] == "":
			return fmt.Sprintf("%s has no %s", b.python, need)
		case strings.HasSuffix(b.machine.Versions[need], "+cpu"):
			return fmt.Sprintf("%s has a %s without CUDA", b.python, need)
		}
	}
	return ""
}

// report begins a report.
func (b *bundle) report() *report.Report {
	version, err := os.ReadFile(filepath.Join(b.root, "VERSION"))
	if err != nil {
		version = []byte("of an unknown commit")
	}
	return &report.Report{Format: report.Format, Bundle: strings.TrimSpace(string(version)), Begun: time.Now(), Machine: b.machine}
}
