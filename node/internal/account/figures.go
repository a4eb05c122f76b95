// Figures: the memory that can be shared, the part that is left, and the holders of the
// rest. They know no files and no kernel.

package account

import (
	"fmt"
	"math/bits"
	"strings"

	"gpumem/device"
)

// Figures are a GPU's bytes at one moment.
type Figures struct {
	Most      uint64 // that could be shared if no other program used the GPU
	Shareable uint64
	Leased    uint64           // at most, by all leases together
	Groups    map[string]Group // of the leases by turns
	Display   uint64           // left for the desktop, with what it uses
	Host      uint64           // left for the host, where the memory is the host's
	Foreign   []device.Process

	over map[identity]uint64 // held beyond the leases
}

// Left returns the shareable bytes that no lease has.
func (f Figures) Left() uint64 { return Less(f.Shareable, f.Leased) }

// Over returns what the containers of a lease hold beyond it, or without containers its
// process beyond all of its leases.
func (f Figures) Over(l Lease) uint64 {
	if len(l.Containers) > 0 {
		return f.over[l.inside()]
	}
	return f.over[l.process()]
}

// floor is what the desktop of a GPU with a display is left at least, and the
// host where the memory is the host's.
const floor = 1 << 30

// Owners tells whose memory that of processes is. An [Ancestry] does.
type Owners interface {
	OwnerOf(device.Process) (identity, Sight)
	IsElsewhere(Lease) bool // its process is of another pid namespace
}

// Count adds up.
//
// The processes of a lease of another pid namespace may not be seen. So what is used by processes
// that are not seen, or by none that is known, is within such leases, up to their size: it would
// be counted twice otherwise, as leased and as foreign.
func Count(st device.Status, leases []Lease, reserve uint64, owners Owners) (Figures, error) {
	isFreeKnown := st.Free > 0 || st.Used > 0
	if st.Total == 0 || !isFreeKnown {
		notes := append([]string{"total " + fmt.Sprint(st.Total)}, st.Notes...)
		return Figures{}, fmt.Errorf("it is not known how much memory of the GPU is free (%s)", strings.Join(notes, "; "))
	}
	c := newCounter(Less(st.Total, st.Free), leases)
	c.addProcesses(st.Processes, owners)
	c.settleSeen(leases)
	c.settleUnseen(leases, owners)
	c.addLeased(leases)
	if st.Display {
		c.leaveForDisplay()
	}
	f := c.f
	if st.Unified {
		// Where the kernel ends up without memory the whole machine stands
		// still. A tenth is judgement, there is no published figure.
		f.Host = max(floor, st.Total/10)
	}
	kept := Plus(f.Host, reserve)
	// The desktop may come to use less than now, but has its floor.
	f.Most = Less(st.Total, Plus(kept, min(f.Display, floor)))
	f.Shareable = Less(st.Total, Plus(kept, Plus(f.Display, c.foreign)))
	return f, nil
}

// A counter settles what is taken of a GPU: it is within a lease, the desktop's, or foreign.
type counter struct {
	f       Figures
	leased  map[identity]uint64 // by all leases of a process, less what is settled
	used    map[identity]uint64 // by the processes of leases
	settled map[identity]uint64 // of used, what is within the leases
	hidden  map[identity]bool   // uses an unknown amount
	foreign uint64              // taken, and in no lease so far
	rest    uint64              // taken, of which no process is known
	display uint64              // by programs that draw
	unseen  uint64              // by processes that are not seen
}

func newCounter(taken uint64, leases []Lease) *counter {
	c := &counter{
		f: Figures{over: map[identity]uint64{}}, leased: map[identity]uint64{},
		used: map[identity]uint64{}, settled: map[identity]uint64{}, hidden: map[identity]bool{}, foreign: taken, rest: taken,
	}
	for _, l := range leases {
		c.leased[l.process()] = Plus(c.leased[l.process()], l.Bytes)
	}
	return c
}

// addProcesses adds what the processes of the GPU use.
func (c *counter) addProcesses(processes []device.Process, owners Owners) {
	for _, p := range processes {
		c.rest = Less(c.rest, p.Used)
		w, sight := owners.OwnerOf(p)
		switch {
		case sight == Owned:
			c.used[w] = Plus(c.used[w], p.Used)
			c.hidden[w] = c.hidden[w] || !p.Known
			continue
		case p.Kind == "graphics":
			c.display = Plus(c.display, p.Used)
		case sight == Unseen:
			c.unseen = Plus(c.unseen, p.Used)
		}
		c.f.Foreign = append(c.f.Foreign, p)
	}
}

// settleSeen takes what the processes of leases use, up to the size of the leases, from the
// foreign memory.
func (c *counter) settleSeen(leases []Lease) {
	// What containers use is within their lease alone, and is no more there for its process.
	for _, l := range leases {
		if len(l.Containers) > 0 {
			c.leased[l.process()] -= c.subtract(l.inside(), l.Bytes)
		}
	}
	for w, bytes := range c.leased {
		c.leased[w] -= c.subtract(w, bytes)
	}
}

