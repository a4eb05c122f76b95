package shared

import (
	"errors"
	"slices"
	"sync"
	"time"

	"gpumem/device"
	"gpumem/internal/crashpoint"
	"gpumem/internal/ofd"
)

// Operations under the lock of the file.
//
// Take of 2 GiB, from call to return, in a process that is not disturbed:
//
//	do          locks mu, so that one goroutine of the process is at it
//	exclusive   fcntl: the lock of the file. The pid goes into holder, for those who
//	            wait too long; the first words of the header are looked at
//	do          the own slot is marked, nothing is dirty
//	room        total 24, less display 1, others 0 and used 16, in GiB: 7 are free
//	hold        dirty, held, used, clean: four stores
//	exclusive   holder = 0; fcntl: unlocked
//
// That is two system calls and about a microsecond. Each step that another process could
// is a crashpoint, where tests kill or stop the process.

// File is a process's use of a shared file: a slot. It is safe for use by
// several goroutines. For the lock order see the package comment.
type File struct {
	pid uint64 // of this process

	mu sync.Mutex // guards what follows, and the mapping behind h
	h  handle     // h.img is nil when closed
	// all is the most that processes held of each device together, just after a Take of this File; nil: not
	// counted.
	all []uint64
}

// exclusive calls op with the lock of the file held. A page that is not there
// any more is an error. For since, see lock.
func (f *File) exclusive(since time.Time, op func() error) error {
	return f.h.Guard(func() (err error) {
		if err := f.h.lock(ofd.Write, since); err != nil {
			return err
		}
		defer func() {
			if e := f.h.FileLock().Unlock(); e != nil && err == nil {
				err = f.h.Errorf("cannot unlock the file: %w", e)
			}
			crashpoint.At("unlocked")
		}()
		crashpoint.At("locked")
		img := f.h.img
		img.state.holder.Store(f.pid)
		crashpoint.At("named")
		if fix := &img.fixed; string(fix.magic[:]) != magic || fix.order != order || fix.version != version {
			err = f.h.Errorf("the header is gone: %w", ErrDamaged)
		} else {
			err = op()
		}
		img.state.holder.Store(0)
		crashpoint.At("unnamed")
		return err
	})
}

// do calls op with the lock of the file held, the own slot marked and the sums
// right. A goroutine that waits for others of the process has its wait counted from the
// beginning, so that ten of them give up together after 10 seconds and not one by one.
func (f *File) do(dev int, op func(own *slot) error) error {
	var since time.Time
	if !f.mu.TryLock() {
		since = time.Now()
		f.mu.Lock()
	}
	defer f.mu.Unlock()
	h := &f.h
	if h.img == nil {
		return h.Errorf("%w", device.ErrClosed)
	}
	if dev < 0 || dev >= len(h.devs) {
		return h.Errorf("device %d of %d: %w", dev, len(h.devs), device.ErrInvalidValue)
	}
	return f.exclusive(since, func() error {
		if !h.img.state.marked(h.own) {
			return h.Errorf("slot %d, this program's, is marked as not in use: %w", h.own, ErrDamaged)
		}
		if h.img.state.dirty.Load() != 0 {
			if _, err := f.recount(); err != nil {
				return err
			}
		}
		return op(&h.img.slots[h.own])
	})
}

// recount adds the slots up again, and unmarks those of the dead. Caller
// holds the lock of the file. It writes under dirty as hold does: killed in between, the
// next process counts again. Nothing is written if count finds damage.
func (f *File) recount() (census, error) {
	c, err := f.h.count()
	if err != nil {
		return c, err
	}
	s := &f.h.img.state
	s.dirty.Store(1)
	crashpoint.At("recount: dirty")
	for i := range s.marks {
		if s.marks[i].Load() != c.alive[i] {
			s.marks[i].Store(c.alive[i])
			crashpoint.At("recount: dead slots unmarked")
		}
	}
	for dev := range f.h.devs {
		s.used[dev].Store(pack(c.held[dev]))
		crashpoint.At("recount: a sum stored")
	}
	s.dirty.Store(0)
	crashpoint.At("recount: clean")
	return c, nil
}

// Devices returns the descriptions of the devices. Used is what it was when the file was
// opened.
func (f *File) Devices() []Descriptor { return slices.Clone(f.h.devs) }

// Take holds n more bytes of a device, all or nothing: device.ErrOutOfMemory if
// they are not free. Only then does it look for dead processes, so that a take that fits
// costs the same with one process and with a thousand.
func (f *File) Take(dev int, n uint64) error { return f.take(dev, n, 0) }

// Exceed is a Take that may hold what is not there, as much as Descriptor.Beyond.
func (f *File) Exceed(dev int, n uint64) error {
	if dev < 0 || dev >= len(f.h.devs) {
		return f.take(dev, n, 0)
	}
	return f.take(dev, n, f.h.devs[dev].Beyond)
}

