package torch

import "testing"

// TestSettings: the program's own text where the snapshot has it, else one of its values.
func TestSettings(t *testing.T) {
	divisions := func(kv ...any) *dict { return d(kv...) }
	for _, c := range []struct {
		name     string
		settings any
		want     string
	}{
		{"none", nil, ""},
		{"no dict", "expandable_segments:True", ""},
		{"defaults", d("PYTORCH_CUDA_ALLOC_CONF", "", "max_split_size", -1, "garbage_collection_threshold", 0.0, "expandable_segments", false, "roundup_power2_divisions", divisions("1", 0, "2", 0)), ""},
		{"the text", d("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64", "expandable_segments", true), "max_split_size_mb:64"},
		{"the text under its new name", d("PYTORCH_ALLOC_CONF", "expandable_segments:True"), "expandable_segments:True"},
		{"no limit as a large number", d("max_split_size", uint64(1<<64-1)), ""},
		{"values", d("expandable_segments", true, "max_split_size", 128<<20, "garbage_collection_threshold", 0.8, "roundup_power2_divisions", divisions("1", 1, "2", 4, "32768", 8)),
			"expandable_segments:True,max_split_size_mb:128,garbage_collection_threshold:0.8,roundup_power2_divisions:[2:4,32768:8]"},
		{"a control character", d("PYTORCH_ALLOC_CONF", "expandable_segments:True\x1b[1m"), "expandable_segments:True [1m"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr, err := played(d("segments", l(seg(0, blk(1, 5))), "allocator_settings", c.settings))
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			if tr.Settings != c.want {
				t.Errorf("%q, want %q", tr.Settings, c.want)
			}
		})
	}
}
