package ledger

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"gpumem/internal/procstat"
)

// byTurns makes a ledger by turns, of 100 bytes on a GPU of 1000.
func byTurns(t testing.TB) *Ledger {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ledger")
	must(t, Create(path, Header{UUID: "GPU-1", Limit: 100, Total: 1000, Turns: true}))
	return openLedger(t, path)
}

// entry returns what all see of a member.
func entry(t testing.TB, l *Ledger, m *Member) Entry {
	t.Helper()
	for _, e := range l.Turns() {
		if e.Slot == m.slot {
			return e
		}
	}
	t.Fatalf("slot %d is not among %+v", m.slot, l.Turns())
	return Entry{}
}

// TestTurnLayoutIsAsDocumented: a reader in C has the same offsets.
func TestTurnLayoutIsAsDocumented(t *testing.T) {
	var r record
	if unsafe.Sizeof(r) != 128 || unsafe.Offsetof(r.asked) != 120 || unsafe.Offsetof(image{}.tickets) != 128 {
		t.Errorf("a record of %d bytes, asked at %d", unsafe.Sizeof(r), unsafe.Offsetof(r.asked))
	}
	l := byTurns(t)
	other, m := join(t, l), join(t, l)
	_, err := other.Queue(1)
	must(t, err)
	_, err = m.Queue(3)
	must(t, err)
	must(t, m.SetTurn(func(t *Turn) {
		*t = Turn{State: Waiting, Reason: NotDrained, OnHost: 4, Movable: 5, Worked: 6, Since: 7,
			LendAfter: 9, Quantum: AutoQuantum, Cost: 11, Swaps: 12}
	}))
	must(t, l.Ask(entry(t, l, m), Resume))
	file, err := os.ReadFile(l.f.Path)
	must(t, err)
	if len(file) != 266240 || file[56] != 2 {
		t.Errorf("%d bytes with flags %d", len(file), file[56])
	}
	word := func(at int) uint64 { return binary.LittleEndian.Uint64(file[at:]) }
	at := 135168 + 128
	for offset, want := range map[int]uint64{
		8: 2, 16: 3, 24: 4, 32: 5, 40: 6, 48: 7, 56: uint64(m.turn.Seen), 64: 9, 72: 1<<64 - 1, 80: 11, 88: 12,
		96: procstat.Self().Start, 104: uint64(os.Getpid()), 112: 0, 120: 1<<8 | 2,
	} {
		if got := word(at + offset); got != want {
			t.Errorf("record 1, byte %d: %d, want %d", offset, got, want)
		}
	}
	if file[at+4] != 3 || file[at+5] != 8 || word(128) != 2 || m.turn.Seen > Now() {
		t.Errorf("state %d, reason %d, last ticket %d, seen %d", file[at+4], file[at+5], word(128), m.turn.Seen)
	}
}

