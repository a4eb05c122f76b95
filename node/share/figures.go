// The accounting: the memory that can be shared, the part that is left, and the
// holders of the rest. It knows no files and no kernel.

package share

import (
	"fmt"
	"math/bits"
	"strings"

	"gpumem/device"
)

// identity names whose memory it is: that of a process with leases, or of a lease's
// containers. A pid alone may be used again; with the time of its start it is not.
type identity struct {
	pid   int
	start uint64
	lease string // the lease's id, if it is its containers'; then the others are 0
}

// figures are a GPU's bytes at one moment.
type figures struct {
	most      uint64 // that could be shared if no other program used the GPU
	shareable uint64
	leased    uint64
	display   uint64 // left for the desktop, with what it uses
	host      uint64 // left for the host, where the memory is the host's
	foreign   []device.Process
	over      map[identity]uint64 // held beyond the leases
}

// left returns the shareable bytes that no lease has.
func (f figures) left() uint64 { return less(f.shareable, f.leased) }

// floor is what the desktop of a GPU with a display is left at least, and the
// host where the memory is the host's.
const floor = 1 << 30

// count adds up. owner returns whose memory that of a pid is.
func count(st device.Status, leases []record, reserve uint64, owner func(pid int) (identity, bool)) (figures, error) {
	if st.Total == 0 || st.Free == 0 && st.Used == 0 {
		return figures{}, fmt.Errorf("it is not known how much memory of the GPU is free (%s)", strings.Join(append([]string{"total " + fmt.Sprint(st.Total)}, st.Notes...), "; "))
	}
	f := figures{over: map[identity]uint64{}}
	leased := map[identity]uint64{} // by all leases of a process
	for _, l := range leases {
		leased[l.identity()] = plus(leased[l.identity()], l.Bytes)
		f.leased = plus(f.leased, l.Bytes)
	}
	taken := less(st.Total, st.Free)
	rest := taken // of which no process is known
	used := map[identity]uint64{}
	hidden := map[identity]bool{} // uses an unknown amount
	var display uint64
	for _, p := range st.Processes {
		rest = less(rest, p.Used)
		if w, ok := owner(p.PID); ok {
			used[w] = plus(used[w], p.Used)
			hidden[w] = hidden[w] || !p.Known
			continue
		}
		f.foreign = append(f.foreign, p)
		if p.Kind == "graphics" {
			display = plus(display, p.Used)
		}
	}
	foreign := taken
	// own subtracts what is within a lease from the foreign memory, and returns it.
	own := func(w identity, bytes uint64) uint64 {
		n := min(used[w], bytes)
		f.over[w] = used[w] - n
		if hidden[w] {
			more := min(bytes-n, rest)
			n += more
			rest -= more
		}
		foreign = less(foreign, n)
		return n
	}
	// What containers use is within their lease alone, and is no more there for its process.
	for _, l := range leases {
		if len(l.Containers) > 0 {
			leased[l.identity()] -= own(l.inside(), l.Bytes)
		}
	}
	for w, bytes := range leased {
		own(w, bytes)
	}
	if st.Display {
		// Where no process is known to draw, memory without a known holder may
		// all be the desktop's.
		if display == 0 {
			display = rest
		}
		display = min(display, foreign)
		foreign -= display
		f.display = max(floor, plus(display, display/2))
	}
	host := uint64(0)
	if st.Unified {
		// Where the kernel ends up without memory the whole machine stands
		// still. A tenth is judgement, there is no published figure.
		host = max(floor, st.Total/10)
		f.host = host
	}
	// The desktop may come to use less than now, but has its floor.
	f.most = less(st.Total, plus(plus(host, reserve), min(f.display, floor)))
	f.shareable = less(st.Total, plus(plus(host, reserve), plus(f.display, foreign)))
	return f, nil
}

// want returns the size of each lease of a request. What can be shared varies a little
// as programs come and go, so a share is cut by up to a hundredth to what is left.
func (q Request) want(f figures) (each uint64, fits bool) {
	n := uint64(q.Copies)
	switch {
	case q.Bytes != 0:
		hi, all := bits.Mul64(q.Bytes, n)
		return q.Bytes, hi == 0 && all <= f.left()
	case q.Share != 0:
		each = min(uint64(q.Share*float64(f.shareable)), f.shareable)
	default:
		each = f.shareable / n
	}
	if left := f.left() / n; left < each && left >= each-each/100 {
		each = left
	}
	hi, all := bits.Mul64(each, n)
	return each, each > 0 && hi == 0 && all <= f.left()
}

// never reports whether a request would not fit even on an otherwise unused GPU.
func (q Request) never(f figures, each uint64) bool {
	hi, all := bits.Mul64(each, uint64(q.Copies))
	return f.most == 0 || hi != 0 || all > f.most
}

// times, less and plus are the product, difference and sum, saturated at the limits
// of the type.
func times(a uint64, n int) uint64 {
	hi, lo := bits.Mul64(a, uint64(n))
	if hi != 0 {
		return 1<<64 - 1
	}
	return lo
}

func less(a, b uint64) uint64 { return a - min(a, b) }

func plus(a, b uint64) uint64 {
	if sum, carry := bits.Add64(a, b, 0); carry == 0 {
		return sum
	}
	return 1<<64 - 1
}
