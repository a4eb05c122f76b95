package open

import (
	"path/filepath"
	"testing"
)

// The UUIDs must not change: leases and records of earlier runs name GPUs by them.
func TestUUIDIsThatOfTheFilesPath(t *testing.T) {
	for _, c := range []struct {
		name, words string
		ordinal     int
		want        string
	}{
		{"private", "sim:24GiB", 0, "GPU-ef75577b-1ebf-8dc2-0b27-5ad3efa2bcba"},
		{"shared", "sim@/run/gpumem/gpus", 0, "GPU-4cccd1f0-520f-34f5-c468-0764e3c2c4b6"},
		{"the second of a file", "sim@/run/gpumem/gpus,device=1", 1, "GPU-aa24f6af-5641-35ca-7b9b-9c7164c6c21c"},
		{"the path is cleaned", "sim@/run//gpumem/../gpumem/gpus", 0, "GPU-4cccd1f0-520f-34f5-c468-0764e3c2c4b6"},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec, err := Parse(c.words)
			if err != nil {
				t.Fatal(err)
			}
			if got := spec.UUID(c.ordinal).String(); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestUUIDOfARelativePathIsThatOfTheAbsoluteOne(t *testing.T) {
	abs, err := filepath.Abs("gpus")
	if err != nil {
		t.Fatal(err)
	}
	if rel, full := (Spec{Kind: Shared, File: "gpus"}).UUID(0), (Spec{Kind: Shared, File: abs}).UUID(0); rel != full {
		t.Errorf("gpus is %s, and %s is %s", rel, abs, full)
	}
}
