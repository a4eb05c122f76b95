// The file: made, opened, read, written and locked. It is mapped, too, but only to keep what
// a program cannot close: no load or store goes there, as one to a file that another process
// cuts short would be the end of the program.

package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"gpumem/internal/crashpoint"
	"gpumem/internal/ofd"
	"gpumem/internal/slotfile"
)

// layout is that of all ledgers, and turnsLayout that of those by turns.
var layout, turnsLayout = layoutOf(fileBytes), layoutOf(BytesByTurns)

func layoutOf(bytes int) *slotfile.Layout {
	return &slotfile.Layout{
		Prefix: "ledger ", Size: bytes, FileByte: lockByte, SlotByte: slotByte, Damaged: ErrDamaged, Guest: true,
	}
}

// writtenByRest are the permissions of others than the file's user to write to it.
const writtenByRest = 0o022

// file is an open ledger.
type file struct {
	*slotfile.File
	header Header // its limit changes in a ledger by turns, with each view
}

// Create makes a ledger for its user alone (mode 0600), or for all who find it (0666,
// whatever the umask) if it is Shared. It overwrites nothing:
// errors.Is(err, fs.ErrExist) reports true if something is there. A process that is
// killed in here may leave a file that Open refuses.
func Create(path string, h Header) error {
	err := errors.Join(slotfile.Supported(), h.check())
	if err == nil && !littleEndian() {
		err = fmt.Errorf("%w: this machine is not little endian", errors.ErrUnsupported)
	}
	if err != nil {
		return layout.Errorf(path, "%w", err)
	}
	img := &image{limit: h.Limit, total: h.Total, number: Slots}
	copy(img.uuid[:], h.UUID)
	if h.Shared {
		img.flags |= sharedFlag
	}
	all := slotfile.Bytes(img)
	if h.Turns {
		img.flags |= turnsFlag
		all = append(all, make([]byte, BytesByTurns-fileBytes)...)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	// All of it is written, so that no later write lacks room, and the magic last.
	_, err = f.Write(all)
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

// open opens the ledger at path, of a user or [regular.Anyone], for reading.
func open(path string, owner int) (*file, error) {
	f, err := layout.OpenOf(path, owner)
	if err != nil {
		return nil, f.Errorf("%w", err)
	}
	return mapped(f)
}

// mapped checks the header of an open file, and maps it. It closes the file if that
// fails.
func mapped(of *slotfile.File) (f *file, err error) {
	if of.Length == BytesByTurns {
		of.Layout = turnsLayout
	}
	f = &file{File: of}
	if err = f.readHeader(); err == nil {
		_, err = slotfile.Map[image](of)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// readHeader reads and checks the header, of which the limit of a ledger by turns may change later.
func (f *file) readHeader() error {
	if err := f.Check(); err != nil {
		return err
	}
	head := make([]byte, unsafe.Offsetof(image{}.uuid)+uuidBytes)
	n, err := f.ReadAt(head, 0)
	if err != nil || n < len(head) {
		return f.Errorf("cannot read the file: %d of %d bytes, %w", n, len(head), errors.Join(err, ErrDamaged))
	}
	if string(head[:len(magic)]) != magic || !littleEndian() {
		return f.Errorf("not a ledger of this version and machine")
	}
	word := binary.LittleEndian
	if number := word.Uint32(head[unsafe.Offsetof(image{}.number):]); number != Slots {
		return f.Errorf("%d slots and not %d: %w", number, Slots, ErrDamaged)
	}
	uuid, rest, _ := bytes.Cut(head[unsafe.Offsetof(image{}.uuid):], []byte{0})
	at := func(offset uintptr) uint64 { return word.Uint64(head[offset:]) }
	flags := at(unsafe.Offsetof(image{}.flags))
	f.header = Header{
		UUID: string(uuid), Limit: at(unsafe.Offsetof(image{}.limit)), Total: at(unsafe.Offsetof(image{}.total)),
		Shared: flags&sharedFlag != 0, Turns: flags&turnsFlag != 0,
	}
	if f.Mode&writtenByRest != 0 && !f.header.Shared {
		return f.Errorf("other users may write to it (mode %04o); a ledger that is not made for several users is its user's alone", f.Mode)
	}
	if flags&^(sharedFlag|turnsFlag) != 0 {
		return f.Errorf("it has flags %#x, which this version does not know: %w", flags, ErrDamaged)
	}
	if want := layoutFor(f.header.Turns).Size; f.Size != want {
		return f.Errorf("%d bytes and not %d: %w", f.Size, want, ErrDamaged)
	}
	if err := f.header.check(); err != nil || len(bytes.Trim(rest, "\x00")) > 0 {
		return f.Errorf("its header makes no sense (%v): %w", err, ErrDamaged)
	}
	return nil
}

// layoutFor returns the layout of a ledger, by turns or not.
func layoutFor(turns bool) *slotfile.Layout {
	if turns {
		return turnsLayout
	}
	return layout
}

// locked calls op with the lock of the ledger held. Callers of one description take
// turns by themselves.
func (f *file) locked(op func() error) error {
	if err := f.FileLock().Wait(ofd.Write); err != nil {
		return f.Errorf("cannot lock the ledger: %w", err)
	}
	defer func() { _ = f.FileLock().Unlock() }()
	return op()
}

// few is how many slots are read at a time. The lowest free one is taken, so those beyond
// are in use only if so many processes live.
const few = 32

// images are for read, as one is large.
var images = sync.Pool{New: func() any { return new(image) }}

// view calls op with a copy of the slots: all that living processes have, own, which may be
// -1, among them.
func (f *file) view(own int, op func(slots []slot) error) error {
	return f.viewOf(f.slotsInUse(own), op)
}

// slotsInUse returns how many slots there are up to the last one that is in use, or more.
func (f *file) slotsInUse(own int) int {
	beyond := f.SlotLock(few)
	beyond.Len = Slots - few
	if _, busy, err := beyond.Other(ofd.Write); busy || err != nil || own >= few {
		return Slots
	}
	return few
}

// viewOf is view of the first n slots. The limit of a ledger by turns is read with them.
func (f *file) viewOf(n int, op func(slots []slot) error) error {
	from := slotsAt
	if f.header.Turns {
		from = 0
	}
	img := images.Get().(*image)
	defer images.Put(img)
	if err := f.readAll(slotfile.Bytes(img)[from:slotsAt+n*slotBytes], int64(from)); err != nil {
		return err
	}
	if f.header.Turns {
		if err := f.setLimit(img.limit); err != nil {
			return err
		}
	}
	return op(img.slots[:n])
}

// readAll is ReadAt, where fewer bytes are an error.
func (f *file) readAll(b []byte, from int64) error {
	if n, err := f.ReadAt(b, from); err != nil || n < len(b) {
		return f.Errorf("%d of %d bytes can be read at byte %d: %w", n, len(b), from, errors.Join(err, ErrDamaged))
	}
	return nil
}

// write stores slot i.
func (f *file) write(i int, s *slot) error {
	return f.store(slotfile.Bytes(s), slotsAt+int64(i)*slotBytes)
}

// store writes what others see at once.
func (f *file) store(b []byte, at int64) error {
	err := f.WriteAt(b, at)
	crashpoint.At("ledger: written")
	return err
}

// announcement is the words of the file's header that change.
type announcement struct {
	wanted                       uint32
	_                            uint32
	bytes, refusals, lastRefused uint64
}

const announcementAt = int64(unsafe.Offsetof(image{}.wanted))

func (f *file) announcement() (a announcement, err error) {
	err = f.readAll(slotfile.Bytes(&a), announcementAt)
	return a, err
}

// announce changes the announcement. Caller holds the lock of the ledger.
func (f *file) announce(change func(a *announcement)) error {
	a, err := f.announcement()
	if err != nil {
		return err
	}
	change(&a)
	return f.store(slotfile.Bytes(&a), announcementAt)
}

// isAlive reports whether another description has the lock of a slot. It has where the
// kernel does not say.
func (f *file) isAlive(i int) bool {
	alive, err := f.IsSlotAlive(i)
	return alive || err != nil
}

// sum returns what counts against the limit in the slots of a part, dead ones too; part 0
// is all of them.
func (f *file) sum(slots []slot, part uint64) (sum uint64, err error) {
	for i := range slots {
		s := &slots[i]
		if s.pid.Load() == 0 || !s.within(part) {
			continue
		}
		for k := range kinds {
			n := s.word(k).Load()
			if n > most {
				return 0, f.Errorf("slot %d: %d bytes %v: %w", i, n, k, ErrDamaged)
			}
			sum += n
		}
	}
	return sum, nil
}

// members returns those slots that are of processes that live. own is the caller's slot, or
// -1. It takes no lock: a slot is locked before its pid is stored. Part 0 is all of them.
func (f *file) members(slots []slot, own int, part uint64) []Figures {
	var list []Figures
	for i := range slots {
		s := &slots[i]
		if !s.within(part) {
			continue
		}
		if g, ok := f.member(s, i, own); ok {
			list = append(list, g)
		}
	}
	return list
}

// member returns what slot i has. ok is false if its process does not live, or the slot is
// damaged.
func (f *file) member(s *slot, i, own int) (g Figures, ok bool) {
	if s.pid.Load() == 0 || i != own && !f.isAlive(i) {
		return g, false
	}
	g = s.figures()
	return g, max(g.Held, g.Charged, g.Outside) <= most
}

// clearDead frees those slots that are of dead processes. Caller holds the lock of the
// ledger.
func (f *file) clearDead(slots []slot, own int) error {
	for i := range slots {
		s := &slots[i]
		if s.pid.Load() != 0 && i != own && !f.isAlive(i) {
			s.clear()
			if err := errors.Join(f.clearTurn(i), f.write(i, s)); err != nil {
				return err
			}
		}
	}
	return nil
}
