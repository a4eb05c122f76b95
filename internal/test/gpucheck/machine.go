//go:build linux

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gpumem/internal/test/gpucheck/report"
)

// The machine: its GPU, its software, and the environment that checks get.

// A user's settings would decide what is measured: these are not passed to checks.
var (
	settingPrefixes = []string{"GPUMEM_", "XLA_", "JAX_", "TF_", "PYTORCH_", "CUPY_", "GPU_CHECK_"}
	settingNames    = []string{"NVIDIA_TF32_OVERRIDE", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING"}
)

// splitEnviron returns what checks inherit of an environment, and the names of the settings that they
// do not.
func splitEnviron(all []string) (kept, dropped []string) {
	for _, line := range all {
		name, _, _ := strings.Cut(line, "=")
		isSetting := slices.Contains(settingNames, name) || slices.ContainsFunc(settingPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
		switch {
		// Where leases are is no setting of a program: other programs on the GPU have theirs there.
		case !isSetting || name == "GPUMEM_RUN_DIR":
			kept = append(kept, line)
		default:
			dropped = append(dropped, name)
		}
	}
	slices.Sort(dropped)
	return kept, dropped
}

// environ is the environment of every check and of every program.
func (b *bundle) environ() []string {
	env, _ := splitEnviron(os.Environ())
	env = append(env, rootVar+"="+b.root, scratchVar+"="+b.scratch, pythonVar+"="+b.python)
	if !b.simulated {
		return env
	}
	sim := filepath.Join(b.root, "sim")
	return append(env, simulatedVar+"=1", "GPUMEM_DEVICE=sim@"+b.gpuFile(), "LD_LIBRARY_PATH="+strings.TrimSuffix(sim+":"+os.Getenv("LD_LIBRARY_PATH"), ":"),
		"GPUMEM_LIBCUDA="+filepath.Join(sim, "libcuda.so.1"), "GPUMEM_LIBNVML="+filepath.Join(sim, "libnvidia-ml.so.1"))
}

// lateError is the error of a program that had no end within its limit.
type lateError struct{ words string }

func (l lateError) Error() string { return l.words }

// ask runs a program to its end, with at most limit, and returns what it wrote. err has the last line of that.
func (b *bundle) ask(ctx context.Context, limit time.Duration, args ...string) (ended, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, errs := new(capture), new(capture)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env, cmd.Dir = b.environ(), b.scratch
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if err := start(cmd); err != nil {
		return ended{status: -1}, err
	}
	err, _ := await(ctx, cmd, false)
	e := ended{stdout: out.String(), stderr: errs.String()}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		err = lateError{fmt.Sprintf("no end after %v%s", limit, e.reason())}
	case err != nil:
		err = fmt.Errorf("%w%s", err, e.reason())
	}
	return e, err
}

// look finds out about the GPU, the driver and Python.
func (b *bundle) look(ctx context.Context) error {
	var uname unix.Utsname
	_ = unix.Uname(&uname)
	kernel := unix.ByteSliceToString(uname.Release[:])
	seen, err := b.lookAtDevices(ctx)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	case b.unseen != nil:
		b.machine = report.Machine{Simulated: b.simulated, GPU: "a GPU that gpumem devices does not show", Driver: "unknown", Kernel: kernel}
	default:
		err = b.lookAtGPU(seen, kernel)
	}
	if err != nil {
		return err
	}
	b.machine.Versions, b.pythonError = b.versions(ctx)
	return context.Cause(ctx)
}

// devices is what gpumem devices --json says.
type devices struct {
	Driver  struct{ Why string }
	Devices []struct {
		Name       string
		Simulated  bool
		TotalBytes uint64 `json:"total_bytes"`
		Driver     string
		CC         string `json:"compute_capability"`
		MIG        string
	}
}

// askLimit is how long gpumem devices may take, which a GPU's driver can hang or crash.
var askLimit = 20 * time.Second

// lookAtDevices asks gpumem devices. That it crashes or hangs is the first result of the run, and there may
// be no other day to find out what else does: it ends nothing.
func (b *bundle) lookAtDevices(ctx context.Context) (seen devices, err error) {
	begun := time.Now()
	e, err := b.ask(ctx, askLimit, b.command(), "devices", "--json")
	outcome := report.Crashed
	if errors.As(err, new(lateError)) {
		outcome = report.Hung
	}
	if err == nil {
		err = json.Unmarshal([]byte(e.stdout), &seen)
	}
	if err != nil {
		b.unseen = &report.Result{
			Name: "devices", Claim: "gpumem devices shows the GPU", Doc: "docs/gpu.md", Outcome: outcome, Why: b.plain(err.Error()),
			Seconds: time.Since(begun).Seconds(), Limit: askLimit.Seconds(), Logs: []string{machineLog},
		}
		return seen, nil
	}
	if len(seen.Devices) == 0 {
		err = fmt.Errorf("no GPU to check: %s; --simulated uses the bundle's own", cmp.Or(seen.Driver.Why, "the driver shows none"))
	}
	return seen, err
}

