//go:build linux

package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestViewsAreRead reads GPU 0, and no other, of what the command shows.
func TestViewsAreRead(t *testing.T) {
	frame := "gpumem top 11:50:10, 2 programs\n\ncuda:0 NVIDIA H200: 140 GiB, 12 GiB used, 128 GiB free, 9 GiB leased\n" +
		"   pid  user     age      holds▼    grows/min  lease  command\n  4242  ann       9m    8.50 GiB            -  9 GiB  python3 train.py\n    77  ann       9m     512 MiB            -      -  trainer\n\ncuda:1 NVIDIA H200: 1 GiB, 2 GiB used, 3 GiB free\n     1  ann       9m       1 GiB            -      -  x\n"
	state := `{"devices": [{"total_bytes": 100, "used_bytes": 60, "free_bytes": 40, "programs": [{"pid": 7, "used_bytes": 50}]}, {"total_bytes": 1}]}`
	metrics := `# HELP x
gpumem_device_memory_total_bytes{device="cuda:0"} 1.5e+11
gpumem_device_memory_used_bytes{device="cuda:0"} 60
gpumem_device_memory_free_bytes{device="cuda:0"} 40
gpumem_device_memory_free_bytes{device="cuda:1"} 41
gpumem_program_memory_used_bytes{device="cuda:0",pid="7"} 50
gpumem_program_memory_used_bytes{device="cuda:1",pid="8"} 51
`
	simulated := strings.NewReplacer("cuda:0", "sim@/tmp/gpu", "cuda:1", "sim@/tmp/gpu,device=1")
	const gib = 1 << 30
	for _, tc := range []struct {
		read func() (view, error)
		want view
	}{
		{func() (view, error) { return readFrame(frame) }, view{"top", 140 * gib, 12 * gib, 128 * gib, map[int]uint64{4242: 17 * gib / 2, 77: gib / 2}, gib / 100}},
		{func() (view, error) { return servedState(state) }, view{"serve /state", 100, 60, 40, map[int]uint64{7: 50}, 0}},
		{func() (view, error) { return readFrame(simulated.Replace(frame)) }, view{"top", 140 * gib, 12 * gib, 128 * gib, map[int]uint64{4242: 17 * gib / 2, 77: gib / 2}, gib / 100}},
		{func() (view, error) { return servedMetrics(simulated.Replace(metrics)), nil }, view{"serve /metrics", 150_000_000_000, 60, 40, map[int]uint64{7: 50}, 0}},
		{func() (view, error) { return servedMetrics(metrics), nil }, view{"serve /metrics", 150_000_000_000, 60, 40, map[int]uint64{7: 50}, 0}},
	} {
		t.Run(tc.want.name, func(t *testing.T) {
			got, err := tc.read()
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(view{})); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
	if _, err := readFrame("no program\n"); err == nil {
		t.Error("a frame without a GPU is accepted")
	}
	if _, err := servedState(`{}`); err == nil {
		t.Error("a state without a GPU is accepted")
	}
}
