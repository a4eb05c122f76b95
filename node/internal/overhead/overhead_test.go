package overhead

import (
	"testing"
)

// TestContexts: the table against what was measured on GPUs of that kind, in MiB:
// total less what was free, or the process's own. It may be above, for it goes by
// the largest GPU of its kind, and hardly below.
func TestContexts(t *testing.T) {
	for _, tc := range []struct {
		gpu      string
		major    int
		totalMiB uint64
		measured uint64
	}{
		{"RTX 3060", 8, 12044, 123},
		{"RTX 3070 Ti", 8, 7973, 184},
		{"A30", 8, 24060, 255},
		{"RTX 3090", 8, 24252, 256},
		{"Quadro GV100", 7, 32508, 345},
		{"V100", 7, 16144, 312},
		{"RTX 4060 Ti", 8, 7805, 107},
		{"RTX PRO 6000", 12, 97247, 555},
		{"GTX 1650", 7, 3903, 64},
	} {
		got := contextBytes(GPU{CCMajor: tc.major, Total: tc.totalMiB * mib}) / mib
		if got*10 < tc.measured*9 || got > tc.measured*3 {
			t.Errorf("%s: %d MiB, measured %d", tc.gpu, got, tc.measured)
		}
	}
	last := contexts[len(contexts)-1]
	if last.major != 0 || last.gib != 0 {
		t.Error("the last row does not take all")
	}
}

func TestOverhead(t *testing.T) {
	h100 := GPU{Total: 81089 * mib, CCMajor: 9}
	for _, tc := range []struct {
		name      string
		framework string
		l         GPU
		gpus      int
		want      uint64
	}{
		{"JAX on an H100", "jax", h100, 1, 552 + 30 + 500 + 32},
		{"TensorFlow", "tensorflow", h100, 1, 552 + 30 + 500 + 32},
		{"PyTorch", "pytorch", h100, 1, 552 + 150 + 500},
		{"CuPy", "cupy", h100, 1, 552 + 30 + 32},
		{"eight of them", "jax", h100, 8, 552 + 30 + 500 + 32 + 512},
		{"a context that is known", "cupy", GPU{Total: h100.Total, CCMajor: 9, Context: 100 * mib}, 1, 100 + 30 + 32},
		{"simulated", "jax", GPU{Total: 1 << 30, CCMajor: 9, Simulated: true}, 4, 0},
		{"simulated, with a context", "jax", GPU{Total: 1 << 30, CCMajor: 9, Simulated: true, Context: 300 * mib}, 4, 300},
	} {
		if got := Of(tc.framework, tc.l, tc.gpus); got != tc.want*mib {
			t.Errorf("%s: %d MiB, want %d", tc.name, got/mib, tc.want)
		}
		for _, p := range parts(tc.framework, tc.l, tc.gpus) {
			if p.what == "" || p.source == "" || p.bytes == 0 {
				t.Errorf("%s: %+v", tc.name, p)
			}
		}
	}
	a100 := Of("jax", GPU{Total: 81101 * mib, CCMajor: 8}, 1)
	if a100 != (456+30+500+8)*mib+mib/8 {
		t.Errorf("JAX on an A100: %d", a100)
	}
}
