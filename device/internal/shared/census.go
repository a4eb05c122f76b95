package shared

import (
	"cmp"
	"fmt"
	"slices"

	"gpumem/device"
	"gpumem/internal/slotfile"
)

// The count of all slots, by which the dead are found and damage is noticed. File.recount
// writes its result; Look only reads.
//
// Of three slots marked, of 10, 6 and 0 GiB, the first one dead, count returns alive =
// {1, 2} and held = 6 GiB. The sum in the file is 16, which must be that of all marked
// slots, dead ones included: their bytes leave it only when recount stores the new sum.

// handle is an open file whose header is good: what Open and Look have in common.
type handle struct {
	*slotfile.File
	devs []Descriptor
	img  *image // the file mapped, or a copy of it
	own  int    // the slot that this description holds; -1: none
}

// census is the result of one look at all slots.
type census struct {
	alive [MaxProcesses / 64]uint64 // a bit for each slot that is marked and not dead
	held  [MaxDevices]uint64        // by those
}

// count looks at every slot and finds who is alive, having checked all that it
// reads. Caller holds the lock. It makes a system call for each marked slot.
//
// The order of the checks matters for what damage is found as: the length of the file
// first, since what is missing cannot be read; each slot's record before its sums, which
// may be another's; what all hold against the total; the sum in the file at last, and only
// if no process was killed while it was being changed.
func (h *handle) count() (census, error) {
	var c census
	var marks [MaxProcesses / 64]uint64
	var sums [MaxDevices]uint64 // dead slots too
	if err := h.Check(); err != nil {
		return c, err
	}
	for i := range marks {
		marks[i] = h.img.state.marks[i].Load()
	}
	err := eachBit(&marks, func(number int) error {
		s := &h.img.slots[number]
		if s.check != s.checksum(number) {
			return h.Errorf("slot %d: its checksum is wrong: %w", number, ErrDamaged)
		}
		alive, err := h.isAlive(number)
		if err != nil {
			return err
		}
		if alive {
			c.alive[number/64] |= 1 << (number % 64)
		}
		for dev := range h.devs {
			n, err := h.word(s.held[dev].Load(), dev, "slot %d: what it holds", number)
			if err != nil {
				return err
			}
			// Checked each time, the sum stays far below 2^64.
			if sums[dev] += n; sums[dev] > h.devs[dev].most() {
				return h.Errorf("device %d: the slots hold more than its total: %w", dev, ErrDamaged)
			}
			if alive {
				c.held[dev] += n
			}
		}
		return nil
	})
	if err != nil {
		return census{}, err
	}
	for dev, d := range h.devs {
		others, err := h.others(dev)
		if err != nil {
			return census{}, err
		}
		if sums[dev] > d.most()-d.Display-others {
			return census{}, h.Errorf("device %d: more is held than its total: %w", dev, ErrDamaged)
		}
		if h.img.state.dirty.Load() != 0 {
			continue
		}
		used, err := h.used(dev)
		if err != nil {
			return census{}, err
		}
		if used != sums[dev] {
			return census{}, h.Errorf("device %d: the slots hold %d bytes, by their sum %d: %w", dev, sums[dev], used, ErrDamaged)
		}
	}
	return c, nil
}

// others returns what others than slots hold, in bytes. It fits beside the display.
func (h *handle) others(dev int) (uint64, error) {
	n, err := h.word(h.img.state.others[dev].Load(), dev, "what others hold")
	if d := &h.devs[dev]; err == nil && n > d.Total-d.Display {
		err = h.Errorf("device %d: others hold more than its total: %w", dev, ErrDamaged)
	}
	return n, err
}

// used returns the sum of what the slots hold, dead ones too, in bytes.
func (h *handle) used(dev int) (uint64, error) {
	return h.word(h.img.state.used[dev].Load(), dev, "the sum of what is held")
}

// word unpacks a sum of a device; what names it for the error. More than may be held of
// the device is damage, too.
func (h *handle) word(w uint64, dev int, what string, args ...any) (uint64, error) {
	n, ok := unpack(w)
	if !ok || n > h.devs[dev].most() {
		return 0, h.Errorf("device %d: %s is no sum (%#x): %w", dev, fmt.Sprintf(what, args...), w, ErrDamaged)
	}
	return n, nil
}

// free returns the bytes that no process holds, by the census.
func (h *handle) free(c *census, dev int) (uint64, error) {
	others, err := h.others(dev)
	return h.devs[dev].free(h.devs[dev].Display + others + c.held[dev]), err
}

// processes lists who of the census holds something of a device, by pid. A
// process that has the file open several times is listed once. Pids may be
// equal in two containers, start times then are not.
func (h *handle) processes(c *census, dev int) ([]device.Process, error) {
	type who struct{ pid, start uint64 }
	at := map[who]int{}
	var list []device.Process
	err := eachBit(&c.alive, func(number int) error {
		s := &h.img.slots[number]
		n, err := h.word(s.held[dev].Load(), dev, "slot %d: what it holds", number)
		if err != nil || n == 0 {
			return err
		}
		if i, ok := at[who{s.pid, s.start}]; ok {
			list[i].Used += n
			return nil
		}
		at[who{s.pid, s.start}] = len(list)
		list = append(list, s.process(n))
		return nil
	})
	slices.SortFunc(list, func(a, b device.Process) int { return cmp.Compare(a.PID, b.PID) })
	return list, err
}
