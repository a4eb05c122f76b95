package slotfile

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"gpumem/internal/ofd"
)

var errDamaged = errors.New("damaged")

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open makes a file of a page and opens it.
func open(t *testing.T, guest bool) *File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(path, make([]byte, 4096), 0o600))
	l := &Layout{Prefix: "thing ", Size: 4096, FileByte: 1 << 40, SlotByte: 1<<40 + 1, Damaged: errDamaged, Guest: guest}
	f, err := l.Open(path, true)
	must(t, err)
	return f
}

// TestReopenedFileHasLocksOfItsOwn refuses a Reopen that duplicates the descriptor: both
// would have one description, and no slot would ever be another's.
func TestReopenedFileHasLocksOfItsOwn(t *testing.T) {
	f := open(t, false)
	must(t, os.Remove(f.Path)) // its name is not needed
	again, err := f.Reopen()
	must(t, err)
	must(t, f.SlotLock(3).Try(ofd.Write))
	if err := again.SlotLock(3).Try(ofd.Write); !ofd.Taken(err) {
		t.Errorf("another description takes the slot: %v", err)
	}
	if alive, err := again.IsSlotAlive(3); !alive || err != nil {
		t.Errorf("slot 3: %t, %v", alive, err)
	}
	if alive, err := again.IsSlotAlive(4); alive || err != nil {
		t.Errorf("slot 4: %t, %v", alive, err)
	}
	must(t, f.Close())
	if alive, err := again.IsSlotAlive(3); alive || err != nil {
		t.Errorf("after the end of its process slot 3: %t, %v", alive, err)
	}
	must(t, again.Close())
}

// TestFileWithAnotherName refuses a Reattach that takes whatever has the file's name.
func TestFileWithAnotherName(t *testing.T) {
	f := open(t, true)
	if f.Descriptor() < 100 {
		t.Errorf("the descriptor of a guest is %d", f.Descriptor())
	}
	must(t, syscall.Close(f.Descriptor()))
	if err := f.Check(); !errors.Is(err, ErrLost) {
		t.Errorf("check: %v", err)
	}
	must(t, f.Reattach())
	must(t, syscall.Close(f.Descriptor()))
	must(t, os.Rename(f.Path, f.Path+"2"))
	must(t, os.WriteFile(f.Path, make([]byte, 4096), 0o600))
	if err := f.Reattach(); !errors.Is(err, errDamaged) {
		t.Errorf("another file is taken: %v", err)
	}
	must(t, f.Close())
}

// TestFileCutShortWhileMapped refuses a Guard that lets the fault end the program.
func TestFileCutShortWhileMapped(t *testing.T) {
	f := open(t, false)
	img, err := Map[[4096]byte](f)
	must(t, err)
	must(t, os.Truncate(f.Path, 0))
	if err := f.Guard(func() error { img[5] = 1; return nil }); !errors.Is(err, errDamaged) {
		t.Errorf("store: %v", err)
	}
	if err := f.Check(); !errors.Is(err, errDamaged) {
		t.Errorf("check: %v", err)
	}
	must(t, f.Close())
}
