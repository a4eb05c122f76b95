// TensorFlow: growth by a variable, the limit by the hook.

package runenv

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gpumem/policy"
	"gpumem/policy/explain"
	"gpumem/policy/frameworks"
)

const (
	tfGrowthVar    = "TF_FORCE_GPU_ALLOW_GROWTH"
	tfSystemVar    = "TF_DEVICE_MIN_SYS_MEMORY_IN_MB"
	tfAllocatorVar = "TF_GPU_ALLOCATOR"

	// What the hook reads; see node/internal/hook/gpumem_hook.py.
	hookLimitVar    = "GPUMEM_TF_LIMIT_MIB" // of each GPU, with commas between
	hookFractionVar = "GPUMEM_TF_FRACTION"  // for sessions (TensorFlow 1): the least of all GPUs
	hookCPUVar      = "GPUMEM_TF_CPU"       // 1: no GPU at all
	hookTorchVar    = "GPUMEM_TORCH_FRACTION"
)

// tensorflow sets TensorFlow's limit.
func (e *editor) tensorflow(lim Limits) error {
	stale := func(names ...string) { // of a lease around this one
		for _, name := range names {
			e.unset(name, "of another lease")
		}
	}
	if lim.CPUTensorFlow {
		stale(hookLimitVar, hookFractionVar)
		e.set(hookCPUVar, "1", "the hook hides the GPUs from TensorFlow")
		return nil
	}
	stale(hookCPUVar)
	var limits []string
	for _, l := range lim.Leases {
		bytes, err := lim.pool("tensorflow", l)
		if err != nil {
			return err
		}
		limits = append(limits, strconv.FormatUint(bytes>>20, 10))
	}
	fractions, err := lim.fractions("tensorflow", 0)
	if err != nil {
		return err
	}
	if e.has(tfGrowthVar) && e.get(tfGrowthVar) != "true" {
		e.keep(tfGrowthVar, "as the user has it")
	} else {
		e.set(tfGrowthVar, "true", "TensorFlow allocates on demand")
	}
	e.set(hookLimitVar, strings.Join(limits, ","), lim.why("tensorflow", -1)+", in MiB: the hook makes it TensorFlow's limit")
	e.set(hookFractionVar, strconv.FormatFloat(slices.Min(fractions), 'f', -1, 64), "the same for sessions, as TensorFlow 1 has them")
	e.unset(tfSystemVar, "with it a session's pool is the free memory less that much, whatever its fraction")
	a, err := explain.Environment(e.environment(), frameworks.Release{Name: "tensorflow"}, policy.Device{Total: lim.Leases[0].Total, Free: lim.Leases[0].Total, CCMajor: lim.Leases[0].CCMajor})
	if err == nil && (a.Allocator == "cuda_async" || a.Allocator == "cuda_malloc") {
		e.keep(tfAllocatorVar, fmt.Sprintf("the lease is not enforced: TensorFlow's allocator %s has no limit", e.get(tfAllocatorVar)))
	}
	return nil
}

const pythonPath = "PYTHONPATH"

// hook puts the Python files on PYTHONPATH, before all others.
func (e *editor) hook(lim Limits, command []string) {
	if lim.Hook == "" {
		return // reported by the caller
	}
	value := lim.Hook
	if old := e.get(pythonPath); old != "" {
		folders := slices.DeleteFunc(strings.Split(old, listSeparator), func(p string) bool { return p == lim.Hook })
		value = strings.Join(append([]string{lim.Hook}, folders...), listSeparator)
	}
	e.set(pythonPath, value, "the hook that sets TensorFlow's and PyTorch's limits when they are imported; it then runs the user's own sitecustomize")
	if flag := deafFlag(command, e.get); flag != "" {
		why := "Python is started with " + flag + " and does not look at it: the lease is not enforced for TensorFlow, nor for PyTorch before 2.10"
		if lim.Record != "" {
			why += "; PyTorch is not recorded"
		}
		if lim.Remat != "" {
			why += "; JAX compiles without plans"
		}
		e.keep(pythonPath, why)
	}
}
