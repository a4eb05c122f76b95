//go:build linux && (amd64 || arm64) && !nodriver && !race

package cuda

import "testing"

// TestAllocs: the way to the driver and back allocates nothing. (The race
// detector makes pools forget, so that it does.)
func TestAllocs(t *testing.T) {
	d := trivial(t)
	p := make([]byte, 10)
	for name, call := range map[string]func() error{
		"Synchronize": d.Synchronize,
		"StreamQuery": func() error { _, err := d.StreamQuery(0); return err },
		"Free":        func() error { keep(d, d.grants, 0, byAlloc); return d.Free(0) },
		"FillAsync":   func() error { return d.FillAsync(0, 1, 1, 0) },
		"Write":       func() error { return d.Write(0, p) },
	} {
		if n := testing.AllocsPerRun(1000, func() {
			if err := call(); err != nil {
				t.Fatal(name, err)
			}
		}); n != 0 {
			t.Errorf("%s makes %v allocations", name, n)
		}
	}
}
