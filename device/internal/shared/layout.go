package shared

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math/bits"
	"strings"
	"sync/atomic"
	"unicode"
	"unicode/utf8"
	"unsafe"

	"gpumem/device"
	"gpumem/internal/slotfile"
	"gpumem/size"
)

// The layout of the file. Words are in the byte order of the machine that made it, which
// the header records; the structs have no padding.
//
// A word that may change is packed: the bytes shifted up by 8, and below them a check of
// 8 bits. 2 GiB, 0x80000000, are 0x80000000da: the bytes 0x80, 0, 0, 0 folded into one are
// 0x80, and with 0x5a, which keeps a word of zeros from being valid, 0xda. A file that is
// overwritten with anything else is so noticed at the first word read, 255 times of 256.
//
// What must never change between versions: magic, order and version, in this order, at
// the beginning, so that each version can say what is wrong with a file of another.

const (
	magic = "gpumemS\n"
	// order reads otherwise on a machine of the other byte order.
	order = 0x0102030405060708
	// version counts the layouts. magic, order and version stay where they are
	// in all of them.
	version = 3

	fileSize = int(unsafe.Sizeof(image{}))

	maxName = 128 // of a device, in bytes
	maxMIG  = 64  // of a slice
	maxComm = 32  // of a process; the kernel's names have 15
)

// image is the whole file, as it is mapped, or as Look reads it.
type image struct {
	fixed fixed
	want  want // fills up a cache line
	times [MaxDevices][Engines]engine
	state state
	slots [MaxProcesses]slot
}

// fixed never changes, so it may be read without the lock.
type fixed struct {
	magic   [8]byte
	order   uint64
	version uint64
	size    uint64 // of the file, in bytes
	count   uint64 // of devices
	devices [MaxDevices]descriptor
	sum     uint64 // CRC-32C of all before it
}

// descriptor is a Descriptor without Used. Texts end at the first zero byte or
// with their field. beyond was unused and 0 before: a program that does not know it
// calls a file damaged in which more than the total is held.
type descriptor struct {
	total, granularity, display, context uint64
	ccMajor, ccMinor                     uint32
	flags                                uint64
	host                                 uint64
	name                                 [maxName]byte
	mig                                  [maxMIG]byte
	beyond                               uint64
}

// The bits of descriptor.flags. An unknown one is damage rather than ignored: a device
// without some group of calls must not look as if it had them.
const (
	flagNoPages = 1 << iota
	flagNoPools
	flagUnified
	flagNoManaged
	flagsKnown = 1<<iota - 1
)

// want is the last announcement of a process that waits for memory. It is written
// without the lock: a reader that sees half of one, or misses one, is off by one
// announcement, and a process that waits announces again.
type want struct {
	number atomic.Uint64 // counts the announcements; below it, in the last 8 bits, the device's index
	bytes  atomic.Uint64
}

// engine is the time of one engine of a device, see Occupy. It is written without the lock: one store moves
// the end, and a process that is killed after it has used the engine until then at most.
type engine struct {
	end  atomic.Uint64 // when the work that it was given is done, in nanoseconds of a clock that all processes read
	busy atomic.Uint64 // nanoseconds of work that it was given so far
}

// state is common to all slots. Guarded by the lock of the file, as the slots
// are; sums are packed. All words are atomic, though the lock orders them: a process that
// was killed must have stored a word or not, never half of it, and the compiler must keep
// the order of the stores.
type state struct {
	holder atomic.Uint64                    // pid of who has the lock; 0 for one that only looks
	dirty  atomic.Uint64                    // not 0: used does not count
	used   [MaxDevices]atomic.Uint64        // what the marked slots hold, dead ones too
	others [MaxDevices]atomic.Uint64        // what others hold that are no slots
	marks  [MaxProcesses / 64]atomic.Uint64 // a bit for each slot in use; slot 0 is bit 0 of word 0
}