func (f *File) take(dev int, n, beyond uint64) error {
	return f.do(dev, func(own *slot) error {
		free, used, err := f.room(dev, beyond)
		if err == nil && n > free {
			// Some of it may be held by the dead.
			if _, err = f.recount(); err == nil {
				free, used, err = f.room(dev, beyond)
			}
		}
		if err != nil {
			return err
		}
		if n > free {
			return device.ErrOutOfMemory
		}
		if f.all != nil && used+n > f.all[dev] {
			// Without the dead.
			if _, err = f.recount(); err == nil {
				_, used, err = f.room(dev, beyond)
			}
			if err != nil {
				return err
			}
			f.all[dev] = max(f.all[dev], used+n)
		}
		held, err := f.held(own, dev)
		if err != nil {
			return err
		}
		f.hold(own, dev, held+n, used+n)
		return nil
	})
}

// CountAll has [File.All] count from now on. It makes a Take dearer that leaves more held than ever.
func (f *File) CountAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = make([]uint64, MaxDevices)
	}
}

// All returns the most bytes that living processes held of a device together, just after a Take of this File;
// 0 without [File.CountAll].
func (f *File) All(dev int) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		return 0
	}
	return f.all[dev]
}

// Give ends holding n bytes of a device. It fails with device.ErrInvalidValue
// if this File holds less.
func (f *File) Give(dev int, n uint64) error {
	return f.do(dev, func(own *slot) error {
		held, err := f.held(own, dev)
		if err != nil {
			return err
		}
		_, used, err := f.room(dev, 0)
		if err != nil {
			return err
		}
		if n > held {
			return f.h.Errorf("device %d: cannot release %d bytes of %d: %w", dev, n, held, device.ErrInvalidValue)
		}
		if held > used {
			return f.h.Errorf("device %d: this program holds %d bytes, all together %d: %w", dev, held, used, ErrDamaged)
		}
		f.hold(own, dev, held-n, used-n)
		return nil
	})
}

// room is what is free of a device with some bytes beyond its total, and what slots hold
// of it; the dead may hold some of that.
func (f *File) room(dev int, beyond uint64) (free, used uint64, err error) {
	others, err := f.h.others(dev)
	if err != nil {
		return 0, 0, err
	}
	used, err = f.h.used(dev)
	if err != nil {
		return 0, 0, err
	}
	limit := f.h.devs[dev].Total - f.h.devs[dev].Display - others
	if used > limit+f.h.devs[dev].Beyond {
		return 0, 0, f.h.Errorf("device %d: more is held than its total: %w", dev, ErrDamaged)
	}
	limit += beyond
	return limit - min(used, limit), used, nil
}

// held returns what the own slot holds, in bytes.
func (f *File) held(own *slot, dev int) (uint64, error) {
	return f.h.word(own.held[dev].Load(), dev, "slot %d, this program's: what it holds", f.h.own)
}

// hold sets what the own slot holds, and the sum. The package comment says why
// in this order.
func (f *File) hold(own *slot, dev int, held, used uint64) {
	s := &f.h.img.state
	s.dirty.Store(1)
	crashpoint.At("hold: dirty")
	own.held[dev].Store(pack(held))
	crashpoint.At("hold: held")
	s.used[dev].Store(pack(used))
	crashpoint.At("hold: summed")
	s.dirty.Store(0)
	crashpoint.At("hold: clean")
}

// Free returns the bytes of a device that no living process holds. It looks for dead ones,
// since a caller may wait for just that number.
func (f *File) Free(dev int) (uint64, error) {
	var free uint64
	err := f.do(dev, func(*slot) error {
		c, err := f.recount()
		if err == nil {
			free, err = f.h.free(&c, dev)
		}
		return err
	})
	return free, err
}

// SetUsed sets what is held of a device by others than processes of this file,
// in bytes. More than what is free is cut to that. It is one store, so that it needs no
// dirty word.
func (f *File) SetUsed(dev int, n uint64) error {
	return f.do(dev, func(*slot) error {
		c, err := f.recount()
		if err != nil {
			return err
		}
		d := &f.h.devs[dev]
		f.h.img.state.others[dev].Store(pack(min(n, d.free(d.Display+c.held[dev]))))
		crashpoint.At("others set")
		return nil
	})
}

// Close releases all that this File holds. Later calls fail with
// device.ErrClosed; closing again does nothing. It waits for calls under way,
// but not for other programs: it leaves a dead slot, as a process does that is
// killed.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.h.img == nil {
		return nil
	}
	f.h.img = nil
	// Unlocked here, as a child that is about to exec has the description too.
	err := f.h.UnlockAll()
	crashpoint.At("close: unlocked")
	err = errors.Join(err, f.h.Close())
	crashpoint.At("close: closed")
	return err
}
