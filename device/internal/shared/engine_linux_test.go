package shared

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
	"unsafe"
)

const ms = time.Millisecond

// TestOccupyPutsWorkBehindThatOfOtherProcesses: also work that was ready before, and no other engine or device waits.
func TestOccupyPutsWorkBehindThatOfOtherProcesses(t *testing.T) {
	path := makeFile(t)
	a, b := openFile(t, path), openFile(t, path)
	for i, tc := range []struct {
		f                *File
		dev, engine      int
		ready, takes, at time.Duration
	}{
		{a, 0, 0, 100 * ms, 2 * ms, 102 * ms}, // idle
		{b, 0, 0, 101 * ms, 2 * ms, 104 * ms}, // behind the other's
		{a, 0, 0, 102 * ms, 2 * ms, 106 * ms},
		{b, 0, 0, 50 * ms, ms, 107 * ms},  // ready long ago
		{b, 0, 0, 200 * ms, ms, 201 * ms}, // idle again
		{b, 0, 2, 101 * ms, ms, 102 * ms}, // another engine
		{b, 1, 0, 101 * ms, ms, 102 * ms}, // another device
	} {
		if at := tc.f.Occupy(tc.dev, tc.engine, 300*ms, tc.ready, tc.takes); at != tc.at {
			t.Errorf("%d: done at %v, want %v", i, at, tc.at)
		}
	}
	if got := look(t, path)[0].Busy; got != [Engines]time.Duration{8 * ms, 0, ms} {
		t.Errorf("busy %v", got)
	}
	if got := a.Busy(1, 0); got != ms {
		t.Errorf("device 1 busy %v", got)
	}
}

// TestOccupyByManyAtOnceOverlapsNowhere: all that is ready at 0 ends at the sum.
func TestOccupyByManyAtOnceOverlapsNowhere(t *testing.T) {
	path := makeFile(t)
	var wait sync.WaitGroup
	var mu sync.Mutex
	ends := map[time.Duration]bool{}
	for range 4 {
		f := openFile(t, path)
		for range 4 {
			wait.Go(func() {
				for range 500 {
					at := f.Occupy(0, 1, 0, 0, time.Microsecond)
					mu.Lock()
					ends[at] = true
					mu.Unlock()
				}
			})
		}
	}
	wait.Wait()
	if len(ends) != 8000 || !ends[8000*time.Microsecond] {
		t.Errorf("%d ends, the last at 8ms: %v", len(ends), ends[8000*time.Microsecond])
	}
}

// TestOccupyPassesOverAnEndThatNobodyWrote: of a machine that ran before this one began, or of damage. It
// must not keep programs waiting for years, nor be believed where it is a time that others can have written.
func TestOccupyPassesOverAnEndThatNobodyWrote(t *testing.T) {
	path := makeFile(t)
	f := openFile(t, path)
	at := int64(unsafe.Offsetof(image{}.times))
	for _, tc := range []struct {
		name      string
		end, want time.Duration
	}{
		{"an hour ahead", time.Hour, 11 * ms},
		{"the end of time", -1, 11 * ms},
		{"half a minute ahead", 30 * time.Second, 30*time.Second + ms},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file, err := os.OpenFile(path, os.O_RDWR, 0)
			must(t, err)
			_, err = file.WriteAt(bytesOf(&tc.end), at)
			must(t, err)
			must(t, file.Close())
			if got := f.Occupy(0, 0, 10*ms, 10*ms, ms); got != tc.want {
				t.Errorf("done at %v, want %v", got, tc.want)
			}
		})
	}
}

// TestOccupyWithoutAFileWaitsForNobody: closed, or cut short by another.
func TestOccupyWithoutAFileWaitsForNobody(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gpu")
	must(t, Create(path, []Descriptor{plain()}))
	closed, cut := openFile(t, path), openFile(t, path)
	closed.Occupy(0, 0, 0, 0, ms)
	must(t, closed.Close())
	must(t, os.Truncate(path, 0))
	for _, f := range []*File{closed, cut} {
		if at := f.Occupy(0, 0, ms, ms, ms); at != 2*ms || f.Busy(0, 0) != 0 {
			t.Errorf("done at %v, busy %v", at, f.Busy(0, 0))
		}
	}
}
