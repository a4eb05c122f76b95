// Package host moves values to the host's memory and back.
//
// Nothing is computed again, but the link is slow. What is moved where is decided for the
// whole schedule.
//
// A value lies unused between two uses. It can be away meanwhile if the copy to
// the host and the one back both fit in between, while other things are computed
// and nothing else is on the link: one copy at a time in each direction. Copies out
// go as early as the link is free, those back as late. A value that is away twice
// is copied out once. What frees most of what is too much, and would take longest to
// compute again, for each second on the link goes first.
package host

import (
	"cmp"
	"container/heap"
	"errors"
	"slices"
	"sort"
	"strconv"
	"strings"

	"gpumem/hlo"
	"gpumem/hlo/cost"
	"gpumem/hlo/memory"
)

// Memory says how fast the host's memory is, and how fast the device computes.
type Memory struct {
	// ToHost and FromHost are bytes per second.
	ToHost, FromHost float32
	// Seconds is what an instruction takes at best.
	Seconds func(*hlo.Instruction) float64
}

// ErrNoSpeed is the error for a Memory without its speeds.
var ErrNoSpeed = errors.New("remat: moving values to the host needs the speeds of the link and Seconds")

// Check returns ErrNoSpeed for a memory that lacks a speed, or is nil.
func (h *Memory) Check() error {
	if h == nil || h.Seconds == nil || !(h.ToHost > 0) || !(h.FromHost > 0) {
		return ErrNoSpeed
	}
	return nil
}

// A Result is what [Move] did.
type Result struct {
	Values  int    // that are on the host for a while
	Reloads int    // copies back
	Bytes   uint64 // copied, in both directions
}

// For returns the host's memory for a module, with the cost model's seconds if it has none.
func (h *Memory) For(m *hlo.Module, rates cost.Rates) (*Memory, error) {
	k := *h
	if k.Seconds == nil {
		prices, err := cost.New(m, rates)
		if err != nil {
			return nil, err
		}
		k.Seconds = func(i *hlo.Instruction) float64 { return prices.Of(i).Seconds }
	}
	return &k, nil
}

