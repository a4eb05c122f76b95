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
		"OOM command not allowed when used memory > 'maxmemory'.",
	} {
		d, err := doctor.Diagnose(strings.NewReader(log), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range d.Causes {
			if c.ID != doctor.NotMemory {
				t.Errorf("%q: %s", log, c.ID)
			}
		}
	}
}
