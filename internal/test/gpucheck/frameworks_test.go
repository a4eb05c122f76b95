//go:build linux

package main

import (
	"fmt"
	"slices"
	"testing"
)

// The line is that of preload/libgpumem at a program's end.
func TestReported(t *testing.T) {
	line := "gpumem: GPU 0, pool elastic:limit=3GiB: peak 105.53 MiB in use, 2 GiB reserved; 1174 allocations, 0 refused, 176 driver calls"
	m := reported.FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("%q is not read", line)
	}
	used, err1 := parseSize(m[1])
	held, err2 := parseSize(m[2])
	got := fmt.Sprint(int(used), int(held), err1, err2, m[3:])
	if want := "110656225 2147483648 <nil> <nil> [1174 0 176]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Sizes that a text names are as exact as they are printed.
func TestSizesIn(t *testing.T) {
	got := sizesIn("140 GiB of 141.5 GiB, 496 MiB and 12 B are free at line 17")
	if want := []float64{140 << 30, 141.5 * (1 << 30), 496 << 20, 12}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for n, want := range map[uint64]float64{12: .01, 1023: .01, 496 << 20: (1 << 20) / 100., 140 << 30: (1 << 30) / 100.} {
		if r := rounding(n); r != want {
			t.Errorf("rounding(%d) = %v, want %v", n, r, want)
		}
	}
}
