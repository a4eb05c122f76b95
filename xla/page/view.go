package page

// The memory of one program over its schedule: the curve in bands, what lives when, by which
// part of the program and by which line of the source. A page of a module has one view, that
// of a plan has two.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"gpumem/internal/report"
	"gpumem/internal/report/web"
	"gpumem/size"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/load"
	"gpumem/xla/internal/memory"
	"gpumem/xla/internal/opname"
	"gpumem/xla/measure"
	"gpumem/xla/remat"
)

const (
	// mostColumns is the most columns of a curve, and mostRows of a view's list of values: the
	// largest, and all that live at the peak.
	mostColumns = 8192
	mostRows    = 30_000
	// mostBands is the most bands with a name. The rest is one band.
	mostBands = 7
	// mostGroups and mostAlive are how many rows the tables have that stand in the page itself.
	mostGroups = 20
	mostAlive  = 12
)

// A view is the memory of one program over its steps.
type view struct {
	Which string // before or after; "" if there is one view alone
	Steps int
	// At are the first steps of the columns of the curve, and Step the step that each one shows:
	// that with the most memory. Names are the instructions there, Total the bytes, Alive the
	// number of values.
	At, Step, Total, Alive web.Numbers
	Names                  []string
	Ways                   []*way
	Kinds                  []string // of Ways[0].Bands, for one value
	Way                    int      // that is shown first
	Texts                  []string // of the rows, each once
	Rows                   rows
	Left                   int // values that are in no row, for their number
	Peak                   uint64
	PeakStep, PeakColumn   int
	Heap                   *heapView `json:",omitempty"`

	PeakAt  string     `json:"-"`
	Title   string     `json:"-"`
	Static  []aliveRow `json:"-"` // what lives at the peak, for readers without scripts
	Rest    string     `json:"-"` // what Static leaves out
	Padding uint64     `json:"-"` // at the peak
	items   []item
	like    *view          // with the bands that this one shall have, too
	table   map[string]int // of Texts
}

// rows are the values of a program, the largest first, by column. Texts are indices.
type rows struct {
	Bytes, Padding         web.Numbers
	First, Last            []int
	Kind                   []int // of view.Ways[0].Bands
	Name, Shape, Op, Place []int
	Until                  []int   // the instruction of the last step
	Band                   [][]int // by way: the band, or the number of bands for the rest
	Offset                 []int64 // in the heap; -1 if it lies elsewhere
}

// A way is one way to colour the curve.
type way struct {
	Name  string // kind, scope or line
	Bands []*band
	// Groups are all that live at the peak, by the same key, the largest first. More says how
	// many others there are, and what they take.
	Groups []group `json:"-"`
	More   *group  `json:"-"`
}

// A band is one layer of the curve. The last one is the rest if Rest is set. Label is Name as far
// as it fits beside the curve.
type band struct {
	Name   string
	Label  string
	Rest   bool
	Peak   uint64
	Values web.Numbers // by column
}

// A group is what one part of a program, or one line, has at the peak.
type group struct {
	Name   string
	Bytes  uint64
	Values uint64
	Bar    string // percent of the longest
}

// An item is memory that one value takes from one step to another, both included.
type item struct {
	i           *hlo.Instruction
	bytes       uint64
	padding     uint64
	count       uint64
	first, last int
	kind        string
	shape, op   string
	part, place string
	offset      int64
}

// An aliveRow is a value that lives at the peak.
type aliveRow struct {
	Bytes, Part, Padding string
	Name, Shape          string
	Op, Place            string
	Kind                 string
}

// A heapView is where temporaries lie in the heap.
type heapView struct {
	Bytes uint64 // its size
	// Live is what lives in it in each column, Most the largest of that.
	Live web.Numbers
	Most uint64
	// Exact reports whether the places are XLA's own.
	Exact bool
	// Unknown is how many of XLA's values the module has no live range for.
	Unknown int
}

// kinds of items.
const (
	kindParameter = "parameters"
	kindResult    = "results"
	kindTemporary = "temporaries"
	kindBefore    = "as before"
	kindAdded     = "added by the plan"
)

// kindOf are the kinds of one value, for people.
var kindOf = map[string]string{kindParameter: "parameter", kindResult: "result", kindTemporary: "temporary", kindBefore: "", kindAdded: "added"}