// lookAtGPU keeps what is seen of GPU 0.
func (b *bundle) lookAtGPU(seen devices, kernel string) error {
	gpu := seen.Devices[0]
	// The bundle's libraries in the driver's place call themselves none: they call their GPU that, unless
	// --simulated names it.
	simulated := b.simulated || gpu.Simulated || strings.HasPrefix(gpu.Name, "sim:")
	if simulated && !b.simulated {
		return fmt.Errorf("the GPU, %s, is simulated; --simulated uses the bundle's own", gpu.Name)
	}
	b.machine = report.Machine{
		Simulated: simulated, GPU: gpu.Name, Total: gpu.TotalBytes, Driver: gpu.Driver, CC: gpu.CC, MIG: gpu.MIG, Kernel: kernel,
	}
	return nil
}

// packages are the packages of Python that checks need, by the name that they are imported by, and what
// the distribution is called.
var packages = [][2]string{
	{"jax", "jax"}, {"jax-cuda13-plugin", "jax-cuda13-plugin"}, {"torch", "torch"}, {"cupy", "cupy-cuda13x"}, {"transformers", "transformers"}, {"flax", "flax"}, {"optax", "optax"},
}

// versions asks Python for its version and those of packages, without importing them.
func (b *bundle) versions(ctx context.Context) (map[string]string, error) {
	program := "import importlib.metadata as m, json, platform, sys\nv = {'python': platform.python_version()}\nfor name, dist in zip(sys.argv[1::2], sys.argv[2::2]):\n" +
		"    try: v[name] = m.version(dist)\n    except m.PackageNotFoundError: pass\nprint(json.dumps(v))"
	args := []string{b.python, "-c", program}
	for _, p := range packages {
		args = append(args, p[0], p[1])
	}
	found := map[string]string{}
	e, err := b.ask(ctx, time.Minute, args...)
	if err == nil {
		err = json.Unmarshal([]byte(e.stdout), &found)
	}
	return found, err
}

// lacks says which of the needs is not there, or nothing.
func (b *bundle) lacks(needs []string) string {
	for _, need := range needs {
		switch {
		case need == "gpu":
			if b.simulated {
				return "a simulated GPU cannot answer this"
			}
		case b.pythonError != nil:
			return fmt.Sprintf("%s cannot be started: %v", b.python, b.pythonError)
		case b.machine.Versions[need] == "":
			return fmt.Sprintf("%s has no %s", b.python, need)
		case strings.HasSuffix(b.machine.Versions[need], "+cpu"):
			return fmt.Sprintf("%s has a %s without CUDA", b.python, need)
		}
	}
	return ""
}

// machineLog is the log of the machine, the first of logs.zip.
const machineLog = "machine.log"

// secret are names of variables whose values are nobody's business: a report may be published.
var secret = regexp.MustCompile(`(?i)token|secret|passw|credential|key|auth|cookie|proxy|dsn|_url`)

// logMachine writes what nobody can ask any more when the machine is gone. It takes ten seconds at most.
func (b *bundle) logMachine(ctx context.Context) error {
	questions := [][]string{
		{"nvidia-smi", "-q"}, {b.command(), "devices", "--json"}, {b.command(), "ps", "--json"}, {"uname", "-a"}, {"nproc"}, {"free", "-b"},
		{"ldd", "--version"}, {b.python, "-m", "pip", "freeze"},
	}
	answers := make([]string, len(questions))
	var wg sync.WaitGroup
	for i, args := range questions {
		wg.Go(func() {
			e, err := b.ask(ctx, 10*time.Second, args...)
			answers[i] = fmt.Sprintf("$ %s\n%s%s", strings.Join(args, " "), e.stdout, e.stderr)
			if err != nil {
				answers[i] += fmt.Sprintf("--- %v\n", err)
			}
		})
	}
	wg.Wait()
	env := os.Environ()
	slices.Sort(env)
	for i, line := range env {
		if name, _, _ := strings.Cut(line, "="); secret.MatchString(name) {
			env[i] = name + "=(not shown)"
		}
	}
	text := strings.Join(answers, "\n") + "\n$ env\n" + strings.Join(env, "\n") + "\n"
	return os.WriteFile(filepath.Join(b.logFolder(), machineLog), []byte(text), 0o644)
}
