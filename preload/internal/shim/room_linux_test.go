package shim

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"gpumem/internal/hostmem"
)

// mappingOf returns what the kernel says of the mapping that a block is in.
func mappingOf(t *testing.T, b []byte) (resident, flags string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	at, isIn := uint64(uintptr(unsafe.Pointer(&b[0]))), false
	for line := range strings.Lines(string(text)) {
		var from, to uint64
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			isIn = from <= at && at < to
		}
		if name, value, ok := strings.Cut(line, ":"); ok && isIn && name == "Rss" {
			resident = strings.TrimSpace(value)
		} else if ok && isIn && name == "VmFlags" {
			return resident, value
		}
	}
	t.Fatalf("no mapping at %#x", at)
	return "", ""
}

// TestRoomIsThere: memory of the host is there before anything is copied, and no child that is forked
// meanwhile has it.
func TestRoomIsThere(t *testing.T) {
	m, err := Room(70 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	resident, flags := mappingOf(t, m.Bytes)
	if resident != "71680 kB" || !strings.Contains(flags, " dc") {
		t.Errorf("%s of 70 MiB are there, with flags%s; want dc, not copied by a fork", resident, flags)
	}
}

// TestRoomThatOthersTake: two processes whose memory leaves at a time see the same room first. Who finds that
// it is not there any more gives back what it has taken. Without, the kernel would end one of them.
func TestRoomThatOthersTake(t *testing.T) {
	looks := 0
	_, err := roomOf(200<<20, func() (hostmem.Room, error) {
		looks++
		if looks < 4 { // at all of it, and at two pieces
			return hostmem.Room{Bytes: 300 << 20, By: "the host"}, nil
		}
		return hostmem.Room{Bytes: 10 << 20, By: "the host"}, nil
	})
	want := "the host has not enough free memory: 200 MiB are to be copied, and the host has room for 138 MiB"
	if !errors.Is(err, ErrNoHostMemory) || err.Error() != want || looks != 4 {
		t.Errorf("%v after %d looks, want %s", err, looks, want)
	}
}
