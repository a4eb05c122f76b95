// Package simulate has unchanged programs run on a simulated GPU, on a machine without one.
//
// # One program
//
// "python train.py" on "T4". [New] reads the words, finds the simulated driver beside the pool
// library and makes a file with the GPU, which all processes of the program share. [GPU.Environ]
// puts the driver, and the libraries that frameworks load beside it, in the linker's way, and a
// start-up file in Python's, which loads those libraries before NVIDIA's own and has JAX look for
// no /dev/nvidia0 (gpumem_simulate.py). The program finds a GPU of 16 GB with compute capability 7.5,
// allocates, and is refused memory as on such a card. Its kernels do nothing.
//
// Each process leaves the most that it held, which [GPU.Used] returns. A framework that computes on the CPU in spite of the GPU says why itself, at the end of its
// process.
package simulate

import (
	"bufio"
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gpumem/device/open"
	"gpumem/device/sim"
	"gpumem/node/library"
)

//go:embed gpumem_simulate.py sitecustomize.py
var files embed.FS

// Module returns the Python module that prepares frameworks for the simulated driver, and its name.
func Module() (name string, text []byte) {
	const file = "gpumem_simulate.py"
	text, _ = files.ReadFile(file) // embedded: there
	return file, text
}

// Environment variables of the simulated driver, see preload/sim, and of the start-up file.
const (
	envDevice  = open.EnvVar
	envPeaks   = "GPUMEM_SIM_PEAKS"   // the file for what each process held
	envHazards = "GPUMEM_SIM_HAZARDS" // report: as on a GPU, a use of memory that nothing orders mostly passes
	envFolder  = "GPUMEM_SIM_FOLDER"  // the simulated driver's folder
)

// Folder returns the folder of the simulated driver, which is in that of the pool library.
func Folder(get func(string) string) (string, error) {
	front, err := library.Folder(get)
	if err != nil {
		return "", err
	}
	driver := filepath.Join(front, "sim")
	if _, err := os.Stat(filepath.Join(driver, "libcuda.so.1")); err != nil {
		return "", fmt.Errorf("no simulated driver in %s; scripts/libcudasim %s builds it", driver, driver)
	}
	return driver, nil
}

// GPU is one simulated GPU or several, in a file. It is used from one goroutine.
type GPU struct {
	Words string // that name it to this project's programs: sim@FILE

	driver string // the folder of the simulated driver
	dir    string // a folder for files of the run
}

// New makes simulated GPUs by their words: a size (24GiB), a card (T4), either with a number
// behind it (T4*4) or keys as a device has them (24GiB,cc=8.0), or the name of a file that several
// programs share (sim@FILE), which is made with sim@FILE,create,total=24GiB. get returns variables of the
// environment. The caller closes it.
func New(words string, get func(string) string) (*GPU, error) {
	driver, err := Folder(get)
	if err != nil {
		return nil, err
	}
	spec, n, err := parse(words)
	if err != nil {
		return nil, err
	}
	g := &GPU{driver: driver}
	if g.dir, err = os.MkdirTemp("", "gpumem-sim-"); err != nil {
		return nil, err
	}
	if g.dir, err = filepath.Abs(g.dir); err == nil { // the program may change its folder
		err = g.make(spec, n)
	}
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

func parse(words string) (open.Spec, int, error) {
	if strings.HasPrefix(words, "sim@") {
		spec, err := open.Parse(words)
		return spec, 1, err
	}
	one, n, err := open.Cards(words)
	if err != nil {
		return open.Spec{}, 0, err
	}
	spec, err := open.Parse(one)
	if err == nil && spec.Kind != open.Private {
		err = fmt.Errorf("%q: want a size, a card or a file, such as 24GiB, T4 or sim@FILE", words)
	}
	return spec, n, err
}

// make makes the file with n GPUs, or the one that spec asks for.
func (g *GPU) make(spec open.Spec, n int) error {
	if strings.ContainsAny(g.dir, ",:") { // which end a word in lists of folders and of a device
		return fmt.Errorf("folder %s: its name has a comma or colon; set TMPDIR to one without", g.dir)
	}
	for _, name := range []string{"gpumem_simulate.py", "sitecustomize.py"} {
		text, err := files.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(g.dir, name), text, 0o600)
		}
		if err != nil {
			return err
		}
	}
	if spec.Kind == open.Shared {
		path, err := filepath.Abs(spec.File)
		if err != nil {
			return err
		}
		if g.Words = "sim@" + path; spec.Index > 0 {
			g.Words += fmt.Sprintf(",device=%d", spec.Index)
		}
		return spec.Make()
	}
	path := filepath.Join(g.dir, "gpus")
	g.Words = "sim@" + path
	list := make([]sim.Config, n)
	for i := range list {
		list[i] = spec.Sim
	}
	return sim.CreateFile(path, list...)
}