// moduleView returns the view of a module that was measured.
func moduleView(s *measure.Answer) (*view, error) {
	a := s.Analysis
	v := &view{Steps: len(a.Curve()), table: map[string]int{}}
	sources := s.Module.Sources()
	offsets, heap := places(s)
	align := a.Alignment()
	ranges := a.Ranges() // of equal values the first in the order of the command comes first
	slices.SortStableFunc(ranges, func(r, s memory.LiveRange) int { return cmp.Compare(r.Value, s.Value) })
	for _, r := range ranges {
		x, named := &a.Values[r.Value], a.Values[r.Named].Instruction
		it := item{
			i: x.Instruction, bytes: a.BufferBytes[r.Buffer], count: 1, first: r.First, last: r.Last, kind: kindTemporary, offset: -1,
			shape: x.Shape.String(), op: named.OpName(), part: scopeOf(named), place: sources.Place(named),
		}
		if r.Last < r.First {
			continue
		}
		switch {
		case r.Parameter:
			it.kind = kindParameter
		case r.Result:
			it.kind = kindResult
		}
		taken := it.bytes
		if o, ok := offsets[r.Buffer]; ok {
			it.offset = int64(o.offset)
			taken = (max(taken, o.bytes) + align - 1) / align * align
		}
		if dense, err := x.Shape.DenseBytes(); err == nil && dense < taken {
			it.padding = taken - dense
		}
		v.items = append(v.items, it)
	}

	v.Heap = heap
	v.Title, v.PeakAt = "What lives at the peak", s.PeakAt
	name := func(step int) string {
		if step == len(a.Schedule) {
			return "the end"
		}
		return a.Schedule[step].Name
	}

	return v, v.fill(a.Curve(), name, []string{kindParameter, kindResult, kindTemporary})
}

// A place is where a buffer lies in the heap.
type place struct{ offset, bytes uint64 }

// places returns where buffers lie in the heap, by XLA's own assignment if there is one, and
// else as the model packs them.
func places(s *measure.Answer) (map[int]place, *heapView) {
	a, list := s.Analysis, map[int]place{}
	if s.Own == nil {
		for id, offset := range s.Assignment.Offsets {
			if v := &a.Values[id]; offset >= 0 && v.Space == 0 {
				list[v.Buffer] = place{uint64(offset), a.BufferBytes[v.Buffer]}
			}
		}
		return list, &heapView{Bytes: s.Assignment.Heap}
	}

	h := &heapView{Exact: true}
	var largest *load.Allocation
	for k := range s.Own.Allocations {
		if x := &s.Own.Allocations[k]; x.Temporary() && x.Space == 0 && (largest == nil || x.Bytes > largest.Bytes) {
			largest = x
		}
	}

	if largest == nil {
		return list, h
	}

	h.Bytes = largest.Bytes
	named := map[string]*hlo.Instruction{}
	for i := range s.Module.All() {
		named[i.Name] = i
	}

	for _, b := range largest.Buffers {
		var v memory.Value
		i, ok := named[b.Instruction]
		if ok {
			v, ok = a.ValueAt(i, b.Index...)
		}
		if !ok {
			h.Unknown++
			continue
		}
		at := list[v.Buffer]
		list[v.Buffer] = place{b.Offset, max(at.bytes, b.Bytes)}
	}

	return list, h
}

// planView returns the view of a program before or after a plan. Memory is counted as plans
// are measured: temporaries alone, and what an instruction calls while it runs. before is the view
// of the program before, and names are its names; both are nil for itself.
func planView(a *remat.Answer, which string, m *hlo.Module, before *view, names map[string]bool) (*view, error) {
	v := &view{Which: which, like: before, table: map[string]int{}}
	meter := memory.NewMeter(a.Request.Memory())
	curve, err := meter.Curve(m.Entry)
	if err != nil {
		return nil, err
	}

	v.Steps, v.PeakStep = len(curve), slices.Index(curve, slices.Max(curve))
	ranges, err := meter.Ranges(m.Entry)
	if err != nil {
		return nil, err
	}

	alive, err := meter.Alive(m.Entry)
	if err != nil {
		return nil, err
	}

	sources := m.Sources()
	add := func(x memory.Temp, first, last int, called bool) {
		it := item{
			i: x.Instruction, bytes: x.Bytes * x.Copies, count: x.Copies, first: first, last: last, kind: kindBefore, offset: -1,
			shape: x.Shape.String(), op: x.Instruction.OpName(), part: scopeOf(x.Instruction), place: sources.Place(x.Instruction),
		}
		if names != nil && !names[x.Instruction.Name] {
			it.kind = kindAdded
		}
		if dense, err := x.Shape.DenseBytes(); err == nil && dense < x.Bytes && !called {
			it.padding = (x.Bytes - dense) * x.Copies
		}
		if called {
			it.shape = "what it calls"
		}
		v.items = append(v.items, it)
	}

	// Of values of one size, the one that comes to live first stands first.
	slices.SortStableFunc(ranges, func(a, b memory.TempRange) int { return cmp.Compare(a.First, b.First) })
	for _, r := range ranges {
		if !r.Called || r.First != v.PeakStep {
			add(r.Temp, r.First, r.Last, r.Called)
		}
	}

	for _, x := range alive { // what is called at the peak is listed by value
		if x.Instruction.Parent != m.Entry {
			add(x, v.PeakStep, v.PeakStep, false)
		}
	}

	v.Title, v.PeakAt = "What lives at the peak "+which, m.Entry.Instructions[v.PeakStep].Name
	kinds := []string{kindBefore}
	if names != nil {
		kinds = append(kinds, kindAdded)
	}
	return v, v.fill(curve, func(step int) string { return m.Entry.Instructions[step].Name }, kinds)
}

