package doctor_test

import (
	"strings"
	"testing"

	"gpumem/doctor"
)

// TestLimitsThatAreNotTheMachines: words of memory about a limit that is a heap's, a
// database's, a service's, or a library's refusal of an argument. None is a cause that a
// setting of GPU memory, or more memory, would end.
func TestLimitsThatAreNotTheMachines(t *testing.T) {
	for _, log := range []string{
		"RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm( handle, opa, opb, m, n, k, &alpha, a, lda, b, ldb, &beta, c, ldc)`",
		"google.api_core.exceptions.ResourceExhausted: 429 Quota exceeded for quota metric 'Generate requests'",
		"grpc: StatusCode.RESOURCE_EXHAUSTED details = \"Too many pings\"",
		"Reason: Evicted\nMessage: The node was low on resource: ephemeral-storage. Threshold quantity: 2Gi, available: 1487Mi. Container main was using 6Gi, request is 0, which exceeds its request of 0.",
		"[TensorRT] ERROR: Tactic Device request: 2304MB Available: 1536MB. Device memory is insufficient to use tactic.",
		"gpumem: GPU 0, pool elastic: peak 240 MiB in use, 248 MiB reserved; 90 allocations, 3 refused, 20 driver calls",
		"host1:42:61 [0] misc/shmutils.cc:129 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-a1B2c3 (size 9637888), error: No such file or directory (2)",
		"OOM command not allowed when used memory > 'maxmemory'.",
	} {
		d, err := doctor.Diagnose(strings.NewReader(log), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range d.Causes {
			if c.ID != doctor.NotMemory && c.ID != doctor.NonfatalWarning {
				t.Errorf("%q: %s", log, c.ID)
			}
		}
	}
}