// Close removes what New made.
func (g *GPU) Close() error { return os.RemoveAll(g.dir) }

// Driver returns the paths of the simulated driver and of its NVML.
func (g *GPU) Driver() (driver, nvml string) {
	return filepath.Join(g.driver, "libcuda.so.1"), filepath.Join(g.driver, "libnvidia-ml.so.1")
}

// Environ returns an environment, NAME=value, in which programs find the GPU. Settings that the
// user has are kept where they have a meaning there.
func (g *GPU) Environ(env []string) []string {
	const list = string(os.PathListSeparator)
	e := &environ{env}
	e.before(library.EnvSearch, g.driver, list)
	e.before("PYTHONPATH", g.dir, list)
	driver, nvml := g.Driver()
	e.set(library.EnvDriver, driver)
	e.set(library.EnvNVML, nvml)
	e.set(envDevice, g.Words)
	e.set(envFolder, g.driver)
	e.set(envPeaks, filepath.Join(g.dir, "peaks"))
	e.set("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
	for name, value := range map[string]string{
		envHazards:             "report",
		"TF_CPP_MIN_LOG_LEVEL": "3", // XLA's warnings about what the simulated driver does not have
		// PyTorch waits five minutes at its end for processes that compile for it.
		"TORCHINDUCTOR_COMPILE_THREADS": "1",
	} {
		if e.get(name) == "" {
			e.set(name, value)
		}
	}
	e.set("XLA_FLAGS", strings.TrimSpace(e.get("XLA_FLAGS")+" --xla_gpu_autotune_level=0")) // the last of a flag counts
	return e.lines
}

// environ is an environment that is changed.
type environ struct{ lines []string }

func (e *environ) get(name string) string {
	for _, line := range e.lines {
		if v, ok := strings.CutPrefix(line, name+"="); ok {
			return v
		}
	}
	return ""
}

func (e *environ) set(name, value string) {
	var kept []string
	for _, line := range e.lines {
		if !strings.HasPrefix(line, name+"=") {
			kept = append(kept, line)
		}
	}
	e.lines = append(kept, name+"="+value)
}

func (e *environ) before(name, value, separator string) {
	if old := e.get(name); old != "" {
		value += separator + old
	}
	e.set(name, value)
}

// Use is what a process held of a GPU.
type Use struct {
	PID    int
	Device int    // its number, from 0
	Peak   uint64 // bytes that it held at most, with its context
	Ended  bool   // by exit. Of one that was killed, or that runs on, Peak may be a 64th too low
}

// Used returns what the processes held that used a GPU, in the order in which they began to.
func (g *GPU) Used() ([]Use, error) {
	f, err := os.Open(filepath.Join(g.dir, "peaks"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var list []Use
	s := bufio.NewScanner(f)
	for s.Scan() {
		var u Use
		var end string
		if n, _ := fmt.Sscanf(s.Text(), "%d %d %d %s", &u.PID, &u.Device, &u.Peak, &end); n < 3 {
			continue
		}
		u.Ended = end == "end"
		i := slices.IndexFunc(list, func(known Use) bool { return known.PID == u.PID && known.Device == u.Device })
		if i < 0 {
			list = append(list, u)
			continue
		}
		list[i].Peak, list[i].Ended = max(list[i].Peak, u.Peak), u.Ended
	}
	return list, s.Err()
}
