// Package host moves values to the host's memory and back. Nothing is recomputed, but the
// link to the host is slow.
//
// A value of 100 MB as an example. It is used at 1 ms and again at 9 ms, and memory is short
// from 3 ms to 8 ms. Each copy takes 2 ms. If the link is free, the copy out goes from 1 ms
// to 3 ms and the copy back from 7 ms to 9 ms, so that from 3 ms to 7 ms the value takes
// nothing on the device. The next value finds the link busy at these times: its copy out
// begins at 3 ms, and its copy back ends at 7 ms. Where both do not fit any more between two
// uses, the value stays.
//
// One copy at a time goes in each direction. A value that is away twice is copied out once.
// The move that frees most of the excess for each second on the link goes first, and among
// those the value that would take longest to recompute.
package host

import (
	"cmp"
	"container/heap"
	"errors"
	"slices"
	"sort"
	"strconv"
	"strings"

	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
)

// Memory is the host's memory: how fast the link is, and how long the device computes
// meanwhile.
type Memory struct {
	// ToHost and FromHost are the speeds of the link in bytes per second.
	ToHost, FromHost float32
	// Seconds returns what an instruction takes at best.
	Seconds func(*hlo.Instruction) float64
}

// ErrNoSpeed is the error for a Memory without its speeds.
var ErrNoSpeed = errors.New("remat: moving values to the host needs the speeds of the link and Seconds")

// Check returns ErrNoSpeed if a speed or Seconds is missing, or h is nil.
func (h *Memory) Check() error {
	if h == nil || h.Seconds == nil || !(h.ToHost > 0) || !(h.FromHost > 0) {
		return ErrNoSpeed
	}
	return nil
}

// For returns h for a module: with the seconds of the cost model if h has none.
func (h *Memory) For(m *hlo.Module, rates cost.Rates) (*Memory, error) {
	k := *h
	if k.Seconds == nil {
		prices, err := cost.New(m, rates)
		if err != nil {
			return nil, err
		}
		k.Seconds = prices.Seconds
	}
	return &k, nil
}

// A Result counts the copies to the host and back in a module.
type Result struct {
	Values  int    // that wait on the host
	Reloads int    // copies back
	Bytes   uint64 // copied in both directions
}

// Copies counts the copies to the host and back in a module.
func Copies(m *hlo.Module) (r Result) {
	for i := range m.All() {
		if i.Opcode != hlo.CopyStart || len(i.Shape.Elements) < 2 {
			continue
		}
		to, from := i.Shape.Elements[0], i.Shape.Elements[1]
		if (to.Space() == hlo.HostSpace) == (from.Space() == hlo.HostSpace) {
			continue
		}
		if to.Space() == hlo.HostSpace {
			r.Values++
		} else {
			r.Reloads++
		}
		if n, err := to.Bytes(); err == nil {
			r.Bytes += n
		}
	}
	return r
}

// Move moves values of the entry to the host's memory and back, so that at most limit bytes
// are live as [memory.TempPeak] counts with HostFree. It does so only as far as the copies
// fit beside what runs meanwhile, so that they take no time. Values that take no time to
// compute stay. Move reports whether it moved any. The error is ErrNoSpeed, or that of
// [memory.Meter.Curve].
func Move(m *hlo.Module, limit uint64, host *Memory) (moved bool, err error) {
	if err := host.Check(); err != nil {
		return false, err
	}
	h, err := newPlan(m, limit, host)
	if err != nil {
		return false, err
	}
	h.choose()
	return h.build(), nil
}

// A plan is what moves in one computation. Places are indices of its list; times are in
// seconds from its start.
type plan struct {
	c       *hlo.Computation
	host    *Memory
	begins  []float64 // by place, and the end
	excess  []int64   // by place: bytes over the limit
	values  []value
	out, in link
}

// A value may wait on the host between two of its uses.
type value struct {
	i     *hlo.Instruction
	bytes int64
	uses  []int     // places, ascending; the first is the definition
	from  int       // the place before which the copy out ends; 0: it does not move
	start int       // the place before which the copy out begins
	out   float64   // when that has the link
	gaps  []absence // by place
}

// An absence is a stretch between two uses that a value spends on the host.
type absence struct {
	back int     // the place before which the copy back begins
	in   float64 // when that has the link
	next int     // the use that waits for it
}

