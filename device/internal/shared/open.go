package shared

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"gpumem/internal/crashpoint"
	"gpumem/internal/ofd"
	"gpumem/internal/procstat"
	"gpumem/internal/slotfile"
)

// Opening a file: the header is checked, the file is mapped, a slot is taken.
//
// A slot is filled before it is marked, and marked last, so that a process killed in
// between leaves a slot that is not counted:
//
//	lock its byte   killed here: the kernel unlocks it
//	held = 0        what a dead process held here is in no sum, as recount went before
//	pid ... check   killed here: not marked
//	mark            from here on it counts

// Open takes a slot of the file at path, which [Create] made. It fails with
// ErrDamaged or ErrVersion for a file that is not as it should be, ErrFull if
// all slots are in use, and ErrLocked.
func Open(path string) (*File, error) {
	h, err := open(path, true)
	if err != nil {
		return nil, err
	}
	crashpoint.At("opened")
	f := &File{pid: uint64(os.Getpid()), h: h}
	if f.h.img, err = slotfile.Map[image](h.File); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	self := procstat.Self()
	if err := f.exclusive(time.Time{}, func() error { return f.attach(nameOf(self), self.Start) }); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// open opens a file and checks what never changes of it. An error says how to make such
// a file, since most are about one that was never made.
func open(path string, write bool) (h handle, err error) {
	h.own = -1
	h.File, err = layout.Open(path, write)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return h, h.Errorf("%w; make it: gpumem devices --device sim@%s,total=24GiB,create", err, path)
	case errors.Is(err, os.ErrPermission):
		return h, h.Errorf("%w; it belongs to another user, who may open it to others (chmod a+rw)", err)
	case err == syscall.EISDIR || err == syscall.ENXIO:
		return h, h.Errorf("%w; name a file that gpumem devices made", err)
	case err == slotfile.ErrNotRegular:
		return h, h.Errorf("%w; name one that gpumem devices made", err)
	case errors.Is(err, errors.ErrUnsupported):
		return h, h.Errorf("%w; use a private GPU, such as sim:80GiB", err)
	case err != nil:
		return h, h.Errorf("cannot open the file: %w", err)
	}
	if h.devs, err = h.header(); err != nil {
		return h, errors.Join(err, h.Close())
	}
	return h, nil
}

// header reads and checks what never changes. It reads the file rather than mapping it:
// a page of a mapping could be missing.
func (h *handle) header() ([]Descriptor, error) {
	var f fixed
	n, err := h.ReadAt(slotfile.Bytes(&f), 0)
	if err != nil {
		return nil, h.Errorf("cannot read the file: %w", err)
	}
	if n < int(unsafe.Offsetof(f.size)) || string(f.magic[:]) != magic {
		return nil, h.Errorf("not a shared GPU, or no more than a piece of one; name a file that was made by gpumem devices --device sim@FILE,total=24GiB,create")
	}
	devs, err := f.decode(h.Length)
	if err != nil {
		return nil, h.Errorf("%w", err)
	}
	return devs, nil
}

// attach takes a slot for this process: the first that is neither marked nor locked.
// Caller holds the lock of the file. The recount before it makes room of dead processes.
func (f *File) attach(name string, started uint64) error {
	h := &f.h
	if _, err := f.recount(); err != nil {
		return err
	}
	crashpoint.At("attach: counted")
	for dev := range h.devs {
		var err error
		if h.devs[dev].Used, err = h.others(dev); err != nil {
			return err
		}
	}
	number := -1
	for i := range MaxProcesses {
		if h.img.state.marked(i) {
			continue
		}
		// Whoever leaves gives up his lock without the lock of the file, and
		// marks are cleared of slots whose lock is gone. So that of one not
		// marked is free, but for a child that was forked and has it still.
		err := h.SlotLock(i).Try(ofd.Write)
		if err == nil {
			number = i
			break
		}
		if !ofd.Taken(err) {
			return h.Errorf("cannot lock slot %d: %w", i, err)
		}
	}
	if number < 0 {
		return h.Errorf("%w: all %d slots are in use; end some of them (gpumem devices lists who holds memory)", ErrFull, MaxProcesses)
	}
	h.own = number
	crashpoint.At("attach: slot locked")
	s := &h.img.slots[number]
	for dev := range s.held {
		s.held[dev].Store(pack(0))
	}
	crashpoint.At("attach: nothing held")
	s.pid = f.pid
	s.start = started
	s.name = [maxComm]byte{}
	copy(s.name[:], name)
	s.check = s.checksum(number)
	crashpoint.At("attach: filled")
	m := &h.img.state.marks[number/64]
	m.Store(m.Load() | 1<<(number%64))
	crashpoint.At("attach: marked")
	return nil
}

// nameOf returns a process's name as the kernel has it, quoted if it is not printable.
func nameOf(self procstat.Stat) string {
	name := cmp.Or(self.Name, filepath.Base(os.Args[0])) // where there is no /proc
	if !printable(name) {
		name = strconv.QuoteToASCII(name)
	}
	return name
}
