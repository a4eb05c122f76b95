package advise

import (
	"slices"
	"testing"
)

func TestSettingsAreCutOutsideOfBrackets(t *testing.T) {
	for text, want := range map[string][]string{
		"":                      {},
		"max_split_size_mb:128": {"max_split_size_mb:128"},
		"max_split_size_mb:128, expandable_segments:True":                      {"max_split_size_mb:128", "expandable_segments:True"},
		"roundup_power2_divisions:[256:1,>:4],garbage_collection_threshold:.8": {"roundup_power2_divisions:[256:1,>:4]", "garbage_collection_threshold:.8"},
	} {
		if got := settingsOf(text); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