// fill computes the curve's columns, bands, groups and rows from the items. The bytes of the
// items add up to the curve at each step, which is checked.
func (v *view) fill(curve []uint64, name func(step int) string, kinds []string) error {
	add := &adder{items: v.items, steps: v.columns(curve, name), sums: make([]uint64, len(curve)+1)}
	slices.SortStableFunc(v.items, func(a, b item) int { return cmp.Compare(b.bytes, a.bytes) })
	v.Alive = add.up(func(k int) uint64 { return v.items[k].count })
	for k, total := range add.up(func(k int) uint64 { return v.items[k].bytes }) {
		if total != v.Total[k] {
			return fmt.Errorf("page: live ranges of %d bytes at step %d, where the curve has %d", total, add.steps[k], v.Total[k])
		}
	}

	if h := v.Heap; h != nil {
		h.Live = add.up(func(k int) uint64 {
			if v.items[k].offset < 0 {
				return 0
			}
			return v.items[k].bytes
		})
		h.Most = slices.Max(add.sums)
	}

	for _, k := range kinds {
		v.Kinds = append(v.Kinds, kindOf[k])
	}

	bands := [][]int{
		v.colour(add, "kind", kinds, func(it *item) string { return it.kind }),
		v.colour(add, "scope", v.likeBands(1), func(it *item) string { return it.key(it.part) }),
		v.colour(add, "line", v.likeBands(2), func(it *item) string { return it.key(cmp.Or(oneLine(it.place), "(no line)")) }),
	}

	for n := len(v.Ways) - 1; n > 0; n-- { // the scopes, unless there is but one
		if len(v.Ways[n].Bands) > 2 {
			v.Way = n
		}
	}

	v.list(bands, name)
	return nil
}

// likeBands are the names of the bands of the view that this one is like, so that both have
// the same colours; none without such a view.
func (v *view) likeBands(way int) (names []string) {
	if v.like != nil {
		for _, b := range v.like.Ways[way].Bands {
			if !b.Rest {
				names = append(names, b.Name)
			}
		}
	}
	return names
}

// columns sets the columns of the curve and returns the step that each shows.
func (v *view) columns(curve []uint64, name func(step int) string) (steps []int) {
	v.Peak = slices.Max(append([]uint64{0}, curve...))
	v.PeakStep = max(slices.Index(curve, v.Peak), 0)
	wide := (len(curve) + mostColumns - 1) / mostColumns
	for from := 0; from < len(curve); from += wide {
		best := from
		for k := from; k < min(from+wide, len(curve)); k++ {
			if curve[k] > curve[best] {
				best = k
			}
		}
		if best == v.PeakStep {
			v.PeakColumn = len(steps)
		}
		steps = append(steps, best)
		v.At, v.Step = append(v.At, uint64(from)), append(v.Step, uint64(best))
		v.Total, v.Names = append(v.Total, curve[best]), append(v.Names, oneLine(name(best)))
	}

	return steps
}

// An adder adds up items over the steps in which they live.
type adder struct {
	items []item
	steps []int    // of the columns
	sums  []uint64 // by step, of the last sum
}

// up returns the sum of what amount returns for each item, by column.
func (a *adder) up(amount func(k int) uint64) (list web.Numbers) {
	clear(a.sums)
	for k := range a.items {
		n := amount(k)
		a.sums[a.items[k].first] += n
		a.sums[a.items[k].last+1] -= n
	}

	for k := 1; k < len(a.sums); k++ {
		a.sums[k] += a.sums[k-1]
	}

	for _, step := range a.steps {
		list = append(list, a.sums[step])
	}
	return list
}