// subtract takes what is within a lease of some bytes from the foreign memory, and returns it.
func (c *counter) subtract(w identity, bytes uint64) uint64 {
	n := min(c.used[w], bytes)
	c.f.over[w] = c.used[w] - n
	if c.hidden[w] {
		more := min(bytes-n, c.rest)
		n += more
		c.rest -= more
	}
	c.foreign = Less(c.foreign, n)
	c.settled[w] = Plus(c.settled[w], n)
	return n
}

// settleUnseen takes what may be of leases of other pid namespaces from the foreign memory.
func (c *counter) settleUnseen(leases []Lease, owners Owners) {
	for _, l := range leases {
		if len(l.Containers) > 0 || !owners.IsElsewhere(l) {
			continue
		}
		n := min(c.leased[l.process()], Plus(c.unseen, c.rest))
		c.leased[l.process()] -= n
		c.settled[l.process()] = Plus(c.settled[l.process()], n)
		c.foreign = Less(c.foreign, n)
		inRest := Less(n, c.unseen)
		c.unseen, c.rest = Less(c.unseen, n), c.rest-inRest
	}
}

// leaveForDisplay takes what the desktop uses from the foreign memory, and leaves it half as
// much again.
func (c *counter) leaveForDisplay() {
	// Where no process is known to draw, memory without a known holder may
	// all be the desktop's.
	if c.display == 0 {
		c.display = c.rest
	}
	c.display = min(c.display, c.foreign)
	c.foreign -= c.display
	c.f.Display = max(floor, Plus(c.display, c.display/2))
}

// Ask is what one request wants: at most one of Bytes and Share is set, and neither means all
// that can be shared.
type Ask struct {
	Bytes  uint64  // of each lease
	Share  float64 // of each lease, as a part of what can be shared
	Copies int     // leases of that size
	Group  string  // of leases by turns: the one that they join; "" for none
}

// Want returns the bytes that all leases of a size need at once, at most the largest number: those
// of one where they are by turns.
func (q Ask) Want(each uint64) uint64 {
	if q.Group != "" {
		return each
	}
	return Times(each, q.Copies)
}

// Room returns the shareable bytes that the request can have: those that no lease has, and those of
// the leases that it shares with by turns.
func (q Ask) Room(f Figures) uint64 {
	return Less(f.Shareable, Less(f.Leased, f.Groups[q.Group].counts))
}

// Size returns the size of each lease, and whether the request fits. What can be shared
// varies a little as programs come and go, so a share is cut by up to a hundredth to what is
// left.
func (q Ask) Size(f Figures) (each uint64, fits bool) {
	n := uint64(q.Copies)
	if q.Group != "" {
		n = 1
	}
	room := q.Room(f)
	switch {
	case q.Bytes != 0:
		return q.Bytes, q.isWithin(room, q.Bytes)
	case q.Share != 0:
		each = min(uint64(q.Share*float64(f.Shareable)), f.Shareable)
	default:
		each = f.Shareable / n
	}
	if left := room / n; left < each && left >= each-each/100 {
		each = left
	}
	return each, each > 0 && q.isWithin(room, each)
}

// isWithin reports whether leases of a size fit into so many bytes.
func (q Ask) isWithin(room, each uint64) bool {
	hi, all := bits.Mul64(each, uint64(q.Copies))
	if q.Group != "" {
		hi, all = 0, each
	}
	return hi == 0 && all <= room
}

// Never reports whether a request for leases of a size would not fit even on an otherwise unused GPU.
func (q Ask) Never(f Figures, each uint64) bool { return f.Most == 0 || !q.isWithin(f.Most, each) }

// Limit returns the limit that the group is to have with the leases of a request that fits. It is at
// least the size of each, and what the group had: so nothing that is held exceeds it. And it is at
// most what the other leases leave, unless that is less than the group had.
func (q Ask) Limit(f Figures, each uint64) uint64 {
	g := f.Groups[q.Group]
	return min(Plus(g.Sum, Times(each, q.Copies)), max(g.Limit, q.Room(f)))
}

// Times is a * n, at most the largest number.
func Times(a uint64, n int) uint64 {
	hi, lo := bits.Mul64(a, uint64(n))
	if hi != 0 {
		return 1<<64 - 1
	}
	return lo
}

// Less is a - b, at least 0.
func Less(a, b uint64) uint64 { return a - min(a, b) }

// Plus is a + b, at most the largest number.
func Plus(a, b uint64) uint64 {
	if sum, carry := bits.Add64(a, b, 0); carry == 0 {
		return sum
	}
	return 1<<64 - 1
}
