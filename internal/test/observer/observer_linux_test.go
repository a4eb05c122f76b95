package observer

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"gpumem/internal/ofd"
)

// TestLockedCountsLeasesAlone: one who waits, a lock of another file, one for reading and
// one below where leases begin are none.
func TestLockedCountsLeasesAlone(t *testing.T) {
	const text = `1: OFDLCK ADVISORY  WRITE -1 fe:00:7 4611686018427387904 4611686018494496767
1: -> OFDLCK ADVISORY  WRITE -1 fe:00:7 4611686018427387904 4611686018494496767
2: OFDLCK ADVISORY  WRITE -1 fe:00:8 4611686018427387904 4611686018427387904
3: OFDLCK ADVISORY  READ  -1 fe:00:7 4611686018427387904 4611686018427387904
4: OFDLCK ADVISORY  WRITE -1 fe:00:7 0 EOF
5: OFDLCK ADVISORY  WRITE -1 fe:00:7 0 0
6: POSIX  ADVISORY  WRITE 42 fe:00:7 4611686018427387904 4611686018427387904
`
	got := locked(text, map[string]string{"7": "a.held"})
	if want := map[string]uint64{"a.held": 64 << 20}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestLookSeesTheKernelsLocks: a lock as leases have it, and a process.
func TestLookSeesTheKernelsLocks(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "gpu.1.held"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := (ofd.Lock{FD: f.Fd(), Start: lowest + 5, Len: 7}).Try(ofd.Write); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "61.0004711")
	if err := cmd.Start(); err != nil {
		t.Skip("skipped: ", err)
	}
	v, err := Look(dir, "61.0004711", "--mem")
	_ = cmd.Process.Kill()
	if want := (View{Lives: true, Leased: 7}); v != want || err != nil {
		t.Errorf("%+v, %v, want %+v", v, err, want)
	}
	if slices.ContainsFunc(Processes("61.0004711", "61.0004711"), func(Process) bool { return true }) {
		t.Error("a process that has the argument to leave out is listed")
	}
	_ = cmd.Wait()
	f.Close()
	if v, err := Look(dir, "61.0004711", "--mem"); v != (View{Gone: true}) || err != nil {
		t.Errorf("after the end: %+v, %v", v, err)
	}
}
