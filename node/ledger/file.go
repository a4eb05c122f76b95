//go:build linux

// The file: made, opened, mapped and locked.

package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"
	"unsafe"
)

const (
	// Of Linux's fcntl.h, the same on every architecture. Package syscall lacks them.
	ofdGetlk      = 36
	ofdSetlk      = 37
	ofdSetlkw     = 38
	dupfdCloexec  = 1030
	dontFork      = 10   // MADV_DONTFORK
	firstHigh     = 1000 // descriptors are moved up to here, away from the program's own
	openFlags     = syscall.O_RDWR | syscall.O_CLOEXEC | syscall.O_NOFOLLOW | syscall.O_NONBLOCK | syscall.O_NOCTTY
	writtenByRest = 0o022
)

// file is an open ledger.
type file struct {
	path     string
	header   Header
	fd       int
	dev, ino uint64
	data     []byte // the mapping, which img is
	img      *image
}

func failed(path, format string, args ...any) error {
	return fmt.Errorf("ledger %s: "+format, append([]any{path}, args...)...)
}

func (f *file) errorf(format string, args ...any) error { return failed(f.path, format, args...) }

// Create makes a ledger for its user alone (mode 0600), or for all who find it (0666,
// whatever the umask) if it is Shared. It overwrites nothing:
// errors.Is(err, fs.ErrExist) reports true if something is there. A process that is
// killed in here may leave a file that Open refuses.
func Create(path string, h Header) error {
	if err := h.check(); err != nil {
		return failed(path, "%w", err)
	}
	if !littleEndian() {
		return failed(path, "%w: this machine is not little endian", errors.ErrUnsupported)
	}
	img := &image{limit: h.Limit, total: h.Total, number: Slots}
	copy(img.uuid[:], h.UUID)
	if h.Shared {
		img.flags = sharedFlag
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	// All of it is written, so that no store to the mapping lacks room later, and the
	// magic last.
	_, err = f.Write(bytesOf(img))
	if err == nil && h.Shared {
		err = f.Chmod(0o666)
	}
	if err == nil {
		_, err = f.WriteAt([]byte(magic), 0)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("ledger: %w", err), os.Remove(path))
	}
	return nil
}

func littleEndian() bool { return binary.NativeEndian.Uint16([]byte{1, 0}) == 1 }

// open opens the ledger at path and checks what never changes. With a file it must be
// the same one.
func open(path string, same *file) (*file, error) {
	f := &file{path: path, fd: -1}
	names := []string{path}
	if same != nil { // its name may be gone
		names = []string{fmt.Sprintf("/proc/self/fd/%d", same.fd), path}
	}
	var err error
	for i, name := range names {
		flags := openFlags
		if i < len(names)-1 {
			flags &^= syscall.O_NOFOLLOW // for the link in /proc
		}
		for f.fd, err = -1, syscall.EINTR; err == syscall.EINTR; {
			f.fd, err = syscall.Open(name, flags, 0)
		}
		if err == nil {
			if err = f.read(); err == nil && (same == nil || f.dev == same.dev && f.ino == same.ino) {
				break
			}
			syscall.Close(f.fd)
			if err == nil {
				err = f.errorf("another file has its name: %w", ErrDamaged)
			}
			continue
		}
		err = f.errorf("%w", err)
	}
	if err != nil {
		return nil, err
	}
	f.moveUp()
	if f.data, err = syscall.Mmap(f.fd, 0, fileBytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED); err != nil {
		syscall.Close(f.fd)
		return nil, f.errorf("cannot map the file: %w", err)
	}
	f.img = (*image)(unsafe.Pointer(&f.data[0]))
	if err = syscall.Madvise(f.data, dontFork); err != nil { // see Forget
		return nil, errors.Join(f.errorf("cannot keep the mapping from children: %w", err), f.close())
	}
	return f, nil
}

// moveUp gives the descriptor a high number, where that is allowed.
func (f *file) moveUp() {
	for from := firstHigh; from > f.fd; from /= 2 {
		fd, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(f.fd), dupfdCloexec, uintptr(from))
		if errno == 0 {
			syscall.Close(f.fd)
			f.fd = int(fd)
			return
		}
	}
}

// read reads and checks what never changes.
func (f *file) read() error {
	var st syscall.Stat_t
	if err := syscall.Fstat(f.fd, &st); err != nil {
		return f.errorf("cannot stat the file: %w", err)
	}
	if err := f.whole(&st); err != nil {
		return err
	}
	f.dev, f.ino = st.Dev, st.Ino
	head := make([]byte, unsafe.Offsetof(image{}.uuid)+uuidBytes)
	n, err := syscall.Pread(f.fd, head, 0)
	if err != nil || n < len(head) {
		return f.errorf("cannot read the file: %d of %d bytes, %w", n, len(head), errors.Join(err, ErrDamaged))
	}
	if string(head[:len(magic)]) != magic || !littleEndian() {
		return f.errorf("not a ledger of this version and machine")
	}
	word := binary.LittleEndian
	if number := word.Uint32(head[unsafe.Offsetof(image{}.number):]); number != Slots {
		return f.errorf("%d slots and not %d: %w", number, Slots, ErrDamaged)
	}
	uuid, rest, _ := bytes.Cut(head[unsafe.Offsetof(image{}.uuid):], []byte{0})
	at := func(offset uintptr) uint64 { return word.Uint64(head[offset:]) }
	flags := at(unsafe.Offsetof(image{}.flags))
	f.header = Header{UUID: string(uuid), Limit: at(unsafe.Offsetof(image{}.limit)), Total: at(unsafe.Offsetof(image{}.total)), Shared: flags&sharedFlag != 0}
	if st.Mode&writtenByRest != 0 && !f.header.Shared {
		return f.errorf("other users may write to it (mode %04o); a ledger that is not made for several users is its user's alone", st.Mode&0o7777)
	}
	if flags&^sharedFlag != 0 {
		return f.errorf("it has flags %#x, which this version does not know: %w", flags, ErrDamaged)
	}
	if err := f.header.check(); err != nil || len(bytes.Trim(rest, "\x00")) > 0 {
		return f.errorf("its header makes no sense (%v): %w", err, ErrDamaged)
	}
	return nil
}

