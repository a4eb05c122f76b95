package elastic

// Whose work is done.
//
// Memory that is freed may still be worked on by what was queued before. It may
// be handed out again at once, in the order of streams, but not unmapped. Asking
// the driver at each free would cost more than the free, so time is cut into
// epochs: a free notes the number of the present one in the chunk and no more.
// When the driver is called for pages anyway, the epoch is closed: an event is
// recorded in each stream that was ever named. When these have passed, all work
// is done that was queued before anything in that epoch was freed, and before
// anything in the epochs before.
//
// A block that is used on several streams needs no note of them: an epoch is
// over when all streams got that far.

import (
	"math"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/device"
)

// maxMarks is how many closed epochs are kept apart. More only make it likelier
// that the oldest pages need no waiting for.
const maxMarks = 16

// mark closes an epoch.
type mark struct {
	epoch  uint32
	events []device.Event // one for each stream that was known then
}

// streams are those that work is queued in, and what is known of them.
type streams struct {
	known   map[uint32]bool
	numbers []uint32        // as requests name them
	handles []device.Stream // of the first of them; StreamOf was not asked for the rest yet
	past    uint32          // all up to this epoch is done
	marks   []mark          // of later epochs, in order
	unused  [][]device.Event
}

// UseStream says that blocks are used on that stream, too. Pages freed from then
// on are unmapped only when what is queued there by then is done. Alloc does it
// for the streams that requests name.
func (a *Allocator) UseStream(number uint32) {
	s := &a.streams
	if s.known[number] {
		return
	}
	if s.known == nil {
		s.known = map[uint32]bool{}
	}
	s.known[number] = true
	s.numbers = append(s.numbers, number)
}

// Record is UseStream for one block: an epoch knows no blocks. It never fails.
func (a *Allocator) Record(_ alloc.Block, stream uint32) error {
	a.UseStream(stream)
	return nil
}

// resolve asks for the streams that were not asked for yet.
func (a *Allocator) resolve() error {
	s := &a.streams
	for i := len(s.handles); i < len(s.numbers); i++ {
		h := device.Stream(0)
		if a.cfg.StreamOf != nil {
			var err error
			if h, err = a.cfg.StreamOf(s.numbers[i]); err != nil {
				return err
			}
		}
		s.handles = append(s.handles, h)
	}
	return nil
}

// closeEpoch ends the present epoch if something was freed in it. Where a call
// fails it stays open, and who must know whether it is over waits for the
// streams instead.
func (a *Allocator) closeEpoch() {
	s := &a.streams
	if !a.freed || a.resolve() != nil {
		return
	}
	var events []device.Event
	if n := len(s.marks); n == maxMarks {
		// The newest one is recorded again, and stands for both epochs then.
		events = s.marks[n-1].events
	} else {
		if k := len(s.unused); k > 0 {
			events = s.unused[k-1]
			s.unused = s.unused[:k-1]
		}
		s.marks = append(s.marks, mark{epoch: a.epoch})
	}
	m := &s.marks[len(s.marks)-1]
	for i, h := range s.handles {
		if i == len(events) {
			e, err := a.dev.EventCreate()
			if err != nil {
				a.reopen(events)
				return
			}
			events = append(events, e)
		}
		if a.dev.EventRecord(events[i], h) != nil {
			a.reopen(events)
			return
		}
	}
	m.epoch, m.events = a.epoch, events
	a.next()
}

// reopen is the way back out of closing an epoch.
func (a *Allocator) reopen(events []device.Event) {
	s := &a.streams
	m := &s.marks[len(s.marks)-1]
	if m.epoch == a.epoch {
		// A new mark: it is none.
		s.unused = append(s.unused, events)
		s.marks = s.marks[:len(s.marks)-1]
		return
	}
	m.events = events // some are later now, which is safe
}

// next begins an epoch. Numbers that run out begin anew: no chunk's is later
// than the present one, and nothing is known then of any.
func (a *Allocator) next() {
	a.freed = false
	if a.epoch++; a.epoch < math.MaxUint32 {
		return
	}
	a.streams.past = 0
	for _, c := range a.chunks() {
		if c.State == chunks.Free && c.Tag == tagMapped {
			c.Stream = 1
		}
	}
	a.epoch = 1
	a.forget(len(a.streams.marks))
}

// passed says whether an epoch is known to be over, asking where it may.
func (a *Allocator) passed(epoch uint32) bool {
	s := &a.streams
	if epoch <= s.past {
		return true
	}
	if a.cfg.Deterministic {
		return false
	}
	for len(s.marks) > 0 && s.past < epoch {
		for _, e := range s.marks[0].events {
			if done, err := a.dev.EventQuery(e); !done || err != nil {
				return false
			}
		}
		s.past = s.marks[0].epoch
		a.forget(1)
	}
	return epoch <= s.past
}

// await waits until an epoch is over.
func (a *Allocator) await(epoch uint32) error {
	s := &a.streams
	if epoch <= s.past {
		return nil
	}
	for i, m := range s.marks {
		if m.epoch < epoch {
			continue
		}
		for _, e := range m.events {
			if err := a.dev.EventSynchronize(e); err != nil {
				return err
			}
		}
		s.past = m.epoch
		a.forget(i + 1)
		return nil
	}
	// It is the present one.
	if err := a.resolve(); err != nil {
		return err
	}
	for _, h := range s.handles {
		if a.dev.StreamSynchronize(h) != nil {
			// A stream that was destroyed, it may be; what was queued in it still
			// runs. There is one call that waits for that, too.
			if err := a.dev.Synchronize(); err != nil {
				return err
			}
			break
		}
	}
	s.past = a.epoch
	a.forget(len(s.marks))
	a.next()
	return nil
}

// forget drops the first n marks.
func (a *Allocator) forget(n int) {
	s := &a.streams
	for _, m := range s.marks[:n] {
		s.unused = append(s.unused, m.events)
	}
	s.marks = s.marks[:copy(s.marks, s.marks[n:])]
}

// close gives the events back.
func (s *streams) close(dev device.Streams, failed func(error) bool) {
	for _, m := range s.marks {
		s.unused = append(s.unused, m.events)
	}
	for _, events := range s.unused {
		for _, e := range events {
			failed(dev.EventDestroy(e))
		}
	}
	*s = streams{}
}
