package open_test

import (
	"slices"
	"testing"

	"gpumem/device/open"
)

var fourUUIDs = []string{"GPU-aa10", "GPU-aa11", "GPU-b2", "GPU-c3"}

// TestVisible: the rules of CUDA's programming guide, and those by which PyTorch counts without the driver.
func TestVisible(t *testing.T) {
	for _, tc := range []struct {
		name, value string
		want        []int
	}{
		{"one", "1", []int{1}},
		{"the order is the program's", "2,0", []int{2, 0}},
		{"blanks", " 3 , 1 ", []int{3, 1}},
		{"empty", "", nil},
		{"-1", "-1", nil},
		{"the list ends at -1", "0,-1,1", []int{0}},
		{"the list ends at a number that is not there", "0,4,1", []int{0}},
		{"no number", "none", nil},
		{"an empty word ends the list", "0,,1", []int{0}},
		{"what follows a number", "1gpu2,2ampere", []int{1, 2}},
		{"with a sign", "+1", []int{1}},
		{"twice", "1,1", nil},
		{"twice, behind another", "0,1,0", nil},
		{"larger than a number", "99999999999999999999", nil},
		{"a UUID", "GPU-b2", []int{2}},
		{"the beginning of one", "GPU-c,GPU-aa10", []int{3, 0}},
		{"the beginning of two", "GPU-aa1", nil},
		{"one that is not there", "GPU-b2,GPU-d4,GPU-c3", []int{2}},
		{"a UUID twice", "GPU-b2,GPU-b", nil},
		{"a number behind a UUID", "GPU-b2,1", []int{2}},
		{"a UUID behind a number", "1,GPU-b2", []int{1}},
		{"a slice of a GPU", "MIG-aa10", nil},
	} {
		if got := open.Visible(tc.value, fourUUIDs); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q lets %v through, want %v", tc.name, tc.value, got, tc.want)
		}
	}
}

func FuzzVisible(f *testing.F) {
	f.Add("0,1")
	f.Add("GPU-b2,,+")
	f.Fuzz(func(t *testing.T, value string) {
		seen := map[int]bool{}
		for _, n := range open.Visible(value, fourUUIDs) {
			if n < 0 || n >= len(fourUUIDs) || seen[n] {
				t.Fatalf("%q: %d", value, n)
			}
			seen[n] = true
		}
	})
}