// whole reports what is wrong with the file that a descriptor is open on.
func (f *file) whole(st *syscall.Stat_t) error {
	switch {
	case st.Mode&syscall.S_IFMT != syscall.S_IFREG:
		return f.errorf("not a regular file")
	case st.Size != fileBytes:
		return f.errorf("%d bytes and not %d: %w", st.Size, fileBytes, ErrDamaged)
	}
	return nil
}

// errLost is the error of a descriptor that is not the ledger's any more: the program
// has closed all of its own, and perhaps opened another with this number.
var errLost = errors.New("the program has closed the ledger's descriptor")

// check reports whether the descriptor is still this file's and the file is whole.
func (f *file) check() error {
	var st syscall.Stat_t
	if err := syscall.Fstat(f.fd, &st); err != nil || st.Dev != f.dev || st.Ino != f.ino {
		return f.errorf("%w", errLost)
	}
	return f.whole(&st)
}

// guarded calls op, and turns a fault in the mapping into an error.
func (f *file) guarded(op func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		start := uintptr(unsafe.Pointer(f.img))
		if e, ok := r.(interface{ Addr() uintptr }); ok && e.Addr()-start < fileBytes {
			err = f.errorf("byte %d is not there any more: %w", e.Addr()-start, ErrDamaged)
			return
		}
		panic(r)
	}()
	return op()
}

// close ends the use of the file. A descriptor that is not the file's any more is left
// alone.
func (f *file) close() error {
	own := !errors.Is(f.check(), errLost)
	err := syscall.Munmap(f.data)
	f.img, f.data = nil, nil
	if own {
		err = errors.Join(err, syscall.Close(f.fd))
	}
	if err != nil {
		return f.errorf("cannot close the file: %w", err)
	}
	return nil
}

func (f *file) fcntl(command int, l *syscall.Flock_t) error {
	for {
		if err := syscall.FcntlFlock(uintptr(f.fd), command, l); err != syscall.EINTR {
			return err
		}
	}
}

// locked calls op with the lock of the ledger held. Callers of one description take
// turns by themselves.
func (f *file) locked(op func() error) error {
	if err := f.fcntl(ofdSetlkw, &syscall.Flock_t{Type: syscall.F_WRLCK, Start: lockByte, Len: 1}); err != nil {
		return f.errorf("cannot lock the ledger: %w", err)
	}
	defer f.unlock()
	at("locked")
	return op()
}

// tryLock takes the lock of the ledger if no other process has it.
func (f *file) tryLock() bool {
	return f.fcntl(ofdSetlk, &syscall.Flock_t{Type: syscall.F_WRLCK, Start: lockByte, Len: 1}) == nil
}

func (f *file) unlock() {
	_ = f.fcntl(ofdSetlk, &syscall.Flock_t{Type: syscall.F_UNLCK, Start: lockByte, Len: 1})
	at("unlocked")
}

// lockSlot takes the lock of a slot if no other description has it.
func (f *file) lockSlot(i int) bool {
	return f.fcntl(ofdSetlk, &syscall.Flock_t{Type: syscall.F_WRLCK, Start: slotByte + int64(i), Len: 1}) == nil
}

// alive reports whether another description has the lock of a slot. It has where the
// kernel does not say.
func (f *file) alive(i int) bool {
	l := syscall.Flock_t{Type: syscall.F_WRLCK, Start: slotByte + int64(i), Len: 1}
	return f.fcntl(ofdGetlk, &l) != nil || l.Type != syscall.F_UNLCK
}

// sum returns what counts against the limit in all slots of a part, dead ones too; part 0
// is all of them.
func (f *file) sum(part uint64) (sum uint64, err error) {
	for i := range f.img.slots {
		s := &f.img.slots[i]
		if s.pid.Load() == 0 || !s.within(part) {
			continue
		}
		for k := range kinds {
			n := s.word(k).Load()
			if n > most {
				return 0, f.errorf("slot %d: %d bytes %v: %w", i, n, k, ErrDamaged)
			}
			sum += n
		}
	}
	return sum, nil
}

// members returns the slots of processes that live. own is the caller's slot, or -1. It
// takes no lock: a slot is locked before its pid is stored. Part 0 is all of them.
func (f *file) members(own int, part uint64) []Figures {
	var list []Figures
	for i := range f.img.slots {
		s := &f.img.slots[i]
		if s.pid.Load() == 0 || !s.within(part) || i != own && !f.alive(i) {
			continue
		}
		g := s.figures()
		if g.PID == 0 || max(g.Held, g.Charged, g.Outside) > most { // left meanwhile, or damaged
			continue
		}
		list = append(list, g)
	}
	return list
}

// clearDead frees the slots of dead processes. Caller holds the lock of the ledger.
func (f *file) clearDead(own int) {
	for i := range f.img.slots {
		s := &f.img.slots[i]
		if s.pid.Load() != 0 && i != own && !f.alive(i) {
			s.clear()
			at("cleared")
		}
	}
}

// crash, in the children of tests, is called after steps that another process could
// see, with their names.
var crash func(step string)

func at(step string) {
	if crash != nil {
		crash(step)
	}
}
