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
	Leased    uint64
	Display   uint64 // left for the desktop, with what it uses
	Host      uint64 // left for the host, where the memory is the host's
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
	if st.Total == 0 || st.Free == 0 && st.Used == 0 {
		return Figures{}, fmt.Errorf("it is not known how much memory of the GPU is free (%s)", strings.Join(append([]string{"total " + fmt.Sprint(st.Total)}, st.Notes...), "; "))
	}
	f := Figures{over: map[identity]uint64{}}
	leased := map[identity]uint64{} // by all leases of a process
	for _, l := range leases {
		leased[l.process()] = Plus(leased[l.process()], l.Bytes)
		f.Leased = Plus(f.Leased, l.Bytes)
	}
	taken := Less(st.Total, st.Free)
	rest := taken // of which no process is known
	used := map[identity]uint64{}
	hidden := map[identity]bool{} // uses an unknown amount
	var display, unseen uint64
	for _, p := range st.Processes {
		rest = Less(rest, p.Used)
		w, sight := owners.OwnerOf(p)
		switch {
		case sight == Owned:
			used[w] = Plus(used[w], p.Used)
			hidden[w] = hidden[w] || !p.Known
			continue
		case p.Kind == "graphics":
			display = Plus(display, p.Used)
		case sight == Unseen:
			unseen = Plus(unseen, p.Used)
		}
		f.Foreign = append(f.Foreign, p)
	}
	foreign := taken
	// subtract takes what is within a lease from the foreign memory, and returns it.
	subtract := func(w identity, bytes uint64) uint64 {
		n := min(used[w], bytes)
		f.over[w] = used[w] - n
		if hidden[w] {
			more := min(bytes-n, rest)
			n += more
			rest -= more
		}
		foreign = Less(foreign, n)
		return n
	}
	// What containers use is within their lease alone, and is no more there for its process.
	for _, l := range leases {
		if len(l.Containers) > 0 {
			leased[l.process()] -= subtract(l.inside(), l.Bytes)
		}
	}
	for w, bytes := range leased {
		leased[w] -= subtract(w, bytes)
	}
	for _, l := range leases {
		if len(l.Containers) > 0 || !owners.IsElsewhere(l) {
			continue
		}
		n := min(leased[l.process()], Plus(unseen, rest))
		leased[l.process()] -= n
		foreign = Less(foreign, n)
		inRest := Less(n, unseen)
		unseen, rest = Less(unseen, n), rest-inRest
	}
	if st.Display {
		// Where no process is known to draw, memory without a known holder may
		// all be the desktop's.
		if display == 0 {
			display = rest
		}
		display = min(display, foreign)
		foreign -= display
		f.Display = max(floor, Plus(display, display/2))
	}
	if st.Unified {
		// Where the kernel ends up without memory the whole machine stands
		// still. A tenth is judgement, there is no published figure.
		f.Host = max(floor, st.Total/10)
	}
	kept := Plus(f.Host, reserve)
	// The desktop may come to use less than now, but has its floor.
	f.Most = Less(st.Total, Plus(kept, min(f.Display, floor)))
	f.Shareable = Less(st.Total, Plus(kept, Plus(f.Display, foreign)))
	return f, nil
}

// Ask is what one request wants: at most one of Bytes and Share is set, and neither means all
// that can be shared.
type Ask struct {
	Bytes  uint64  // of each lease
	Share  float64 // of each lease, as a part of what can be shared
	Copies int     // leases of that size
}

// Size returns the size of each lease, and whether the request fits. What can be shared
// varies a little as programs come and go, so a share is cut by up to a hundredth to what is
// left.
func (q Ask) Size(f Figures) (each uint64, fits bool) {
	n := uint64(q.Copies)
	switch {
	case q.Bytes != 0:
		hi, all := bits.Mul64(q.Bytes, n)
		return q.Bytes, hi == 0 && all <= f.Left()
	case q.Share != 0:
		each = min(uint64(q.Share*float64(f.Shareable)), f.Shareable)
	default:
		each = f.Shareable / n
	}
	if left := f.Left() / n; left < each && left >= each-each/100 {
		each = left
	}
	hi, all := bits.Mul64(each, n)
	return each, each > 0 && hi == 0 && all <= f.Left()
}

// Never reports whether a request for leases of a size would not fit even on an otherwise unused GPU.
func (q Ask) Never(f Figures, each uint64) bool {
	hi, all := bits.Mul64(each, uint64(q.Copies))
	return f.Most == 0 || hi != 0 || all > f.Most
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