// colour adds a way to colour the curve, by a key of the items, and returns the band of each
// item. names are keys whose bands come first, in this order; other bands are those of the
// largest groups at the peak.
func (v *view) colour(add *adder, name string, names []string, key func(*item) string) []int {
	var groups []*group
	index := map[string]int{}
	find := func(name string) int {
		k, ok := index[name]
		if !ok {
			k = len(groups)
			index[name], groups = k, append(groups, &group{Name: name})
		}
		return k
	}

	for _, name := range names {
		find(name)
	}

	of := make([]int, len(v.items)) // group, then band
	for k := range v.items {
		it := &v.items[k]
		of[k] = find(key(it))
		if v.atPeak(it) {
			groups[of[k]].Bytes += it.bytes
			groups[of[k]].Values += it.count
		}
	}

	order := make([]int, len(groups))
	for k := range order {
		order[k] = k
	}

	// Parameters are the floor.
	rank := func(k int) int {
		if k < len(names) {
			return k - len(names)
		} else if groups[k].Name == kindParameter {
			return -1
		}
		return 0
	}

	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(groups[b].Bytes, groups[a].Bytes))
	})

	named := len(order)
	if named > mostBands+1 {
		named = mostBands
	}

	w := &way{Name: name}
	bandOf := make([]int, len(groups))
	for at, k := range order {
		g := groups[k]
		switch bandOf[k] = min(at, named); {
		case at < named:
			w.Bands = append(w.Bands, &band{Name: g.Name})
		case at == named:
			w.Bands = append(w.Bands, &band{Name: "the rest", Rest: true})
		}
		w.Bands[bandOf[k]].Peak += g.Bytes
	}

	for k, text := range labels(w.Bands) {
		w.Bands[k].Label = text
	}

	for k := range of {
		of[k] = bandOf[of[k]]
	}

	for at, b := range w.Bands {
		b.Values = add.up(func(k int) uint64 {
			if of[k] != at {
				return 0
			}
			return v.items[k].bytes
		})
	}

	w.Groups, w.More = largest(groups)
	v.Ways = append(v.Ways, w)
	return of
}

// atPeak reports whether an item lives at the peak.
func (v *view) atPeak(it *item) bool { return it.first <= v.PeakStep && v.PeakStep <= it.last }

// largest returns the groups that have values, the largest first, and those beyond mostGroups
// as one; nil if there are none.
func largest(groups []*group) (list []group, more *group) {
	groups = slices.DeleteFunc(groups, func(g *group) bool { return g.Values == 0 })
	slices.SortStableFunc(groups, func(a, b *group) int { return cmp.Compare(b.Bytes, a.Bytes) })
	for k, g := range groups {
		if k < mostGroups {
			g.Bar = fmt.Sprintf("%.4g%%", 100*float64(g.Bytes)/float64(max(groups[0].Bytes, 1)))
			list = append(list, *g)
			continue
		}
		if more == nil {
			more = &group{Name: report.Count(uint64(len(groups)-mostGroups)) + " more"}
		}
		more.Bytes, more.Values = more.Bytes+g.Bytes, more.Values+g.Values
	}

	return list, more
}

// mostLabel is how many characters of a band's name stand beside the curve.
const mostLabel = 24

// labels returns the label of each band, no two the same.
func labels(bands []*band) []string {
	list, like := make([]string, len(bands)), map[string][]int{}
	for k, b := range bands {
		list[k] = label(b.Name, mostLabel)
		like[list[k]] = append(like[list[k]], k)
	}

	used := map[string]bool{}
	for k := range bands {
		if same := like[label(bands[k].Name, mostLabel)]; len(same) > 1 {
			names := make([][]rune, len(same))
			for n, at := range same {
				names[n] = []rune(bands[at].Name)
			}
			list[k] = apart([]rune(bands[k].Name), commonEnd(names))
		}
		for n, text := 2, list[k]; used[list[k]]; n++ {
			list[k] = fmt.Sprintf("%s (%d)", text, n)
		}
		used[list[k]] = true
	}

	return list
}

// commonEnd returns how many characters at their ends all names have in common, from a whole
// word on if there is one.
func commonEnd(names [][]rune) int {
	same := 0
	for ; same < len(names[0]); same++ {
		at := func(r []rune) rune { return r[len(r)-1-same] }
		if slices.ContainsFunc(names, func(r []rune) bool { return same == len(r) || at(r) != at(names[0]) }) {
			break
		}
	}

	first := names[0]
	if word := slices.Index(first[len(first)-same:], '/'); word >= 0 {
		same -= word
	}
	return same
}