// TestSizeAndFlagMustAgree refuses a reader that takes the size for the flag, or the flag for the
// size: a program may make its ledger larger, or cut it.
func TestSizeAndFlagMustAgree(t *testing.T) {
	plain, turns := makeLedger(t), byTurns(t).f.Path
	must(t, os.Truncate(plain, BytesByTurns))
	must(t, os.Truncate(turns, Bytes))
	for path, want := range map[string]string{
		plain: "266240 bytes and not 135168", turns: "135168 bytes and not 266240",
	} {
		if _, err := Open(path); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestByTurnsCutShortIsAnError: also where the part before the records is whole.
func TestByTurnsCutShortIsAnError(t *testing.T) {
	l := byTurns(t)
	m := join(t, l)
	must(t, os.Truncate(l.f.Path, Bytes))
	_, queueErr := m.Queue(1)
	_, turnErr := m.Turn()
	for name, err := range map[string]error{
		"take": m.Take(Held, 1), "queue": queueErr, "turn": turnErr, "set": m.SetTurn(func(*Turn) {}), "limit": l.SetLimit(200),
	} {
		if !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if l.Turns() != nil || l.Limit() != 0 {
		t.Errorf("turns %+v", l.Turns())
	}
}

func TestPlainLedgerHasNoTurns(t *testing.T) {
	path := makeLedger(t)
	l := openLedger(t, path)
	m := join(t, l)
	before, err := os.ReadFile(path)
	must(t, err)
	_, queueErr := m.Queue(1)
	_, turnErr := m.Turn()
	_, _, turnsErr := m.Turns()
	for name, err := range map[string]error{
		"queue": queueErr, "turn": turnErr, "turns": turnsErr, "unqueue": m.Unqueue(),
		"set": m.SetTurn(func(t *Turn) { t.Movable = 1 }), "limit": l.SetLimit(200),
		"ask": l.Ask(Entry{Figures: m.Own()}, Pause),
	} {
		if !errors.Is(err, ErrNoTurns) {
			t.Errorf("%s: %v", name, err)
		}
	}
	after, err := os.ReadFile(path)
	must(t, err)
	if l.Turns() != nil || string(after) != string(before) || len(after) != 135168 {
		t.Errorf("turns %+v, and the file has %d bytes", l.Turns(), len(after))
	}
	if l.Limit() != 100 || m.Limit() != 100 {
		t.Errorf("limit %d and %d", l.Limit(), m.Limit())
	}
}

// TestSetTurnIsSeenByAll: what a process says is what it is asked to say, and no more.
func TestSetTurnIsSeenByAll(t *testing.T) {
	l := byTurns(t)
	other, m := join(t, l), join(t, l)
	must(t, m.Take(Held, 7))
	ticket, err := m.Queue(40)
	must(t, err)
	say := Turn{
		State: Leaving, Reason: Capturing, OnHost: 4, Movable: 5, Worked: 6, Since: 7,
		LendAfter: 8, Quantum: 9, Cost: 10, Swaps: 11,
	}
	must(t, m.SetTurn(func(t *Turn) {
		*t = say
		t.Ticket, t.Wants, t.Seen, t.Asked, t.Asks = 99, 98, 97, Pause, 96
	}))
	want := say
	want.Ticket, want.Wants = ticket, 40
	limit, all, err := other.Turns()
	must(t, err)
	own, err := m.Turn()
	must(t, err)
	for name, got := range map[string]Turn{"ledger": entry(t, l, m).Turn, "member": own, "other": all[1].Turn} {
		if want.Seen = got.Seen; got != want || Now().Sub(got.Seen).Abs() > time.Minute {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	if limit != 100 || len(all) != 2 || all[1].Slot != 1 || all[1].Held != 7 || all[0].Turn.Movable != 0 {
		t.Errorf("limit %d, %+v", limit, all)
	}

	for name, wrong := range map[string]func(t *Turn){
		"state": func(t *Turn) { t.State = states }, "reason": func(t *Turn) { t.Reason = Silent },
		"bytes": func(t *Turn) { t.Movable = most + 1 }, "on host": func(t *Turn) { t.OnHost = most + 1 },
		"lend": func(t *Turn) { t.LendAfter = -1 }, "quantum": func(t *Turn) { t.Quantum = -2 },
		"cost": func(t *Turn) { t.Cost = -1 },
	} {
		if err := m.SetTurn(wrong); err == nil {
			t.Errorf("%s: it is said", name)
		}
	}
	if _, err := m.Queue(most + 1); err == nil {
		t.Error("a wait for more than all GPUs have")
	}
	if again := entry(t, l, m).Turn; again != own {
		t.Errorf("after what is refused: %+v, want %+v", again, own)
	}
	must(t, m.SetTurn(func(*Turn) {}))
	if again := entry(t, l, m).Turn; again.Seen <= own.Seen {
		t.Errorf("seen %d, then %d: no sign of life", own.Seen, again.Seen)
	}
}

func TestTicketsAreInOrder(t *testing.T) {
	l := byTurns(t)
	a, b := join(t, l), join(t, l)
	for i, step := range []struct {
		m      *Member
		ticket uint64 // 0: the wait ends
		wants  uint64
	}{{a, 1, 10}, {b, 2, 20}, {a, 1, 30}, {a, 0, 0}, {a, 3, 5}, {b, 2, 6}, {b, 0, 0}, {b, 4, 7}} {
		if step.ticket == 0 {
			must(t, step.m.Unqueue())
		} else if got, err := step.m.Queue(step.wants); err != nil || got != step.ticket {
			t.Errorf("step %d: ticket %d, %v; want %d", i, got, err, step.ticket)
		}
		if e := entry(t, l, step.m); e.Ticket != step.ticket || e.Wants != step.wants {
			t.Errorf("step %d: %+v", i, e.Turn)
		}
	}
}

// hasTakenAll reports whether a process that was away waits no longer, and says so: since its take (its state
// began at 1 before) it returns, and it has the rest of its record.
func hasTakenAll(e Entry) bool {
	waits := e.Waits() || e.Wants != 0
	returns := e.State == Returning && e.Since != 1
	return !waits && returns && e.Movable != 0
}

// TestTakeInTheQueue: nobody takes what one before waits for, and what it waits for ends a wait. Its ticket it
// keeps: what it has taken may be of no use, and then it waits in the same place.
func TestTakeInTheQueue(t *testing.T) {
	l := byTurns(t)
	holder, a, b, free := join(t, l), join(t, l), join(t, l), join(t, l)
	must(t, holder.Take(Held, 90))
	wait := func(m *Member, n uint64) {
		t.Helper()
		_, err := m.Queue(n)
		must(t, errors.Join(err, m.SetTurn(func(t *Turn) { t.State, t.Since = Waiting, 1 })))
	}
	wait(a, 10)
	wait(b, 5)
	for i, step := range []struct {
		m    *Member
		n    uint64
		give uint64 // by the holder, before
		err  error
	}{
		{b, 5, 0, ErrTurn},  // a waits for all that is left
		{a, 11, 0, ErrFull}, // more than that
		{b, 5, 4, ErrTurn},  // 14 are left: 10 are a's
		{b, 4, 0, nil},      // a part of what it waits for
		{a, 10, 0, nil},
		{b, 5, 5, nil},
		{b, 1, 1, nil}, // nobody waits
	} {
		must(t, holder.Give(Held, step.give))
		if err := step.m.Take(Held, step.n); !errors.Is(err, step.err) || err == nil != (step.err == nil) {
			t.Errorf("step %d: %v, want %v", i, err, step.err)
		}
	}
	for _, m := range []*Member{a, b} {
		e := entry(t, l, m)
		if !hasTakenAll(e) || e.Ticket != m.turn.Ticket {
			t.Errorf("after its take %+v", e.Turn)
		}
		if ticket, err := m.Queue(7); err != nil || ticket != e.Ticket {
			t.Errorf("ticket %d, then %d, %v", e.Ticket, ticket, err)
		}
		must(t, m.Unqueue())
	}

	must(t, holder.Give(Held, 10))
	wait(a, 10)
	if err := free.Take(Held, 10); err != nil {
		t.Errorf("one that is not in the queue: %v", err)
	}
	must(t, free.Give(Held, 10))
	must(t, a.SetTurn(func(t *Turn) { t.State = In }))
	must(t, a.Take(Charged, 10))
	if e := entry(t, l, a); e.State != In || e.Waits() {
		t.Errorf("one that waited for more: %+v", e.Turn)
	}
	if !errors.Is(ErrTurn, ErrFull) {
		t.Error("callers that know of no turns do not know ErrTurn")
	}
}

// TestNobodyWaitsForTheLockToLook: where a process was stopped that has the lock of the ledger, one that only
// looks, or changes what it waits for in the queue, goes on.
func TestNobodyWaitsForTheLockToLook(t *testing.T) {
	l := byTurns(t)
	stopped, m := join(t, l), join(t, l)
	ticket, err := m.Queue(7)
	must(t, err)
	must(t, stopped.f.locked(func() error {
		again, err := m.Queue(8)
		limit, all, err2 := m.LookAtTurns()
		if again != ticket || limit != 100 || len(all) != 2 || all[1].Wants != 8 {
			t.Errorf("ticket %d, then %d; limit %d, %+v", ticket, again, limit, all)
		}
		return errors.Join(err, err2, m.SetTurn(func(*Turn) {}), m.Unqueue())
	}))
}

// TestTimesAreOfAClockThatNobodySets: a step of the wall clock makes nobody silent, and ends no turn.
func TestTimesAreOfAClockThatNobodySets(t *testing.T) {
	m := join(t, byTurns(t))
	before := Now()
	must(t, m.SetTurn(func(t *Turn) { t.Worked = MomentOf(time.Now().Add(-time.Minute)) }))
	turn, err := m.Turn()
	must(t, err)
	up, err := os.ReadFile("/proc/uptime")
	must(t, err)
	seconds, _, _ := strings.Cut(string(up), " ")
	uptime, err := time.ParseDuration(seconds + "s") // with the time that the machine was suspended
	must(t, err)
	if turn.Seen < before || turn.Seen > Now() || time.Duration(before) > uptime+time.Second {
		t.Errorf("seen %d, between %d and %d, %v after the start", turn.Seen, before, Now(), uptime)
	}
	if ago := turn.Seen.Sub(turn.Worked) - time.Minute; ago.Abs() > time.Second {
		t.Errorf("worked %d, a minute before %d", turn.Worked, turn.Seen)
	}
}

// TestReachable: the most that a process may hold is what stays when all others have left, in the ledger and
// in each part.
func TestReachable(t *testing.T) {
	l := byTurns(t)
	inside := Part{ID: 7, Limit: 60}
	m := join(t, l)
	part, err := l.Join(inside)
	must(t, err)
	defer part.Leave()
	sibling, err := l.Join(inside)
	must(t, err)
	defer sibling.Leave()
	for _, other := range []*Member{m, sibling} {
		must(t, other.Take(Held, 20))
		must(t, other.Take(Outside, 3))
		must(t, other.SetTurn(func(t *Turn) { t.Movable = 15 }))
	}
	for of, want := range map[*Member]uint64{m: 92, part: 52, sibling: 60} {
		if got, err := of.Reachable(); err != nil || got != want {
			t.Errorf("slot %d: %d, %v; want %d", of.Slot(), got, err, want)
		}
	}
}

// TestTakeWhileOthersLeave: what they free is for whom they leave.
func TestTakeWhileOthersLeave(t *testing.T) {
	l := byTurns(t)
	holder, first, second := join(t, l), join(t, l), join(t, l)
	must(t, holder.Take(Held, 80))
	must(t, holder.SetTurn(func(t *Turn) { t.LendAfter, t.Since, t.Movable = 1, 1, 80 }))
	_, err := first.Queue(60)
	must(t, err)
	_, err = second.Queue(10)
	must(t, err)
	if err := second.Take(Held, 10); !errors.Is(err, ErrTurn) {
		t.Errorf("take while one leaves for another: %v", err)
	}
	must(t, holder.SetTurn(func(t *Turn) { t.Reason = Communicating }))
	if err := second.Take(Held, 10); err != nil {
		t.Errorf("take while the first cannot be served: %v", err)
	}
}

// TestAskIsKeptBesideTheTurn: the process's own writes keep what it is asked, and who has the slot
// after it is not asked.
func TestAskIsKeptBesideTheTurn(t *testing.T) {
	l := byTurns(t)
	_, m := join(t, l), join(t, l)
	of := entry(t, l, m)
	check := func(a Ask, n uint64) {
		t.Helper()
		own, err := m.Turn()
		must(t, err)
		e := entry(t, l, m)
		if own.Asked != a || own.Asks != n || e.Asked != a || e.Asks != n {
			t.Errorf("asked %d, number %d; all see %d, %d; want %d, %d", own.Asked, own.Asks, e.Asked, e.Asks, a, n)
		}
	}
	check(NotAsked, 0)
	must(t, l.Ask(of, Pause))
	check(Pause, 1)
	must(t, m.SetTurn(func(t *Turn) { t.State = Away }))
	_, err := m.Queue(1)
	must(t, err)
	check(Pause, 1)
	must(t, l.Ask(of, Pause))
	check(Pause, 2)
	must(t, l.Ask(of, Resume))
	check(Resume, 3)
	if err := l.Ask(of, asks); err == nil {
		t.Error("it is asked for what nobody knows")
	}

	must(t, m.Leave())
	if err := l.Ask(of, Pause); !errors.Is(err, ErrGone) {
		t.Errorf("ask of one that has left: %v", err)
	}
	m = join(t, l)
	check(NotAsked, 0)
	of.Start++
	if err := l.Ask(of, Pause); !errors.Is(err, ErrGone) {
		t.Errorf("ask of one that had the slot: %v", err)
	}
	of.Slot = Slots
	if err := l.Ask(of, Pause); err == nil {
		t.Error("a slot beyond all is asked")
	}
}

// TestLimitIsSeenByMembers: it grows and shrinks for those that have joined before. Below what they
// hold nothing is taken until they hold less.
func TestLimitIsSeenByMembers(t *testing.T) {
	l := byTurns(t)
	path := l.f.Path
	m := join(t, l)
	must(t, m.Take(Held, 100))
	must(t, l.SetLimit(90))
	if l.Limit() != 90 || m.Limit() != 90 || m.Left() != 0 {
		t.Errorf("limit %d and %d, %d left", l.Limit(), m.Limit(), m.Left())
	}
	must(t, m.Give(Held, 9))
	if err := m.Take(Held, 1); !errors.Is(err, ErrFull) {
		t.Errorf("take above the limit: %v", err)
	}
	must(t, m.Give(Held, 2))
	must(t, m.Take(Held, 1))
	if err := m.Take(Held, 1); !errors.Is(err, ErrFull) {
		t.Errorf("take at the limit: %v", err)
	}
	must(t, l.SetLimit(100))
	must(t, m.Take(Held, 10))
	must(t, l.SetLimit(150))
	if left := m.Left(); left != 50 {
		t.Errorf("%d left", left)
	}
	must(t, l.SetLimit(160))
	if limit := m.Limit(); limit != 160 {
		t.Errorf("limit %d", limit)
	}
	must(t, l.SetLimit(170))
	must(t, m.Take(Held, 70))
	var full *FullError
	if err := m.Take(Held, 1); !errors.As(err, &full) || *full != (FullError{170, 170, 1}) {
		t.Error(err)
	}
	for _, limit := range []uint64{0, 1001} {
		if err := l.SetLimit(limit); err == nil || l.Limit() != 170 {
			t.Errorf("a limit of %d: %v, limit %d", limit, err, l.Limit())
		}
	}
	if limit := openLedger(t, path).Header().Limit; limit != 170 {
		t.Errorf("limit %d", limit)
	}
	part, err := l.Join(Part{ID: 1, Limit: 5})
	must(t, err)
	defer part.Leave()
	if part.Limit() != 5 {
		t.Errorf("limit %d of a part", part.Limit())
	}

	must(t, m.f.poke(uintptr(limitAt), 1001))
	if err := m.Take(Held, 0); !errors.Is(err, ErrDamaged) || m.Left() != 0 {
		t.Errorf("take with a damaged limit: %v", err)
	}
	must(t, l.Close())
	if err := l.SetLimit(200); err != ErrClosed || l.Limit() != 0 {
		t.Errorf("after close: %v", err)
	}
}

// TestTurnOfTheDeadIsNobodys: its ticket holds nobody up, and who has its slot has none.
func TestTurnOfTheDeadIsNobodys(t *testing.T) {
	l := byTurns(t)
	dead, m := join(t, l), join(t, l)
	must(t, dead.Take(Held, 10))
	_, err := dead.Queue(90)
	must(t, err)
	must(t, dead.SetTurn(func(t *Turn) { t.State, t.Movable, t.LendAfter = Leaving, 10, 1 }))
	must(t, l.Ask(entry(t, l, dead), Pause))
	_, err = m.Queue(90)
	must(t, err)
	slot := dead.slot
	must(t, dead.Forget()) // as the kernel does at its end
	if list := l.Turns(); len(list) != 1 || list[0].Slot != m.slot {
		t.Errorf("%+v", list)
	}
	must(t, m.Take(Held, 95)) // which clears the slot
	file, err := os.ReadFile(l.f.Path)
	must(t, err)
	if at := recordAt(slot); strings.Trim(string(file[at:at+turnBytes]), "\x00") != "" {
		t.Error("the record of the dead is not cleared")
	}

	must(t, m.Give(Held, 95))
	dead = join(t, l)
	_, err = dead.Queue(1)
	must(t, err)
	must(t, l.Ask(entry(t, l, dead), Pause))
	must(t, dead.Forget())
	again := join(t, l)
	got, err := again.Turn()
	must(t, err)
	if again.slot != slot || got != (Turn{Since: got.Since, Seen: got.Seen}) || got.Since == 0 {
		t.Errorf("slot %d, %+v", again.slot, got)
	}
}

// TestLeaveClearsTheTurn: a reader that knows no locks sees nobody there.
func TestLeaveClearsTheTurn(t *testing.T) {
	l := byTurns(t)
	m, err := l.Join()
	must(t, err)
	_, err = m.Queue(5)
	must(t, errors.Join(err, l.Ask(entry(t, l, m), Pause), m.Leave()))
	file, err := os.ReadFile(l.f.Path)
	must(t, err)
	if at := recordAt(m.slot); strings.Trim(string(file[at:at+turnBytes]), "\x00") != "" {
		t.Errorf("its record is %x", file[at:at+turnBytes])
	}
}

// TestDamagedRecordIsNobodysTurn: it is known as damaged, and the others go on.
func TestDamagedRecordIsNobodysTurn(t *testing.T) {
	l := byTurns(t)
	a, b := join(t, l), join(t, l)
	_, err := a.Queue(100)
	must(t, err)
	_, err = b.Queue(100)
	must(t, err)
	must(t, b.f.poke(uintptr(recordAt(a.slot))+uintptr(unsafe.Offsetof(record{}.movable)), 7))
	if e := entry(t, l, a); e.Turn != (Turn{Reason: Unreadable}) {
		t.Errorf("%+v", e.Turn)
	}
	must(t, b.Take(Held, 100))
	must(t, a.SetTurn(func(*Turn) {}))
	if e := entry(t, l, a); e.Reason != NoReason || e.Ticket != 1 {
		t.Errorf("after its next change %+v", e.Turn)
	}
	// What the process never says is damage, too, with a check that is right.
	r := recordOf(&Turn{State: states}, &a.own)
	must(t, b.f.WriteAt(unsafe.Slice((*byte)(unsafe.Pointer(r)), turnOwnBytes), recordAt(a.slot)))
	if e := entry(t, l, a); e.Turn != (Turn{Reason: Unreadable}) {
		t.Errorf("%+v", e.Turn)
	}
}

// TestNobodySeesHalfARecord: a reader without a lock reads what was written at once, or nothing
// that it takes for a turn.
func TestNobodySeesHalfARecord(t *testing.T) {
	l := byTurns(t)
	m := join(t, l)
	var all sync.WaitGroup
	all.Go(func() {
		for n := range uint64(20000) {
			err := m.SetTurn(func(t *Turn) {
				t.OnHost, t.Movable, t.Worked, t.Since, t.Swaps = n, n, Moment(n), Moment(n), n
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
	for range 20000 {
		e := entry(t, l, m)
		if e.Reason == Unreadable || e.Swaps == 0 {
			continue
		}
		want := e.Turn
		n := e.Swaps
		want.OnHost, want.Movable, want.Worked, want.Since = n, n, Moment(n), Moment(n)
		if e.Turn != want {
			t.Fatalf("half of two records: %+v", e.Turn)
		}
	}
	all.Wait()
}

// TestGoroutinesShareATurn is for the race detector.
func TestGoroutinesShareATurn(t *testing.T) {
	l := byTurns(t)
	m, other := join(t, l), join(t, l)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 100 {
				n := rand.Uint64N(30)
				_, err := m.Queue(n)
				_, _, turnsErr := other.Turns()
				_, turnErr := m.Turn()
				must(t, errors.Join(err, turnsErr, turnErr, l.SetLimit(100+n)))
				m.Limit()
				if err := m.Take(Held, n); err == nil {
					must(t, m.Give(Held, n))
				}
				must(t, m.Unqueue())
			}
		})
	}
	all.Wait()
	if e := entry(t, l, m); e.Ticket != 0 || e.Held != 0 {
		t.Errorf("%+v", e)
	}
}

// TestEveryReasonHasAText: ps says it.
func TestEveryReasonHasAText(t *testing.T) {
	seen := map[string]bool{}
	for r := range Reason(140) {
		text := r.String()
		if (r < reasons || Unreadable <= r && r <= Before) == strings.HasPrefix(text, "reason ") || seen[text] {
			t.Errorf("reason %d: %q", int(r), text)
		}
		seen[text] = true
	}
	for s := range states {
		if strings.HasPrefix(s.String(), "State") {
			t.Errorf("state %d: %v", int(s), s)
		}
	}
}
