// Package history keeps what successive snapshots of memory held, reports what grows,
// and numbers the programs so that a mark or a colour stays with one. gpumem top and
// gpumem serve show it.
//
// A History is a table: a row for each look, a column for each named quantity in bytes.
// A quantity need not be in each look: a program starts and ends.
package history

import (
	"slices"
	"strings"
	"time"
)

// Keep is the number of looks that are usually kept.
const Keep = 600

// History holds the last looks. It is not safe for concurrent use.
type History struct {
	keep   int
	first  int         // number of the oldest look that is kept, counted from 0
	times  []time.Time // of the looks, ascending
	values map[string][]value
	marks  map[string]map[string]int // by device and name; see number
	orders map[string][]string       // see Order
}

// value is a quantity in one look.
type value struct {
	look  int
	bytes uint64
}

// New returns a history of at most keep looks, keep above 0.
func New(keep int) *History {
	return &History{keep: keep, values: map[string][]value{}, marks: map[string]map[string]int{}, orders: map[string][]string{}}
}

// Add adds a look: the quantities that are known at a time. It reports whether the time
// is later than that of the last look; otherwise nothing is added.
func (h *History) Add(at time.Time, quantities map[string]uint64) bool {
	if n := len(h.times); n > 0 && !at.After(h.times[n-1]) {
		return false
	}
	h.times = append(h.times, at)
	look := h.Looks() - 1
	for name, bytes := range quantities {
		h.values[name] = append(h.values[name], value{look, bytes})
	}
	if len(h.times) <= h.keep {
		return true
	}
	h.times = h.times[1:]
	h.first++
	for name, values := range h.values {
		if values[0].look < h.first {
			values = values[1:]
		}
		if h.values[name] = values; len(values) == 0 {
			delete(h.values, name)
		}
	}
	return true
}

// Looks returns the number of looks that were added, those that are no longer kept
// included.
func (h *History) Looks() int { return h.first + len(h.times) }

// Value is a quantity at one time.
type Value struct {
	At    time.Time
	Bytes uint64
}

// Values returns what is kept of a quantity, the oldest first.
func (h *History) Values(name string) []Value {
	values := make([]Value, 0, len(h.values[name]))
	for _, v := range h.values[name] {
		values = append(values, Value{h.times[v.look-h.first], v.bytes})
	}
	return values
}

// Peak returns the largest value of a quantity among the last looks, 0 if it has none.
func (h *History) Peak(name string, looks int) (most uint64) {
	for _, v := range slices.Backward(h.values[name]) {
		if v.look < h.Looks()-looks {
			break
		}
		most = max(most, v.bytes)
	}
	return most
}

// Recent returns the names with a prefix that had a value above 0 among the last looks.
func (h *History) Recent(prefix string, looks int) (names []string) {
	for name := range h.values {
		if strings.HasPrefix(name, prefix) && h.Peak(name, looks) > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Columns are looks as a page reads them.
type Columns struct {
	Times []int64 `json:"times"` // milliseconds since 1970
	// Values has a value for each time, nil where the quantity is unknown.
	Values map[string][]*uint64 `json:"values"`
}

// Since returns the looks from a number on, as far as they are kept.
func (h *History) Since(look int) *Columns {
	look = max(look, h.first)
	c := &Columns{Times: []int64{}, Values: map[string][]*uint64{}}
	for n := look; n < h.Looks(); n++ {
		c.Times = append(c.Times, h.times[n-h.first].UnixMilli())
	}
	for name, values := range h.values {
		for _, v := range values {
			if v.look < look {
				continue
			}
			if c.Values[name] == nil {
				c.Values[name] = make([]*uint64, len(c.Times))
			}
			c.Values[name][v.look-look] = &v.bytes
		}
	}
	return c
}

// Growth is how a quantity's least value rises.
type Growth struct {
	Bytes     uint64  `json:"bytes"`            // from the first tenth of the time to the last; 0 if it does not grow
	Seconds   float64 `json:"seconds"`          // between these two
	PerMinute uint64  `json:"bytes_per_minute"` // Bytes over Seconds
}

const (
	// growthLeast is the least number of values by which growth is judged.
	growthLeast = 30
	tenths      = 10
	// growthRises is the number of tenths, of the nine that follow another, in which a
	// quantity that grows has risen. One may fail: a step of a program may be longer
	// than a tenth of the time.
	growthRises = 8
)

// Grows reports by how much a quantity grows: its least value in each tenth of the time
// that is kept rises in nearly each. What is allocated and freed again in each step does
// not count, and neither does what rises once, such as a pool at the start. It is nil if
// there are too few values to say.
func (h *History) Grows(name string) *Growth {
	values := h.Values(name)
	if len(values) < growthLeast {
		return nil
	}
	begin := values[0].At
	span := values[len(values)-1].At.Sub(begin)
	var least [tenths]Value // with the time of the tenth's first value
	for _, v := range values {
		k := min(tenths-1, int(tenths*v.At.Sub(begin)/span))
		if least[k].At.IsZero() {
			least[k] = v
		}
		least[k].Bytes = min(least[k].Bytes, v.Bytes)
	}
	rises := 0
	for k, l := range least {
		if l.At.IsZero() { // no look in that time
			return nil
		}
		if k > 0 && l.Bytes > least[k-1].Bytes {
			rises++
		}
	}
	first, last := least[0], least[tenths-1]
	g := &Growth{Seconds: last.At.Sub(first.At).Seconds()}
	if rises >= growthRises && last.Bytes > first.Bytes {
		g.Bytes = last.Bytes - first.Bytes
		g.PerMinute = uint64(float64(g.Bytes) * 60 / g.Seconds)
	}
	return g
}