func newPlan(m *hlo.Module, limit uint64, host *Memory) (*plan, error) {
	c := m.Entry
	meter := memory.NewMeter(memory.Options{HostFree: true})
	curve, err := meter.Curve(c)
	if err != nil {
		return nil, err
	}
	b, err := meter.Buffers(c)
	if err != nil {
		return nil, err
	}
	h := &plan{c: c, host: host, begins: make([]float64, len(c.Instructions)+1), excess: make([]int64, len(c.Instructions))}
	for k, i := range c.Instructions {
		h.begins[k+1] = h.begins[k] + max(0, host.Seconds(i))
		h.excess[k] = int64(curve[k]) - int64(min(limit, 1<<62))
	}
	for id := range b.List {
		x := &b.List[id]
		i := c.Instructions[x.Definer]
		if x.LiveOut || len(x.Index) > 0 || x.Bytes == 0 || len(b.Defined[x.Definer]) != 1 || !isMovable(i) {
			continue
		}
		// All users read it themselves, not by way of others.
		handed := false
		var uses []int
		for _, u := range x.Uses {
			handed = handed || slices.Contains(b.Outputs[u.User], int32(id)) || !slices.Contains(c.Instructions[u.User].Operands, i)
			uses = append(uses, int(u.User))
		}
		slices.Sort(uses)
		if uses = slices.Compact(uses); !handed && len(uses) > 0 {
			h.values = append(h.values, value{i: i, bytes: x.Bytes, uses: append([]int{int(x.Definer)}, uses...)})
		}
	}
	return h, nil
}

// isMovable reports whether an instruction computes an array on the device.
func isMovable(i *hlo.Instruction) bool {
	return i.Shape.IsArray() && i.Shape.Space() == 0 && i.Opcode != hlo.Parameter && i.Opcode != hlo.CopyDone
}

// A move takes a value away after its use k.
type move struct {
	value, k int
	worth    float64
}

type moves []move

func (q moves) Len() int           { return len(q) }
func (q moves) Less(a, b int) bool { return q[a].worth > q[b].worth }
func (q moves) Swap(a, b int)      { q[a], q[b] = q[b], q[a] }
func (q *moves) Push(x any)        { *q = append(*q, x.(move)) }
func (q *moves) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// choose takes the best move as long as there is one. Each move makes the others worse, as
// the link fills and the excess shrinks. So a move that is still on top with its present
// worth is the best.
func (h *plan) choose() {
	var q moves
	for v := range h.values {
		for k := range len(h.values[v].uses) - 1 {
			if t := h.try(v, k); t.worth > 0 {
				q = append(q, move{v, k, t.worth})
			}
		}
	}
	heap.Init(&q)
	for len(q) > 0 {
		t := h.try(q[0].value, q[0].k)
		switch {
		case t.worth <= 0:
			heap.Pop(&q)
		case t.worth < q[0].worth:
			q[0].worth = t.worth
			heap.Fix(&q, 0)
		default:
			h.do(q[0].value, t)
			heap.Pop(&q)
		}
	}
}

// copySeconds is what a copy takes besides its bytes: starting it and noticing its end takes
// some microseconds on all systems known to us. So small values stay.
const copySeconds = 10e-6

// A trial is how a move would go.
type trial struct {
	worth             float64 // 0: it is not possible, or frees nothing
	out, in           span
	start, from       int // of the copy out
	first, back, next int // away at places first to back-1
}

// try returns how the value would be away after its use k.
func (h *plan) try(value, k int) (t trial) {
	v := &h.values[value]
	last, next := v.uses[k], v.uses[k+1]
	t.start, t.from, t.next = v.start, v.from, next
	back := copySeconds + float64(v.bytes)/float64(h.host.FromHost)
	seconds := back
	if v.from == 0 {
		long := copySeconds + float64(v.bytes)/float64(h.host.ToHost)
		seconds += long
		begin := h.out.early(h.begins[v.uses[0]+1], long)
		t.out = span{begin, begin + long}
		t.start = max(v.uses[0]+1, h.during(begin))
		t.from = max(t.start+1, sort.SearchFloat64s(h.begins, begin+long))
	}
	t.first = max(last+1, t.from)
	if t.first >= next {
		return t
	}
	begin, ok := h.in.late(h.begins[t.first], h.begins[next], back)
	if !ok {
		return t
	}
	t.in = span{begin, begin + back}
	t.back = min(next-1, h.during(begin))
	var freed float64
	for p := t.first; p < t.back; p++ {
		if h.excess[p] > 0 {
			freed += float64(min(v.bytes, h.excess[p]))
		}
	}
	t.worth = freed / seconds * h.host.Seconds(v.i)
	return t
}

// during returns the last place that begins at a time or before it. A copy that begins
// before that place waits for the link until the time, if necessary.
func (h *plan) during(at float64) int {
	return sort.Search(len(h.begins), func(p int) bool { return h.begins[p] > at }) - 1
}

// do makes the move of a trial.
func (h *plan) do(value int, t trial) {
	v := &h.values[value]
	if v.from == 0 {
		h.copying(t.start, t.from)
		h.out.take(t.out)
		v.start, v.from, v.out = t.start, t.from, t.out.from
	}
	h.copying(t.back, t.next)
	h.in.take(t.in)
	at, _ := slices.BinarySearchFunc(v.gaps, t.next, func(g absence, next int) int { return g.next - next })
	v.gaps = slices.Insert(v.gaps, at, absence{t.back, t.in.from, t.next})
	for p := t.first; p < t.back; p++ {
		h.excess[p] -= v.bytes
	}
}

