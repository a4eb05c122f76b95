package memory

import "testing"

// The order in which temporary allocations are put together decides what is rounded up.
func TestTemporariesTogether(t *testing.T) {
	other, table, heap := kept{}, kept{temp: true, bytes: 24}, kept{temp: true, bytes: 1000}
	for _, tc := range []struct {
		name string
		all  []kept
		want uint64
	}{
		{"nothing", nil, 0},
		{"no temporaries", []kept{other, other}, 0},
		{"the heap alone", []kept{other, heap}, 1000},
		{"the heap is last of all", []kept{other, table, heap}, 256 + 1000},
		{"one of a thread behind it", []kept{table, heap, other}, 1024 + 24},
		{"as many of threads as temporaries", []kept{table, heap, other, other}, 1024 + 24},
		{"an output between", []kept{table, other, heap}, 256 + 1000},
		{"two tables, turned around", []kept{{temp: true, bytes: 8}, table, heap, other, other, other}, 1024 + 256 + 8},
		{"two memory spaces", []kept{{temp: true, space: 1, bytes: 10}, table, heap, other, other, other}, 1024 + 24 + 10},
	} {
		if got := together(tc.all, 256); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}