// slot is one process. pid, start, name and check are written before the slot
// is marked and do not change while it is.
type slot struct {
	pid   uint64
	start uint64 // when the process was started, in the kernel's ticks since boot; 0: not known
	name  [maxComm]byte
	check uint64                    // CRC-32C of all before it, above it the slot's number
	held  [MaxDevices]atomic.Uint64 // packed; that of this process alone
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum is that of all before sum.
func (f *fixed) checksum() uint64 {
	return uint64(crc32.Checksum(slotfile.Bytes(f)[:unsafe.Offsetof(f.sum)], castagnoli))
}

// checksum has the slot's number above the sum, so that a record that was copied to
// another slot is noticed.
func (s *slot) checksum(number int) uint64 {
	return uint64(number)<<32 | uint64(crc32.Checksum(slotfile.Bytes(s)[:unsafe.Offsetof(s.check)], castagnoli))
}

// pack returns the word that stands for n bytes, n < 2^56: n and below it a check
// of 8 bits, which is n's bytes folded into one. So no change within one byte
// is missed, nor a word of zeros.
func pack(n uint64) uint64 {
	c := n ^ n>>32
	c ^= c >> 16
	c ^= c >> 8
	return n<<8 | uint64(byte(c)^0x5a)
}

// unpack is the inverse; false for what pack does not make.
func unpack(w uint64) (n uint64, ok bool) {
	n = w >> 8
	return n, pack(n) == w
}

// marked reports whether a slot is in use.
func (s *state) marked(number int) bool {
	return s.marks[number/64].Load()&(1<<(number%64)) != 0
}

// eachBit calls f with the number of each bit that is set, until f fails.
func eachBit(marks *[MaxProcesses / 64]uint64, f func(number int) error) error {
	for i, w := range marks {
		for ; w != 0; w &= w - 1 {
			if err := f(i*64 + bits.TrailingZeros64(w)); err != nil {
				return err
			}
		}
	}
	return nil
}

// newImage returns the file as it is made: no slot is marked, nothing is held but Used.
// An error names the device and what is wrong with its description.
func newImage(devs []Descriptor) (*image, error) {
	if len(devs) < 1 || len(devs) > MaxDevices {
		return nil, fmt.Errorf("%d devices; a file has 1 to %d", len(devs), MaxDevices)
	}
	m := new(image)
	f := &m.fixed
	copy(f.magic[:], magic)
	f.order, f.version, f.size, f.count = order, version, uint64(fileSize), uint64(len(devs))
	for i := range MaxDevices {
		m.state.used[i].Store(pack(0))
		m.state.others[i].Store(pack(0))
	}
	for i, d := range devs {
		if err := d.validate(); err != nil {
			return nil, fmt.Errorf("device %d: %w", i, err)
		}
		f.devices[i] = d.encode()
		m.state.others[i].Store(pack(d.Used))
	}
	f.sum = f.checksum()
	return m, nil
}

// decode checks what never changes and returns the devices, their Used being 0.
// got is the size of the file in bytes. The checksum comes after version and size, whose
// errors say more.
func (f *fixed) decode(got int64) ([]Descriptor, error) {
	if f.order != order {
		return nil, fmt.Errorf("a machine of another byte order made the file, or it is no shared GPU: %w", ErrDamaged)
	}
	if f.version != version {
		who := "newer than this program: upgrade the program"
		if f.version < version {
			who = "older than this program: stop the programs that use the file"
		}
		return nil, fmt.Errorf("%w: its layout is version %d, this program's is %d. It is %s, or remove the file and make it again", ErrVersion, f.version, version, who)
	}
	if f.size != uint64(fileSize) || got != int64(fileSize) {
		return nil, fmt.Errorf("it has %d bytes, by its header %d, and should have %d: %w", got, f.size, fileSize, ErrDamaged)
	}
	if f.sum != f.checksum() {
		return nil, fmt.Errorf("the checksum of its header is wrong: %w", ErrDamaged)
	}
	if f.count < 1 || f.count > MaxDevices {
		return nil, fmt.Errorf("its header says %d devices: %w", f.count, ErrDamaged)
	}
	devs := make([]Descriptor, f.count)
	for i := range devs {
		d, err := f.devices[i].decode()
		if err == nil {
			err = d.validate()
		}
		if err != nil {
			return nil, fmt.Errorf("device %d: %v: %w", i, err, ErrDamaged)
		}
		devs[i] = d
	}
	return devs, nil
}

// encode returns the description as the file has it. d is valid, so that all texts fit.
func (d Descriptor) encode() descriptor {
	r := descriptor{
		total: d.Total, granularity: d.Granularity, display: d.Display, context: d.Context, host: d.Host, beyond: d.Beyond,
		ccMajor: uint32(d.CCMajor), ccMinor: uint32(d.CCMinor),
	}
	for _, b := range []struct {
		set bool
		bit uint64
	}{{d.NoPages, flagNoPages}, {d.NoPools, flagNoPools}, {d.Unified, flagUnified}, {d.NoManaged, flagNoManaged}} {
		if b.set {
			r.flags |= b.bit
		}
	}
	copy(r.name[:], d.Name)
	copy(r.mig[:], d.MIG)
	return r
}

// decode is the inverse. What it returns is yet to be validated.
func (r *descriptor) decode() (Descriptor, error) {
	if r.flags&^flagsKnown != 0 {
		return Descriptor{}, fmt.Errorf("flags %#x", r.flags)
	}
	return Descriptor{
		Total: r.total, Granularity: r.granularity, Display: r.display, Context: r.context, Host: r.host, Beyond: r.beyond,
		// More than fits into an int on a small machine is refused as such.
		CCMajor: int(min(r.ccMajor, 1<<30)), CCMinor: int(min(r.ccMinor, 1<<30)),
		NoPages: r.flags&flagNoPages != 0, NoPools: r.flags&flagNoPools != 0, Unified: r.flags&flagUnified != 0, NoManaged: r.flags&flagNoManaged != 0,
		Name: text(r.name[:]), MIG: text(r.mig[:]),
	}, nil
}

// validate returns what is wrong with a description, nil if nothing is. Create and Open
// call it, for a file may have been written by anyone.
func (d *Descriptor) validate() error {
	switch {
	case d.Total < 1 || d.Total > MaxTotal:
		return fmt.Errorf("total %d is not from 1 to %d bytes", d.Total, uint64(MaxTotal))
	case d.Beyond > MaxTotal-d.Total:
		return fmt.Errorf("total %d and %d beyond it are more than %d bytes", d.Total, d.Beyond, uint64(MaxTotal))
	case d.Granularity < 1 || d.Granularity > 1<<40:
		return fmt.Errorf("granularity %d is not from 1 byte to 1 TiB", d.Granularity)
	case d.Display > d.Total || d.Used > d.Total-d.Display:
		return fmt.Errorf("used %s and display %s are more than the device's %s", size.Format(d.Used), size.Format(d.Display), size.Format(d.Total))
	case d.Context > d.Total:
		return fmt.Errorf("context %s is more than the device's %s", size.Format(d.Context), size.Format(d.Total))
	case d.CCMajor < 0 || d.CCMajor > 99 || d.CCMinor < 0 || d.CCMinor > 9:
		return fmt.Errorf("compute capability %d.%d", d.CCMajor, d.CCMinor)
	case d.Name == "" || len(d.Name) > maxName || !printable(d.Name):
		return fmt.Errorf("name %q is not 1 to %d bytes, all printable", d.Name, maxName)
	case len(d.MIG) > maxMIG || !printable(d.MIG):
		return fmt.Errorf("slice name %q is not up to %d bytes, all printable", d.MIG, maxMIG)
	}
	return nil
}

// most is what processes and others may hold together, in bytes.
func (d *Descriptor) most() uint64 { return d.Total + d.Beyond }

// free is what is there and not used, in bytes.
func (d *Descriptor) free(used uint64) uint64 { return d.Total - min(used, d.Total) }

// printable reports whether a name may be part of messages and reports, which are lines.
func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// text returns what a field has before the first zero byte.
func text(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b)
}

// process returns what a slot records of its process, which holds used bytes.
func (s *slot) process(used uint64) device.Process {
	return device.Process{PID: int(s.pid), Start: s.start, Name: text(s.name[:]), Kind: "compute", Used: used, Known: true}
}
