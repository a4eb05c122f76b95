// A request's place in the queue of one GPU.

package queue

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"gpumem/node/internal/registry"
)

// beats returns how often a waiter shows that it is alive, and checks the one that it
// waits for.
func beats() time.Duration { return registry.Silence / 2 }

// Ticket is a request's place in the queue of one GPU.
type Ticket struct {
	gpu   registry.GPU
	wants map[string]bool // the keys of all GPUs of the request

	file   *os.File // nil: none
	number uint64   // that the request has or had; 0: none yet
	rec    registry.Record
	beat   time.Time
}

// Turn describes the tickets before a request.
type Turn struct {
	Place  int              // tickets before it
	Before *registry.Claim  // the nearest that holds this one up; nil: this one is next
	Waits  bool             // the first of those has found too little memory
	First  []registry.Entry // the first of the tickets, for messages

	ids []string // of all tickets in the queue
}

// Shown is the number of waiters that messages name.
const Shown = 8

// ReadTurn reads the tickets before this request's: the first ones, for messages,
// and the nearest ones until one holds this one up. It removes those of the dead
// that it comes across. ids are those in the queue, in order.
func (t *Ticket) ReadTurn(ids []string) Turn {
	q := Turn{ids: ids}
	ahead := ids
	if t.number > 0 {
		n, _ := slices.BinarySearch(ahead, registry.TicketID(t.number))
		ahead = ahead[:n]
	}
	q.Place = len(ahead)
	read := map[string]*registry.Claim{}
	get := func(id string) *registry.Claim {
		if c, ok := read[id]; ok {
			return c
		}
		c, err := t.gpu.ReadTicket(id)
		if err == nil {
			read[id] = &c
			return &c
		}
		if registry.IsDead(err) {
			t.gpu.RemoveTicket(id)
		}
		read[id] = nil
		q.Place--
		return nil
	}
	passing := map[string]bool{} // of those that were read
	for _, id := range slices.Backward(ahead) {
		c := get(id)
		if c == nil {
			continue
		}
		if passing[id] = t.mayPass(c.Record); !passing[id] && t.gpu.IsRunning(*c) {
			q.Before = c
			break
		}
	}
	known := q.Before == nil // the first of those is looked up below
	if known {               // those that let it pass are not before it
		all := len(ahead)
		ahead = slices.DeleteFunc(slices.Clone(ahead), func(id string) bool { return passing[id] })
		q.Place -= all - len(ahead)
	}
	for _, id := range ahead {
		if known && len(q.First) >= Shown {
			break
		}
		c := get(id)
		if c == nil {
			continue
		}
		if !known && !t.mayPass(c.Record) && t.gpu.IsRunning(*c) {
			known, q.Waits = true, c.Waiting
		}
		if len(q.First) < Shown {
			e := t.gpu.Entry(*c)
			e.Place = len(q.First)
			q.First = append(q.First, e)
		}
	}
	return q
}

// mayPass reports whether a waiter waits for a ticket on a GPU that this request does
// not want, so that this one may go before it.
func (t *Ticket) mayPass(waiter registry.Record) bool {
	return slices.ContainsFunc(waiter.WaitsFor, func(name string) bool {
		key, id, ok := strings.Cut(name, ".")
		_, isNumber := registry.TicketNumber(id)
		if !ok || !isNumber || strings.ContainsRune(key, '/') || t.wants[key] {
			return false
		}
		_, err := registry.GPU{Registry: t.gpu.Registry, Key: key}.ReadTicket(id)
		return err == nil
	})
}

// take takes a ticket with the record if there is none yet. Caller holds the locks of all
// GPUs of the request.
func (t *Ticket) take(turn Turn, rec registry.Record) error {
	if _, taken := slices.BinarySearch(turn.ids, registry.TicketID(t.number)); t.number == 0 || taken {
		t.number = t.lastNumber(turn.ids) + 1
		if turn.Before != nil && t.number <= turn.Before.Number {
			// The last waiter has left since it was read. With its number, and the inode
			// that the file system gives again, this request would wait for itself.
			t.number = turn.Before.Number + 1
		}
	}
	for {
		t.rec = rec
		t.rec.ID, t.rec.Number = registry.TicketID(t.number), t.number
		f, err := t.gpu.MakeTicket(t.rec)
		if err == nil {
			t.file, t.beat = f, time.Now()
		}
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		t.number++ // the name is that of a dead file of another user, who alone can remove it
	}
}

// lastNumber returns the highest number of a waiter, or 0 if there is none.
func (t *Ticket) lastNumber(ids []string) uint64 {
	for _, id := range slices.Backward(ids) {
		if _, err := t.gpu.ReadTicket(id); err == nil {
			n, _ := registry.TicketNumber(id)
			return n
		}
	}
	return 0
}

// note writes on the ticket whether the request was ever next and short of memory, and the
// tickets on other GPUs that it waits for.
func (t *Ticket) note(waiting bool, waitsFor []string) error {
	waiting = waiting || t.rec.Waiting
	if waiting == t.rec.Waiting && slices.Equal(waitsFor, t.rec.WaitsFor) {
		return nil
	}
	t.rec.Waiting, t.rec.WaitsFor = waiting, waitsFor
	return t.gpu.WriteTicket(t.file, t.rec)
}

// isStanding reports whether the ticket's name is still that of its file.
func (t *Ticket) isStanding() bool { return t.gpu.HasTicket(t.file, t.rec.ID) }

// leave leaves the queue.
func (t *Ticket) leave() {
	if t.file == nil {
		return
	}
	if t.isStanding() { // else the name may be another's by now
		t.gpu.RemoveTicket(t.rec.ID)
	}
	t.drop()
}

// drop closes the ticket, which wakes the waiter behind it.
func (t *Ticket) drop() {
	registry.CloseTicket(t.file)
	t.file = nil
}

// touch shows that the waiter is alive.
func (t *Ticket) touch() {
	if now := time.Now(); t.file != nil && now.Sub(t.beat) >= beats()/2 {
		// If the file is gone the next pass makes it again.
		_ = os.Chtimes(t.gpu.Path(t.rec.ID, registry.TicketKind), time.Time{}, now)
		t.beat = now
	}
}
