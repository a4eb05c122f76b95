package observe

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
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

// TestSlotsOf: the slots of this process, by its own locks on a GPU's file.
func TestSlotsOf(t *testing.T) {
	file := simulated(t, 0, Holder{7, 100, 1}, Holder{8, 100, 1}, Holder{9, 100, 1}) // the last one is dead
	st, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	inode := st.Sys().(*syscall.Stat_t).Ino
	if got := slotsOf("/proc/self", inode); !slices.Equal(got, []int{63, 64}) {
		t.Errorf("slots %v, want 63 and 64", got)
	}
	if got := slotsOf("/proc/self", inode+1); got != nil {
		t.Errorf("slots %v of another file", got)
	}
	if got := slotsOf("/proc/none", inode); got != nil {
		t.Errorf("slots %v of no process", got)
	}
}
