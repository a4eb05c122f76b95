package registry

import (
	"testing"

	"gpumem/internal/proc"
)

func TestParseLock(t *testing.T) {
	for _, tc := range []struct {
		line string
		want tableLock
		ok   bool
	}{
		{"1: OFDLCK ADVISORY  WRITE -1 00:1b:57 4611686018427387904 4611686018427511359", tableLock{57, 1 << 62, 123456}, true},
		{"1: OFDLCK ADVISORY  WRITE 77 fe:00:10289281 0 EOF\n", tableLock{10289281, 0, 0}, true},
		{"\t1: OFDLCK ADVISORY  WRITE -1 00:1b:57 5 5", tableLock{57, 5, 1}, true},
		{"1: OFDLCK ADVISORY  READ  -1 00:1b:57 0 EOF", tableLock{}, false},
		{"1: -> OFDLCK ADVISORY  WRITE -1 00:1b:57 0 EOF", tableLock{}, false},
		{"1: POSIX  ADVISORY  WRITE 9 00:1b:57 0 EOF", tableLock{}, false},
		{"1: FLOCK  ADVISORY  WRITE 9 00:1b:57 0 EOF", tableLock{}, false},
		{"1: OFDLCK ADVISORY  WRITE -1 00:1b:57 9 5", tableLock{}, false},
		{"1: OFDLCK ADVISORY  WRITE -1 00:1b:x 0 EOF", tableLock{}, false},
		{"", tableLock{}, false},
	} {
		if got, ok := parseLock(tc.line); ok != tc.ok || ok && got != tc.want {
			t.Errorf("%q is %+v, %t; want %+v, %t", tc.line, got, ok, tc.want, tc.ok)
		}
	}
}

func FuzzParseLock(f *testing.F) {
	f.Add("1: OFDLCK ADVISORY  WRITE -1 00:1b:57 4611686018427387904 4611686018427511359")
	f.Add("1: -> OFDLCK ADVISORY  WRITE -1 00:1b:57 0 EOF")
	f.Fuzz(func(t *testing.T, line string) {
		if l, ok := parseLock(line); ok && l.start+l.length < l.start {
			t.Errorf("%q is %+v", line, l)
		}
	})
}

// TestYoungest: numbers of processes do not count up with their starts.
func TestYoungest(t *testing.T) {
	starts := map[int]uint64{9: 50, 7: 80, 8: 60, 3: 80}
	read := func(pid int) (proc.Stat, bool) { s, ok := starts[pid]; return proc.Stat{Start: s}, ok }
	for _, tc := range []struct {
		pids []int
		want int
	}{
		{nil, 0},
		{[]int{1}, 0}, // cannot be seen
		{[]int{8}, 8},
		{[]int{7, 8, 9}, 7},
		{[]int{8, 9}, 8},
		{[]int{1, 7, 3}, 3},
	} {
		if pid, start := youngest(tc.pids, read); pid != tc.want || start != starts[pid] {
			t.Errorf("of %v it is %d, started at %d; want %d", tc.pids, pid, start, tc.want)
		}
	}
}

func TestNamespaceIsKnown(t *testing.T) {
	if PIDNamespace() == 0 {
		t.Error("0")
	}
}
