package doctor

import (
	"fmt"
	"strings"
	"testing"
)

// TestAnswersDoNotDependOnChance: where several readings, settings that were tried or
// warnings compete, the answer is the same each time.
func TestAnswersDoNotDependOnChance(t *testing.T) {
	var rising strings.Builder
	for i := 1; i <= 8; i++ {
		fmt.Fprintf(&rising, "step %d: memory allocated %d.0 GiB, memory reserved %d.5 GiB\n", i, i, i+1)
	}
	for _, tt := range []struct{ name, log, state, line string }{
		{"readings", rising.String() + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n", "", "line 1: 1 GiB at first"},
		{"tried", "E cuda_dnn.cc:439] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR\nE cuda_dnn.cc:443] Memory usage: 214958080 bytes free, 8361017344 bytes total.\n",
			`{"version":1,"tried":[{"env":{"XLA_PYTHON_CLIENT_PREALLOCATE":"false","XLA_PYTHON_CLIENT_MEM_FRACTION":".5"},"helped":true}]}`,
			"tried: XLA_PYTHON_CLIENT_PREALLOCATE=false"},
		{"warnings", "W bfc_allocator.cc:1] Garbage collection: deallocate free memory regions (i.e., allocations) so that we can re-allocate a larger region\nW spmd.cc:1] [SPMD] Involuntary full rematerialization. The compiler cannot go from sharding {a} to {b} efficiently\n", "", "line 1: the pool releases free regions"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 100 {
				if got := inWords(diagnose(t, tt.log, tt.state)); !strings.Contains(got, tt.line) {
					t.Fatalf("%s\nlacks %q", got, tt.line)
				}
			}
		})
	}
}

// TestGrowthIsReadAsTensorFlowDoes: what TensorFlow does not recognise, the doctor does not
// take for a pool that grows.
func TestGrowthIsReadAsTensorFlowDoes(t *testing.T) {
	log := "W tensorflow/core/common_runtime/bfc_allocator.cc:1] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB (rounded to 2147483648)requested by op\n" +
		"I tensorflow/core/common_runtime/bfc_allocator.cc:2] Limit:                     19327352832\n" +
		"I tensorflow/core/common_runtime/bfc_allocator.cc:3] InUse:                     10320000000\n"
	for value, want := range map[string]Verdict{"true": VerdictNeeds, "True": VerdictCause, "1": VerdictCause} {
		d := diagnose(t, log, fmt.Sprintf(`{"version":1,"process":{"env":{"TF_FORCE_GPU_ALLOW_GROWTH":%q}}}`, value))
		if d.Verdict != want || ids(d)[0] != string(Fragmentation) {
			t.Errorf("%s: %s %v, want %s", value, d.Verdict, ids(d), want)
		}
	}
}
