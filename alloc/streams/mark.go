package streams

import "gpumem/device"

// Mark is a point in a stream. It has passed when all work that was queued in
// the stream before it is done. The nil Mark has passed.
//
// A mark has users, each of which calls Release once. Its event is used for another
// mark when the last one has. So at most as many events exist as marks are in use at
// once: a driver's event is created once and recorded thousands of times.
//
// Marks of one stream pass in order, so that a stream keeps one number, passed: with
// marks 1 to 9 and passed = 6, marks 1 to 6 need no query. A mark without a stream (s is
// nil) was released, and counts as passed.
type Mark struct {
	s     *stream
	seq   uint64 // in the stream, from 1
	event device.Event
	users int
	lost  bool // it has no event: the stream was destroyed before one could be recorded
}

// Mark records a point after the work that is queued in a stream now. For a
// stream that has ended it is the point after its last work. The caller releases
// it. Errors: those of Use, or the device's.
func (t *Tracker) Mark(number uint32) (*Mark, error) {
	s, err := t.find(number)
	if err != nil || s == nil {
		return nil, err
	}
	return t.mark(s)
}

// mark is Mark for a stream that is known. The identity of the stream is looked at
// before each event: an event in another stream that has got its handle would say
// nothing about this one.
func (t *Tracker) mark(s *stream) (*Mark, error) {
	if s.end == nil && t.gone(s) {
		t.lose(s)
	}
	if s.end != nil {
		return s.end.Share(), nil
	}
	m, err := t.fresh()
	if err != nil {
		return nil, err
	}
	if err := t.dev.EventRecord(m.event, s.handle); err != nil {
		t.spare = append(t.spare, m)
		return nil, err
	}
	s.last++
	m.s, m.seq, m.users = s, s.last, 1
	t.marks++
	return m, nil
}

// fresh returns a mark with an event that may be recorded.
func (t *Tracker) fresh() (*Mark, error) {
	if n := len(t.spare); n > 0 {
		m := t.spare[n-1]
		t.spare = t.spare[:n-1]
		return m, nil
	}
	e, err := t.dev.EventCreate()
	if err != nil {
		return nil, err
	}
	return &Mark{event: e}, nil
}

// MarkAll records a point in every stream that is in use and whose bit is in set;
// see Bit. The marks are appended to out, which is empty. After an error there is
// none.
func (t *Tracker) MarkAll(out []*Mark, set uint64) ([]*Mark, error) {
	for _, s := range t.used {
		if set&(1<<s.slot) == 0 {
			continue
		}
		m, err := t.mark(s)
		if err != nil {
			t.Release(out...)
			return out[:0], err
		}
		out = append(out, m)
	}
	return out, nil
}

// Share adds a user.
func (m *Mark) Share() *Mark {
	if m != nil {
		m.users++
	}
	return m
}

// Release takes one user away from each mark. An event whose mark has no user
// is recorded again later; a stream that waits for it still waits for what it
// was before.
func (t *Tracker) Release(marks ...*Mark) {
	for _, m := range marks {
		if m == nil {
			continue
		}
		if m.users--; m.users > 0 || m.lost {
			continue
		}
		t.marks--
		m.s = nil
		if t.closed {
			_ = t.dev.EventDestroy(m.event)
			continue
		}
		t.spare = append(t.spare, m)
	}
}

// Look begins a new round of Passed: what had not passed may have by now. In one
// round a mark that has not passed stands for the later ones in its stream, so
// that n marks cost few queries.
func (t *Tracker) Look() { t.round++ }

// known reports whether m has passed, as far as is known without a query.
func (m *Mark) known() bool { return m == nil || m.s == nil || m.seq <= m.s.passed }

// Passed reports whether m is known to have passed, and queries the device if
// that helps. A mark that cannot be queried has not.
func (t *Tracker) Passed(m *Mark) bool {
	if m.known() {
		return true
	}
	s := m.s
	if m.lost || s.round == t.round && m.seq >= s.busy {
		return false
	}
	done, err := t.dev.EventQuery(m.event)
	if done && err == nil {
		s.passed = m.seq
		return true
	}
	s.round, s.busy = t.round, m.seq
	return false
}

// After makes the stream of a number wait for m: work that is queued there later
// begins when m has passed. The host waits only for streams that the program
// destroyed without Retire.
func (t *Tracker) After(number uint32, m *Mark) error {
	if m.known() {
		return nil
	}
	if m.lost {
		return t.Wait(m)
	}
	s, err := t.use(number)
	if err != nil || s == m.s {
		return err
	}
	return t.dev.StreamWaitEvent(s.handle, m.event)
}

// Wait waits until the marks have passed. After Defer it returns a *Pending
// instead, or nil if they have passed already. Marks of one stream should come
// with the latest first: the others have then passed without a call. The marks of lost
// streams cost one Synchronize together.
func (t *Tracker) Wait(marks ...*Mark) error {
	if !t.deferred {
		synced := false // the device was synchronised, which is all that a lost mark needs
		for _, m := range marks {
			if m.known() {
				continue
			}
			if !m.lost || !synced {
				if err := t.await(m); err != nil {
					return err
				}
				synced = synced || m.lost
			}
			m.s.passed = max(m.s.passed, m.seq)
		}
		return nil
	}
	p := &Pending{t: t}
	t.Look()
	for _, m := range marks {
		if !m.known() && (t.blind || !t.Passed(m)) {
			p.marks = append(p.marks, m.Share())
		}
	}
	if p.marks == nil {
		return nil
	}
	return p
}

// Synchronize waits for all work on the device, or returns a *Pending for that.
func (t *Tracker) Synchronize() error {
	if t.deferred {
		return &Pending{t: t, all: true}
	}
	return t.dev.Synchronize()
}

// await waits for one mark. It reads nothing that the pool's lock guards.
func (t *Tracker) await(m *Mark) error {
	if m.lost {
		return t.dev.Synchronize()
	}
	return t.dev.EventSynchronize(m.event)
}

// Pending is the error of an operation that must wait for the device first, and
// has changed nothing. Its owner unlocks, calls Wait, locks, calls Settle, and
// repeats the operation.
type Pending struct {
	t     *Tracker
	marks []*Mark
	all   bool // wait for all work on the device
}

func (p *Pending) Error() string { return "work on the device has to end first" }

// Wait waits. The owner's lock is not held.
func (p *Pending) Wait() error {
	if p.all {
		return p.t.dev.Synchronize()
	}
	synced := false // as in Tracker.Wait
	for _, m := range p.marks {
		if m.lost && synced {
			continue
		}
		if err := p.t.await(m); err != nil {
			return err
		}
		synced = synced || m.lost
	}
	return nil
}

// Settle records what Wait returned. The owner's lock is held. It is called once, also
// if Wait was not called, with an error then. After an error nothing counts as passed:
// the memory stays as it is, and whoever needs it waits again.
func (p *Pending) Settle(err error) {
	for _, m := range p.marks {
		if err == nil && m.s != nil {
			m.s.passed = max(m.s.passed, m.seq)
		}
		p.t.Release(m)
	}
	p.marks = nil
}
