package preload

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/policy/frameworks"
)

// TestMemoryBetweenThatOfAPoolIsNotThePools: a program's own mappings, as NCCL and PyTorch's
// expandable segments make them, and the driver's memory of graphs lie between the addresses of
// a pool. Without, cuMemRetainAllocationHandle refused the program's own memory. With real drivers
// the pools of two GPUs may be in between each other, too; simulated ones are not.
func TestMemoryBetweenThatOfAPoolIsNotThePools(t *testing.T) {
	b := libraries(t)
	program, err := compiled("between")()
	if err != nil {
		t.Fatal(err)
	}
	for _, policy := range []string{"elastic", "vmm", "platform", "async", "bfc", "pytorch:expandable_segments=True"} {
		for _, gpus := range []string{"1", "2"} {
			t.Run(policy+" "+gpus, func(t *testing.T) {
				kind, err := frameworks.Parse(policy)
				must(t, err)
				text, err := json.Marshal(kind)
				must(t, err)
				device := "GPUMEM_DEVICE=sim@" + filepath.Join(t.TempDir(), "gpus") + ",total=1GiB/1GiB,create"
				for line := range strings.Lines(run(t, b, []string{device, "GPUMEM_POLICY=" + string(text)}, filepath.Base(program), gpus)) {
					if !strings.Contains(line, "memory that the pool serves cannot be shared") {
						t.Error(line)
					}
				}
			})
		}
	}
}