// underWay is what a copy takes beside its value until it ends, in bytes: the context word and
// a table of three pointers.
const underWay = 4 + 3*8

// copying adds what a copy under way takes.
func (h *plan) copying(from, to int) {
	for p := from; p < to; p++ {
		h.excess[p] += underWay
	}
}

// A transfer is one copy of the plan. Its instructions stand before places of the list.
type transfer struct {
	start, done *hlo.Instruction
	from, to    int
	at          float64 // when it has the link
}

// build puts the copies into the computation. It reports whether there are any.
func (h *plan) build() bool {
	m := h.c.Module
	n := len(h.c.Instructions)
	places := make(map[*hlo.Instruction]int, n)
	for k, i := range h.c.Instructions {
		places[i] = k
	}
	var copies []transfer
	copied := func(name string, from *hlo.Instruction, to *hlo.Shape, at float64, start, done int) *hlo.Instruction {
		shape := &hlo.Shape{Type: hlo.Tuple, Elements: []*hlo.Shape{to, from.Shape, {Type: "u32"}}}
		s := m.NewInstruction(name+"-start", hlo.CopyStart, shape, from)
		d := m.NewInstruction(name+"-done", hlo.CopyDone, to, s)
		copies = append(copies, transfer{s, d, start, done, at})
		return d
	}
	for k := range h.values {
		v := &h.values[k]
		if len(v.gaps) == 0 {
			continue
		}
		device := v.i.Shape
		away := copied(v.i.Name+".to_host", v.i, Space(device), v.out, v.start, v.from)
		for g, l := range v.gaps {
			until := n
			if g+1 < len(v.gaps) {
				until = v.gaps[g+1].next
			}
			back := copied(v.i.Name+".to_device", away, device, l.in, l.back, l.next)
			v.i.ReplaceUses(back, func(u *hlo.Instruction) bool {
				at, given := places[u]
				return !given || at < l.next || at >= until
			})
		}
	}
	if len(copies) == 0 {
		return false
	}
	ends, starts := make([][]*hlo.Instruction, n+1), make([][]*hlo.Instruction, n+1) // before a place
	// Copies that begin before one place keep the order that they have on the link.
	slices.SortStableFunc(copies, func(a, b transfer) int { return cmp.Compare(a.at, b.at) })
	for _, k := range copies {
		starts[k.from], ends[k.to] = append(starts[k.from], k.start), append(ends[k.to], k.done)
	}
	list := make([]*hlo.Instruction, 0, n+2*len(copies))
	for k := range n + 1 {
		list = append(append(list, ends[k]...), starts[k]...)
		if k < n {
			list = append(list, h.c.Instructions[k])
		}
	}
	h.c.Reorder(list)
	return true
}

// A span is a time on a link, in seconds.
type span struct{ from, to float64 }

// A link is one direction of the link to the host: the times at which it is busy, ascending.
type link []span

// early returns the first time, at or after a time, from which the link is free for long.
func (l link) early(at, long float64) float64 {
	k := sort.Search(len(l), func(k int) bool { return l[k].to > at })
	for ; k < len(l) && l[k].from < at+long; k++ {
		at = l[k].to
	}
	return at
}

// late returns the last time from which the link is free for long until end. It reports
// whether that time is at or after first.
func (l link) late(first, end, long float64) (float64, bool) {
	k := sort.Search(len(l), func(k int) bool { return l[k].from >= end }) - 1
	for ; k >= 0 && l[k].to > end-long; k-- {
		end = min(end, l[k].from)
	}
	return end - long, end-long >= first
}

func (l *link) take(s span) {
	k := sort.Search(len(*l), func(k int) bool { return (*l)[k].from >= s.from })
	*l = slices.Insert(*l, k, s)
}

// Space returns the shape in the host's memory: with S(5) in its layout.
func Space(s *hlo.Shape) *hlo.Shape {
	h := *s
	h.HasLayout = true
	order, parts, _ := strings.Cut(s.FullLayout(), ":")
	if at := strings.Index(parts, "S("); at >= 0 && (at == 0 || parts[at-1] == ')') {
		end := at + strings.IndexByte(parts[at:], ')') + 1
		parts = parts[:at] + parts[end:]
	}
	// S stands after tiles, paddings and element sizes, and before SC, P and M.
	at := len(parts)
	for _, later := range []string{"SC(", "P(", "M("} {
		if n := strings.Index(parts, later); n >= 0 {
			at = min(at, n)
		}
	}
	h.Layout = order + ":" + parts[:at] + "S(" + strconv.Itoa(hlo.HostSpace) + ")" + parts[at:]
	return &h
}
