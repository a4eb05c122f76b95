package hlo

// The compiler that made a module, as far as its text says so. The text has no field for
// it, but each compiler leaves its marks: attributes of the module, the
// configuration of operations, and the targets of custom calls.

import "strings"

// A Backend is the compiler that a module went through.
type Backend int

const (
	AnyBackend Backend = iota // it does not show: the module is not compiled, or has no mark
	GPU
	CPU
)

// gpuConfigs and cpuConfigs are keys in backend_config that one compiler alone writes;
// gpuTargets begin the targets of custom calls of XLA:GPU.
var (
	gpuConfigs = []string{`"fusion_backend_config"`, `"gemm_backend_config"`, `"cudnn_conv_backend_config"`, `"cudnn_fmha_backend_config"`,
		`"collective_backend_config"`, `"operation_queue_id"`, `"force_earliest_schedule"`}
	cpuConfigs = []string{`"outer_dimension_partitions"`, `"__ynn_fusion"`, `"onednn_`}
	gpuTargets = []string{"__cublas$", "__cudnn$", "__cusolver$", "__cub$", "__triton", "__gpu$", "__nvjet", "__hipblas"}
)

// Backend returns the compiler that made the module.
func (m *Module) Backend() Backend {
	// XLA:GPU notes a fingerprint before its latency-hiding scheduler runs (2022 on).
	if front, _ := m.Attribute("frontend_attributes"); strings.Contains(front, "fingerprint_before_lhs") {
		return GPU
	}
	contains := func(text string, any []string) bool {
		for _, part := range any {
			if strings.Contains(text, part) {
				return true
			}
		}
		return false
	}
	for i := range m.All() {
		if config, ok := i.Attribute("backend_config"); ok {
			switch {
			case contains(config, gpuConfigs):
				return GPU
			case contains(config, cpuConfigs):
				return CPU
			}
		}
		if i.Opcode != CustomCall {
			continue
		}
		target, _ := i.Attribute("custom_call_target")
		for _, prefix := range gpuTargets {
			if strings.HasPrefix(strings.TrimPrefix(target, `"`), prefix) {
				return GPU
			}
		}
	}
	return AnyBackend
}