// apart returns a label for a name whose last characters, same in number, other names have, too:
// what stands before them, and their end.
func apart(name []rune, same int) string {
	const half = mostLabel / 2
	before, end := name[:len(name)-same], name[len(name)-same:]
	if len(before) == 0 && len(name) > half { // another name has all of it at its end
		before, end = name[:half], name[half:]
	}
	return label(string(before), half) + label(string(end), half)
}

// label returns the end of a name, which says most, from a whole word on if there is one, in
// at most so many characters.
func label(name string, most int) string {
	r := []rune(name)
	if len(r) <= most {
		return name
	}
	tail := string(r[len(r)-most+1:])
	if at := strings.IndexByte(tail, '/'); at >= 0 && at < len(tail)-1 {
		tail = tail[at:]
	}
	return "…" + tail
}

// scopeOf returns the part of the program that an instruction is of, or its opcode if the module
// does not say.
func scopeOf(i *hlo.Instruction) string {
	if i.OpName() == "" {
		return "no op_name: " + string(i.Opcode)
	}
	return oneLine(opname.Part(i))
}

// key returns a name for what is grouped: parameters are one group.
func (it *item) key(name string) string {
	if it.kind == kindParameter {
		return kindParameter
	}
	return name
}

// list makes the rows.
func (v *view) list(bands [][]int, name func(step int) string) {
	v.Rows.Band = make([][]int, len(bands))
	for k := range v.items {
		it := &v.items[k]
		alive := v.atPeak(it)
		if alive {
			v.Padding += it.padding
		}
		if !alive && len(v.Rows.First) >= mostRows {
			v.Left++
			continue
		}
		r := &v.Rows
		r.Bytes, r.Padding = append(r.Bytes, it.bytes), append(r.Padding, it.padding)
		r.First, r.Last = append(r.First, it.first), append(r.Last, it.last)
		r.Kind = append(r.Kind, bands[0][k])
		title := it.i.Name
		if it.count > 1 {
			title += fmt.Sprintf(", %s times", report.Count(it.count))
		}
		r.Name, r.Shape = append(r.Name, v.text(title)), append(r.Shape, v.text(it.shape))
		r.Op, r.Place = append(r.Op, v.text(it.op)), append(r.Place, v.text(it.place))
		r.Until = append(r.Until, v.text(name(it.last)))
		r.Offset = append(r.Offset, it.offset)
		for n := range bands {
			r.Band[n] = append(r.Band[n], bands[n][k])
		}
		if !alive {
			continue
		}
		if len(v.Static) < mostAlive {
			row := aliveRow{Bytes: size.Format(it.bytes), Part: report.Part(it.bytes, v.Peak), Name: oneLine(title), Shape: oneLine(it.shape), Op: oneLine(it.op), Place: oneLine(it.place), Kind: kindOf[it.kind]}
			if it.padding > 0 {
				row.Padding = size.Format(it.padding)
			}
			v.Static = append(v.Static, row)
		}
	}

	var bytes, values uint64
	for k := range v.items {
		if it := &v.items[k]; v.atPeak(it) {
			if values++; values > uint64(len(v.Static)) {
				bytes += it.bytes
			}
		}
	}

	if n := values - uint64(len(v.Static)); n > 0 {
		v.Rest = fmt.Sprintf("and %s more, %s", report.Counted(n, "value"), size.Format(bytes))
	}
}

// maxText is the most characters of a name on the page: the middle of a longer one is left
// out. XLA's names have some hundred.
const maxText = 400

// oneLine returns a text of the module as the page has it.
func oneLine(s string) string { return report.Shorten(report.OneLine(s), maxText) }

// text returns the index of a text in Texts.
func (v *view) text(s string) int {
	s = oneLine(s)
	k, ok := v.table[s]
	if !ok {
		k = len(v.Texts)
		v.table[s], v.Texts = k, append(v.Texts, s)
	}
	return k
}

// peakText says how much lives at the peak, and where it is.
func (v *view) peakText() string {
	if v.Peak == 0 {
		return "there are no temporaries"
	}
	return fmt.Sprintf("%s in %s at %s, step %s of %s", size.Format(v.Peak), report.Counted(v.Alive[v.PeakColumn], "value"), oneLine(v.PeakAt), report.Count(uint64(v.PeakStep+1)), report.Count(uint64(v.Steps)))
}