// Copies counts the copies to the host and back in a module.
func Copies(m *hlo.Module) (r Result) {
	for _, c := range m.Computations {
		for _, i := range c.Instructions {
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
	}
	return r
}

// Move moves values of the entry to the host's memory and back, so that less
// than limit bytes are live as [memory.TempPeak] counts with HostFree, as far as copies take
// no time of their own: they fit between the uses, at the speeds of host, beside what
// runs there by host.Seconds. What takes no time to compute is left where it is. Its error is ErrNoSpeed, or that of memory.TempCurve.
func Move(m *hlo.Module, limit uint64, host *Memory) (*Result, error) {
	if err := host.Check(); err != nil {
		return nil, err
	}
	h, err := newHostPlan(m, limit, host)
	if err != nil {
		return nil, err
	}
	h.plan()
	return h.build(), nil
}

// A hostPlan plans for one computation. Places count its list; times are seconds from
// its start.
type hostPlan struct {
	c       *hlo.Computation
	host    *Memory
	begins  []float64 // by place, and the end
	excess  []int64   // by place: bytes over the limit
	away    []awayable
	out, in link
}

// An awayable is a value that may be away, and when it is.
type awayable struct {
	i     *hlo.Instruction
	bytes int64
	uses  []int   // places, ascending
	from  int     // the place before which it is on the host: where the copy out ends; 0: it is not
	start int     // the place before which the copy out begins
	out   float64 // when that has the link
	gaps  []leave // by place
}

// A leave is a time away.
type leave struct {
	back int     // the place before which the copy back begins
	in   float64 // when that has the link
	next int     // the use that waits for it
}

func newHostPlan(m *hlo.Module, limit uint64, host *Memory) (*hostPlan, error) {
	c := m.Entry
	curve, err := memory.TempCurve(m, memory.Options{HostFree: true})
	if err != nil {
		return nil, err
	}
	b, err := memory.Analyze(c, nil)
	if err != nil {
		return nil, err
	}
	h := &hostPlan{c: c, host: host, begins: make([]float64, len(c.Instructions)+1), excess: make([]int64, len(c.Instructions))}
	for k, i := range c.Instructions {
		h.begins[k+1] = h.begins[k] + max(0, host.Seconds(i))
		h.excess[k] = int64(curve[k]) - int64(min(limit, 1<<62))
	}
	for id := range b.List {
		x := &b.List[id]
		i := c.Instructions[x.Definer]
		if x.LiveOut || len(x.Index) > 0 || x.Bytes == 0 || len(b.Defined[x.Definer]) != 1 || !i.Shape.IsArray() || i.Shape.Space() != 0 || i.Opcode == hlo.Parameter || i.Opcode == hlo.CopyDone {
			continue
		}
		// All that use it do so themselves.
		handed := false
		var uses []int
		for _, u := range x.Uses {
			handed = handed || slices.Contains(b.Outputs[u.User], int32(id)) || !slices.Contains(c.Instructions[u.User].Operands, i)
			uses = append(uses, int(u.User))
		}
		slices.Sort(uses)
		if uses = slices.Compact(uses); !handed && len(uses) > 0 {
			h.away = append(h.away, awayable{i: i, bytes: x.Bytes, uses: append([]int{int(x.Definer)}, uses...)})
		}
	}
	return h, nil
}

// A move is a gap of a value: behind use k of it.
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

// plan takes the best move as long as there is one. Others only lose by it, as
// the link fills and the excess shrinks: so what is still on top when looked
// at again is the best.
func (h *hostPlan) plan() {
	var q moves
	for v := range h.away {
		for k := range len(h.away[v].uses) - 1 {
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

// copySeconds is what any copy takes besides its bytes: to start one and to hear of its end
// is some microseconds on each system that we know of. So small values stay.
const copySeconds = 10e-6

// A trial is how a move would go.
type trial struct {
	worth             float64
	out, in           span
	start, from       int // of the copy out
	first, back, next int // away at places first to back-1
}

// try says how the value would be away behind its use k. worth 0: it cannot be, or for nothing.
func (h *hostPlan) try(value, k int) (t trial) {
	v := &h.away[value]
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

// during is the last place that begins at a time or before it. A copy that is begun there
// waits for the link until then, if it has to.
func (h *hostPlan) during(at float64) int {
	return sort.Search(len(h.begins), func(p int) bool { return h.begins[p] > at }) - 1
}

// do is what try says.
func (h *hostPlan) do(value int, t trial) {
	v := &h.away[value]
	if v.from == 0 {
		h.copying(t.start, t.from)
		h.out.take(t.out)
		v.start, v.from, v.out = t.start, t.from, t.out.from
	}
	h.copying(t.back, t.next)
	h.in.take(t.in)
	at, _ := slices.BinarySearchFunc(v.gaps, t.next, func(g leave, next int) int { return g.next - next })
	v.gaps = slices.Insert(v.gaps, at, leave{t.back, t.in.from, t.next})
	for p := t.first; p < t.back; p++ {
		h.excess[p] -= v.bytes
	}
}

// underWay is what a copy takes beside its value until it is over: a word and three pointers.
const underWay = 4 + 3*8

// copying counts what a copy under way takes.
func (h *hostPlan) copying(from, to int) {
	for p := from; p < to; p++ {
		h.excess[p] += underWay
	}
}

// A copying is one copy of the plan. Its instructions stand before places of the list.
type copying struct {
	start, done *hlo.Instruction
	from, to    int
	at          float64 // when it has the link
}

// build puts the copies into the computation.
func (h *hostPlan) build() *Result {
	m, r := h.c.Module, &Result{}
	n := len(h.c.Instructions)
	places := make(map[*hlo.Instruction]int, n)
	for k, i := range h.c.Instructions {
		places[i] = k
	}
	var copies []copying
	copied := func(name string, from *hlo.Instruction, to *hlo.Shape, at float64, start, done int) *hlo.Instruction {
		shape := &hlo.Shape{Type: hlo.Tuple, Elements: []*hlo.Shape{to, from.Shape, {Type: "u32"}}}
		s := m.NewInstruction(name+"-start", hlo.CopyStart, shape, from)
		d := m.NewInstruction(name+"-done", hlo.CopyDone, to, s)
		copies = append(copies, copying{s, d, start, done, at})
		return d
	}
	for k := range h.away {
		v := &h.away[k]
		if len(v.gaps) == 0 {
			continue
		}
		r.Values++
		r.Bytes += uint64(v.bytes)
		device := v.i.Shape
		away := copied(v.i.Name+".to_host", v.i, Space(device), v.out, v.start, v.from)
		for g, l := range v.gaps {
			r.Reloads++
			r.Bytes += uint64(v.bytes)
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
	if r.Values == 0 {
		return r
	}
	ends, starts := make([][]*hlo.Instruction, n+1), make([][]*hlo.Instruction, n+1) // before a place
	// Those that begin before one place take turns on the link as planned.
	slices.SortStableFunc(copies, func(a, b copying) int { return cmp.Compare(a.at, b.at) })
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
	return r
}

// A span is a time on a link.
type span struct{ from, to float64 }

// A link is busy at these times, by time.
type link []span

// early is the first time from which on the link is free for so long, not before a time.
func (l link) early(at, long float64) float64 {
	k := sort.Search(len(l), func(k int) bool { return l[k].to > at })
	for ; k < len(l) && l[k].from < at+long; k++ {
		at = l[k].to
	}
	return at
}

// late is the last time at which a copy can begin that is over before a time, and
// whether that is not before another.
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

// Space returns a shape in the host's memory: with S(5) in its layout.
func Space(s *hlo.Shape) *hlo.Shape {
	h := *s
	h.HasLayout = true
	order, parts, _ := strings.Cut(s.FullLayout(), ":")
	if at := strings.Index(parts, "S("); at >= 0 && (at == 0 || parts[at-1] == ')') {
		end := at + strings.IndexByte(parts[at:], ')') + 1
		parts = parts[:at] + parts[end:]
	}
	// It stands behind tiles, paddings and element sizes, and before SC, P and M.
	at := len(parts)
	for _, later := range []string{"SC(", "P(", "M("} {
		if n := strings.Index(parts, later); n >= 0 {
			at = min(at, n)
		}
	}
	h.Layout = order + ":" + parts[:at] + "S(" + strconv.Itoa(hlo.HostSpace) + ")" + parts[at:]
	return &h
}
