package observe

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// simulated writes a file of simulated GPUs with the holders.
func simulated(t *testing.T, gpu int, holders ...Holder) string {
	t.Helper()
	b := make([]byte, simSize)
	copy(b, "gpumemS\n")
	for i, h := range holders {
		number := 63 + i // the slots need not be the first
		binary.NativeEndian.PutUint64(b[simMarks+number/64*8:], binary.NativeEndian.Uint64(b[simMarks+number/64*8:])|1<<(number%64))
		slot := b[simSlots+number*simSlot:]
		binary.NativeEndian.PutUint64(slot, h.PID)
		binary.NativeEndian.PutUint64(slot[8:], h.Start)
		binary.NativeEndian.PutUint64(slot[simHeld+8*gpu:], h.Bytes<<8)
	}
	file := filepath.Join(t.TempDir(), "gpus")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	for i := range holders[:max(0, len(holders)-1)] { // the last one is dead
		const setLock = 37 // F_OFD_SETLK of fcntl.h
		if err := syscall.FcntlFlock(f.Fd(), setLock, &syscall.Flock_t{Type: syscall.F_WRLCK, Start: simLocks + 63 + int64(i), Len: 1}); err != nil {
			t.Fatal(err)
		}
	}
	return file
}

func TestHoldersReadsSlots(t *testing.T) {
	want := []Holder{{7, 100, 1 << 30}, {1, 200, 5}}
	got, err := Holders(simulated(t, 2, append(want, Holder{9, 300, 5})...), 2)
	if err != nil || len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if _, err := Holders(os.DevNull, 0); err == nil {
		t.Error("an empty file is taken for a GPU")
	}
}

func TestReadLedgerSums(t *testing.T) {
	b := make([]byte, 135168)
	copy(b, "gpumemL1")
	binary.LittleEndian.PutUint64(b[8:], 1000)
	for i, s := range []struct {
		pid                    uint32
		held, outside, charged uint64
	}{{1, 10, 20, 30}, {0, 100, 100, 100}, {2, 1, 2, 3}} {
		slot := b[4096+i*128:]
		binary.LittleEndian.PutUint32(slot, s.pid)
		binary.LittleEndian.PutUint64(slot[16:], s.held)
		binary.LittleEndian.PutUint64(slot[24:], s.outside)
		binary.LittleEndian.PutUint64(slot[72:], s.charged)
	}
	file := filepath.Join(t.TempDir(), "ledger")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := ReadLedger(file); err != nil || l != (Ledger{1000, 66}) {
		t.Errorf("%+v, %v; want a limit of 1000 and 66 held", l, err)
	}
	if _, err := ReadLedger(os.DevNull); err == nil || !strings.Contains(err.Error(), "no ledger") {
		t.Errorf("an empty file: %v", err)
	}
}

// TestAlike: processes of several containers with one number and one start, whatever they run.
func TestAlike(t *testing.T) {
	proc := t.TempDir()
	for pid, p := range map[string]struct{ numbers, start, state string }{
		"100": {"100\t1", "500", "S"}, // a container's
		"101": {"101\t1", "500", "S"}, // and another's
		"102": {"102\t1", "501", "S"}, // started later
		"103": {"103\t7", "500", "S"}, // with another number
		"104": {"104\t1", "500", "Z"}, // dead
	} {
		dir := filepath.Join(proc, pid)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"status": "Name:\tx\nNSpid:\t" + p.numbers + "\n",
			"stat":   pid + " (runc init) " + p.state + strings.Repeat(" 0", 18) + " " + p.start + " 0\n",
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := alike(proc)
	for of, want := range map[[2]uint64]int{{1, 500}: 2, {1, 501}: 1, {7, 500}: 1} {
		if got[of] != want {
			t.Errorf("%v: %d, want %d", of, got[of], want)
		}
	}
}
