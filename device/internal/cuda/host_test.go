//go:build linux && (amd64 || arm64) && !nodriver

package cuda

import (
	"path/filepath"
	"testing"
)

func TestMemAvailable(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       uint64
		ok         bool
	}{
		{"as Linux writes it", "MemTotal:       131890084 kB\nMemFree:        1 kB\nMemAvailable:   127000000 kB\nBuffers: 3 kB\n", 127000000 << 10, true},
		{"nothing", "MemAvailable: 0 kB", 0, true},
		{"old kernel", "MemTotal: 5 kB\nMemFree: 4 kB\n", 0, false},
		{"another unit", "MemAvailable: 5 MB\n", 0, false},
		{"no unit", "MemAvailable: 5\n", 0, false},
		{"negative", "MemAvailable: -5 kB\n", 0, false},
		{"too much", "MemAvailable: 18446744073709551615 kB\n", 0, false},
		{"empty", "", 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := host{proc: t.TempDir()}
			writeFile(t, filepath.Join(h.proc, "meminfo"), tc.text)
			got, err := h.memAvailable()
			if got != tc.want || (err == nil) != tc.ok {
				t.Errorf("%d, %v", got, err)
			}
		})
	}
	if _, err := (host{proc: t.TempDir()}).memAvailable(); err == nil {
		t.Error("no meminfo is no error")
	}
	if n, err := realHost.memAvailable(); n < 1<<20 || err != nil {
		t.Errorf("this machine has %d bytes, %v", n, err)
	}
}

func FuzzMemAvailable(f *testing.F) {
	f.Add("MemAvailable: 5 kB\n")
	f.Add("MemAvailable:5 kB extra\nMemAvailable: 7 kB")
	f.Fuzz(func(t *testing.T, text string) {
		n, err := parseMemAvailable(text)
		if err != nil && n != 0 || n%1024 != 0 {
			t.Errorf("%d, %v", n, err)
		}
	})
}

func TestProgram(t *testing.T) {
	h := host{proc: t.TempDir()}
	writeFile(t, filepath.Join(h.proc, "7", "comm"), "two words\n")
	if got := h.program(7); got != "two words" {
		t.Errorf("%q", got)
	}
	if got := h.program(8); got != "" {
		t.Errorf("%q", got)
	}
}
