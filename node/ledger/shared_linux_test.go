package ledger

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestSharedIsForSeveralUsers: others may write to a ledger that is made for that,
// whatever the umask, and to no other.
func TestSharedIsForSeveralUsers(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	path := filepath.Join(t.TempDir(), "ledger")
	must(t, Create(path, Header{UUID: "GPU-1", Limit: 100, Total: 1000, Shared: true}))
	info, err := os.Stat(path)
	must(t, err)
	if info.Mode() != 0o666 {
		t.Errorf("its mode is %v", info.Mode())
	}
	l := openLedger(t, path)
	if !l.Header().Shared {
		t.Errorf("%+v", l.Header())
	}
	m := join(t, l)
	must(t, m.Take(Held, 100))

	own := makeLedger(t)
	if l := openLedger(t, own); l.Header().Shared {
		t.Errorf("%+v", l.Header())
	}
	must(t, os.Chmod(own, 0o666))
	if _, err := Open(own); err == nil || !strings.Contains(err.Error(), "other users may write to it (mode 0666)") {
		t.Errorf("a ledger of one user with mode 0666: %v", err)
	}
}

// TestUnknownFlagIsRefused: what a later version means by it is not known here.
func TestUnknownFlagIsRefused(t *testing.T) {
	path := makeLedger(t)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt([]byte{4}, 56)
	must(t, errors.Join(err, f.Close()))
	if _, err := Open(path); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "flags 0x4") {
		t.Error(err)
	}
}

// TestRefusals: what programs were refused is counted, by all processes, and stays after
// they have left. What Take refuses is not: there may be something to release.
func TestRefusals(t *testing.T) {
	path := makeLedger(t)
	l := openLedger(t, path)
	check := func(n, last uint64) {
		t.Helper()
		if a, b := l.Refusals(); a != n || b != last {
			t.Errorf("%d refusals, the last of %d bytes; want %d and %d", a, b, n, last)
		}
	}
	check(0, 0)
	m := join(t, l)
	must(t, m.Take(Held, 60))
	check(0, 0)
	if err := m.Take(Charged, 41); !errors.Is(err, ErrFull) {
		t.Error(err)
	}
	check(0, 0)
	m.Refuse(41)
	check(1, 41)
	part, err := l.Join(Part{ID: 7, Limit: 10})
	must(t, err)
	part.Refuse(11)
	check(2, 11)
	must(t, part.Leave())
	must(t, m.Leave())
	check(2, 11)
	file, err := os.ReadFile(path)
	must(t, err)
	if n, last := binary.LittleEndian.Uint64(file[40:]), binary.LittleEndian.Uint64(file[48:]); n != 2 || last != 11 {
		t.Errorf("at 40 and 48: %d and %d", n, last)
	}
	again := openLedger(t, path) // a header with refusals is whole
	must(t, again.Close())
	if n, last := again.Refusals(); n != 0 || last != 0 {
		t.Errorf("after Close: %d, %d", n, last)
	}
}
