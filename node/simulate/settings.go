// Variables that programs on the simulated driver need, under gpumem run --simulate and gpumem fit.

package simulate

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gpumem/node/library"
	"gpumem/policy"
)

// EnvPeaks names the file for what each process held, see preload/sim.
const EnvPeaks = "GPUMEM_SIM_PEAKS"

// A Setting is a variable with what it is set to, and how.
type Setting struct {
	Name, Value string
	how         how
	Why         string // one line
}

// how says what becomes of the user's own value.
type how int

const (
	replace how = iota // it goes
	keep               // it stays, and ours is for those who have none
	before             // it stays, behind ours in a list of folders
	after              // it stays, before ours: the last of a flag counts
)

// Settings returns those of every program on the simulated driver in a folder.
func Settings(folder string) []Setting {
	driver, nvml := driverOf(folder)
	return []Setting{
		{library.EnvSearch, folder, before, "programs find the simulated driver, and the libraries beside it, before others"},
		{library.EnvDriver, driver, replace, "the driver under a pool library"},
		{library.EnvNVML, nvml, replace, "its NVML"},
		{"GPUMEM_SIM_FOLDER", folder, replace, "Python's start-up file loads the libraries there before NVIDIA's own, which want a real driver"},
		{"GPUMEM_SIM_HAZARDS", "report", keep, "a use of memory that nothing orders passes, as on most GPUs"},
		{"JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1", replace, "the libraries beside the driver have no versions that JAX could check"},
		{"TORCHINDUCTOR_COMPILE_THREADS", "1", keep, "PyTorch waits five minutes at its end for processes that compile for it"},
		{"XLA_FLAGS", "--xla_gpu_autotune_level=0", after, "no kernel can be chosen by its time"},
	}
}

// Before returns a setting that puts a value before the user's own in a list of folders.
func Before(name, value, why string) Setting { return Setting{name, value, before, why} }

// Replace returns a setting in place of the user's own.
func Replace(name, value, why string) Setting { return Setting{name, value, replace, why} }

// Keep returns a setting for those who have none.
func Keep(name, value, why string) Setting { return Setting{name, value, keep, why} }

func driverOf(folder string) (driver, nvml string) {
	return filepath.Join(folder, "libcuda.so.1"), filepath.Join(folder, "libnvidia-ml.so.1")
}

// Apply returns an environment, NAME=value, with settings. Of one name the later comes first in a list.
func Apply(env []string, settings []Setting) []string {
	for _, s := range settings {
		value, old := s.Value, policy.Environ(env).Get(s.Name)
		switch {
		case old == "":
		case s.how == keep:
			continue
		case s.how == before:
			value += string(os.PathListSeparator) + old
		case s.how == after:
			value = old + " " + value
		}
		env = slices.DeleteFunc(slices.Clone(env), func(line string) bool { return strings.HasPrefix(line, s.Name+"=") })
		env = append(env, s.Name+"="+value)
	}
	return env
}
