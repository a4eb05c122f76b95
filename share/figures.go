// The accounting: what can be shared, what is left of it, and who holds the
// rest. It knows no files and no kernel.

package share

import (
	"fmt"
	"math/bits"
	"strings"

	"gpumem/device"
)

// identity names a process. A pid alone may be used again; with the time of its start
// it is not.
type identity struct {
	pid   int
	start uint64
}

// figures are a GPU's bytes at one moment.
type figures struct {
	most      uint64 // that could be shared if nobody else used the GPU
	shareable uint64
	leased    uint64
	display   uint64 // left for the desktop, with what it uses
	host      uint64 // left for the host, where the memory is the host's
	foreign   []device.Process
	over      map[identity]uint64 // held by a lease's processes beyond it
}

// left is what no lease has of what can be shared.
func (f figures) left() uint64 { return less(f.shareable, f.leased) }

// floor is what the desktop of a GPU with a display is left at least, and the
// host where the memory is the host's.
const floor = 1 << 30

// count adds up. owner says which lease's process memory of a pid belongs to.
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
	hidden := map[identity]bool{} // uses some, and nobody says how much
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
	for w, bytes := range leased {
		n := min(used[w], bytes)
		f.over[w] = used[w] - n
		if hidden[w] {
			more := min(bytes-n, rest)
			n += more
			rest -= more
		}
		foreign = less(foreign, n)
	}
	if st.Display {
		// Where no process is known to draw, what nobody is known to hold may
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

// want is the size of each lease of a request. what is left may be a hundredth
// less than a share comes to, for what can be shared moves a little as programs
// come and go; it is given then.
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

// never says that a request would not fit even if it were alone, with a figure
// for all its leases.
func (q Request) never(f figures, each uint64) bool {
	hi, all := bits.Mul64(each, uint64(q.Copies))
	return f.most == 0 || hi != 0 || all > f.most
}

// times is a product, and less and plus are the difference and the sum, that
// stay within what there is.
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
