//go:build linux

package shared

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
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
	h, err := open(path, syscall.O_RDWR)
	if err != nil {
		return nil, err
	}
	at("opened")
	f := &File{pid: uint64(os.Getpid()), h: h}
	if f.data, err = syscall.Mmap(h.fd, 0, fileSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED); err != nil {
		syscall.Close(h.fd)
		return nil, h.errorf("cannot map the file: %w", err)
	}
	f.h.img = (*image)(unsafe.Pointer(&f.data[0]))
	name, started := comm(), startTime()
	if err := f.exclusive(time.Time{}, func() error { return f.attach(name, started) }); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// open opens a file and checks what never changes of it. An error says how to make such
// a file, since most are about one that was never made.
func open(path string, flags int) (handle, error) {
	h := handle{path: path, own: -1}
	var err error
	// O_NONBLOCK: a FIFO does not wait for its other end.
	for h.fd, err = -1, syscall.EINTR; err == syscall.EINTR; {
		h.fd, err = syscall.Open(path, flags|syscall.O_CLOEXEC|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		return h, h.errorf("%w; make it: gpumem devices --device sim@%s,total=24GiB,create", err, path)
	case errors.Is(err, os.ErrPermission):
		return h, h.errorf("%w; it belongs to another user, who may open it to others (chmod a+rw)", err)
	case err == syscall.EISDIR || err == syscall.ENXIO:
		return h, h.errorf("%w; name a file that gpumem devices made", err)
	case err != nil:
		return h, h.errorf("cannot open the file: %w", err)
	}
	if h.devs, err = h.header(); err != nil {
		syscall.Close(h.fd)
		return h, err
	}
	return h, nil
}

// header reads and checks what never changes. It reads the file rather than mapping it:
// a page of a mapping could be missing.
func (h *handle) header() ([]Descriptor, error) {
	length, err := h.size()
	if err != nil {
		return nil, err
	}
	var f fixed
	n, err := pread(h.fd, bytesOf(&f), 0)
	if err != nil {
		return nil, h.errorf("cannot read the file: %w", err)
	}
	if n < int(unsafe.Offsetof(f.size)) || string(f.magic[:]) != magic {
		return nil, h.errorf("not a shared GPU, or no more than a piece of one; name a file that was made by gpumem devices --device sim@FILE,total=24GiB,create")
	}
	devs, err := f.decode(length)
	if err != nil {
		return nil, h.errorf("%w", err)
	}
	return devs, nil
}

// size returns how long the file is now, in bytes.
func (h *handle) size() (int64, error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(h.fd, &st); err != nil {
		return 0, h.errorf("cannot stat the file: %w", err)
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return 0, h.errorf("not a regular file; name one that gpumem devices made")
	}
	return st.Size, nil
}

// pread reads until b is full or the file ends, and returns how many bytes it read.
func pread(fd int, b []byte, from int64) (n int, err error) {
	for n < len(b) {
		got, err := syscall.Pread(fd, b[n:], from+int64(n))
		if err == syscall.EINTR {
			continue
		}
		if err != nil || got == 0 {
			return n, err
		}
		n += got
	}
	return n, nil
}

// attach takes a slot for this process: the first that is neither marked nor locked.
// Caller holds the lock of the file. The recount before it makes room of dead processes.
func (f *File) attach(name string, started uint64) error {
	h := &f.h
	if _, err := f.recount(); err != nil {
		return err
	}
	at("attach: counted")
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
		err := setLock(h.fd, syscall.F_WRLCK, slotByte+int64(i), 1)
		if err == nil {
			number = i
			break
		}
		if !taken(err) {
			return h.errorf("cannot lock slot %d: %w", i, err)
		}
	}
	if number < 0 {
		return h.errorf("%w: all %d slots are in use; end some of them (gpumem devices lists who holds memory)", ErrFull, MaxProcesses)
	}
	h.own = number
	at("attach: slot locked")
	s := &h.img.slots[number]
	for dev := range s.held {
		s.held[dev].Store(pack(0))
	}
	at("attach: nothing held")
	s.pid = f.pid
	s.start = started
	s.name = [maxComm]byte{}
	copy(s.name[:], name)
	s.check = s.checksum(number)
	at("attach: filled")
	m := &h.img.state.marks[number/64]
	m.Store(m.Load() | 1<<(number%64))
	at("attach: marked")
	return nil
}

// comm returns this process's name as the kernel has it, quoted if it is not printable.
func comm() string {
	b, err := os.ReadFile("/proc/self/comm")
	if err != nil { // no /proc
		b = []byte(filepath.Base(os.Args[0]))
	}
	name := strings.TrimSuffix(string(b), "\n")
	if !printable(name) {
		name = strconv.QuoteToASCII(name)
	}
	return name
}

// startTime returns when this process was started, in the kernel's ticks since boot;
// 0 if it is unknown. With the pid it identifies a process that has several slots.
func startTime() uint64 {
	b, _ := os.ReadFile("/proc/self/stat")
	// The 22nd field. The 2nd is the name, in brackets, and may have blanks.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 {
		return 0
	}
	n, _ := strconv.ParseUint(string(fields[19]), 10, 64)
	return n
}
