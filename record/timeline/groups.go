package timeline

// What lives, divided into bands: by stack, by caller, by size. The groups that weigh most
// have a band, the others share one, and so do the blocks that are older than the recording.
// See timeline.go for an overview.

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"math/bits"
	"slices"
	"strings"

	"gpumem/internal/report"
	"gpumem/record/internal/stacks"
	"gpumem/record/internal/sum"
	"gpumem/record/trace"
	"gpumem/size"
)

const (
	// maxBands is the number of groups that have a band: as many as there are colours.
	maxBands = 8
	// listRows is the most rows of a list of what lives.
	listRows = 40
	// maxCallers is the most stacks that the tree of callers is made of.
	maxCallers = 4096
	// maxSegments is the most segments of a recorded pool that are drawn.
	maxSegments = 4096
)

// maxSizes is the number of different sizes that have a group each; of more, ranges have
// one. It is a variable for tests.
var maxSizes = 4096

// A sizeTable knows how sizes are grouped.
type sizeTable struct {
	seen   map[uint64]struct{}
	ranges bool
}

func (s *sizeTable) note(bytes uint64) {
	if s.ranges {
		return
	}
	if s.seen == nil {
		s.seen = map[uint64]struct{}{}
	}
	if s.seen[bytes] = struct{}{}; len(s.seen) > maxSizes {
		s.ranges, s.seen = true, nil
	}
}

// key returns the group of a size: itself, or the power of two that its range begins with.
func (s *sizeTable) key(bytes uint64) uint64 {
	if s.ranges && bytes > 0 {
		return 1 << (bits.Len64(bytes) - 1)
	}
	return bytes
}

// name returns a group's name.
func (s *sizeTable) name(key uint64) string {
	switch text := size.Format(key); {
	case s.ranges && key > 0 && key < 1<<63:
		return text + " to " + size.Format(2*key)
	case s.ranges && key > 0:
		return text + " and more"
	default:
		return text
	}
}

// exactly returns the bytes of a size whose name is rounded; "" for others.
func (s *sizeTable) exactly(key uint64) string {
	if !s.ranges && strings.Contains(size.Format(key), ".") {
		return report.Count(key) + " B"
	}
	return ""
}

// weights say how much of the picture each site and each size takes: its bytes times the
// events that they live, as a part of the whole, and its part of the peak.
type weights struct {
	sites, sitesAtPeak []float64
	sizes, sizesAtPeak map[uint64]float64
}

func newWeights(sites uint32) weights {
	return weights{make([]float64, sites), make([]float64, sites), map[uint64]float64{}, map[uint64]float64{}}
}

// maxWeighed bounds the sizes that are weighed: beyond, what comes first counts. The group of
// a size is known only when all are seen, so there may be more of them than groups.
const maxWeighed = 1 << 20

// add weighs a block that is live for n events.
func (w *weights) add(b *trace.Block, n uint64) {
	area := float64(b.Bytes) * float64(n)
	w.sites[b.Site] += area
	if _, ok := w.sizes[b.Bytes]; ok || len(w.sizes) < maxWeighed {
		w.sizes[b.Bytes] += area
	}
}

// addPeak weighs a block that is live at the peak.
func (w *weights) addPeak(site uint32, bytes uint64) {
	w.sitesAtPeak[site] += float64(bytes)
	if len(w.sizesAtPeak) < maxWeighed {
		w.sizesAtPeak[bytes] += float64(bytes)
	}
}

// parts returns the weight of each key that has some.
func parts[K comparable](area, atPeak iter.Seq2[K, float64]) map[K]float64 {
	out := map[K]float64{}
	for _, list := range []iter.Seq2[K, float64]{area, atPeak} {
		var whole float64
		for _, v := range list {
			whole += v
		}
		for k, v := range list {
			if v > 0 {
				out[k] += v / max(whole, 1)
			}
		}
	}
	return out
}

// heaviest returns the keys of the largest weights.
func heaviest[K cmp.Ordered](weights map[K]float64, n int) []K {
	keys := slices.Sorted(maps.Keys(weights))
	slices.SortStableFunc(keys, func(a, b K) int { return cmp.Compare(weights[b], weights[a]) })
	return keys[:min(len(keys), n)]
}

// A grouping fills a report.Grouping while a pass plays the events.
type grouping struct {
	out *report.Grouping
	// band returns the index of the band that a block belongs to, and name that of the
	// text of its group in a list.
	band, name func(b *trace.Block) int
	pool       *trace.Pool
	bandOf     []int16 // of each slot
	counters   []*bandCounter
}

// A bandCounter counts the live blocks of one band.
type bandCounter struct {
	band    *report.Band
	bytes   sum.Sum
	blocks  uint64
	queue   []queued // of its live blocks, the oldest first, and some that are gone
	sampled [3]uint64
}

type queued struct {
	slot   uint32
	number uint64 // of the event that allocated it
}

// play follows an event.
func (g *grouping) play(e *trace.Event, b *trace.Block) {
	if e.Op == trace.Free {
		g.drop(e)
		return
	}
	k := g.band(b)
	g.bandOf[e.Slot] = int16(k)
	c := g.counters[k]
	c.bytes.Add(b.Bytes)
	c.blocks++
	c.queue = append(c.queue, queued{e.Slot, b.Number})
}

// drop takes a block out.
func (g *grouping) drop(e *trace.Event) {
	c := g.counters[g.bandOf[e.Slot]]
	c.bytes.Sub(e.Bytes)
	c.blocks--
}

// sample notes what each band has.
func (g *grouping) sample(slots []trace.Block) {
	for _, c := range g.counters {
		c.sampled = [3]uint64{c.bytes.Cap(), c.blocks, c.oldest(g.pool, slots)}
	}
}

// oldest returns the event that allocated the oldest block of a band.
func (c *bandCounter) oldest(pool *trace.Pool, slots []trace.Block) uint64 {
	gone := func(q queued) bool {
		b := &slots[q.slot]
		return !b.Live || b.Number != q.number
	}
	n := 0
	for n < len(c.queue) && gone(c.queue[n]) {
		n++
	}
	if c.queue = c.queue[n:]; len(c.queue) == 0 {
		return 0
	}
	// An old block keeps those behind it in the queue long after they are gone.
	if uint64(len(c.queue)) > 64+4*c.blocks {
		c.queue = slices.DeleteFunc(slices.Clone(c.queue), gone)
	}
	return pool.Recorded(c.queue[0].number)
}

// flush appends what was sampled.
func (g *grouping) flush() {
	for _, c := range g.counters {
		b := c.band
		b.Bytes, b.Blocks, b.Since = append(b.Bytes, c.sampled[0]), append(b.Blocks, c.sampled[1]), append(b.Since, c.sampled[2])
	}
}

// done returns the grouping without bands that are empty throughout.
func (g *grouping) done() *report.Grouping {
	for _, c := range g.counters {
		if slices.ContainsFunc(c.band.Blocks, func(n uint64) bool { return n > 0 }) {
			g.out.Bands = append(g.out.Bands, c.band)
		}
	}
	return g.out
}

// A bandName names a band.
type bandName struct{ name, detail string }

// newGrouping returns a grouping with a band for the seeds if there are some, one for each
// name, and one for the rest. group returns the index of a block's name, -1 for the rest.
func (o *outline) newGrouping(by string, names []bandName, rest string, group func(b *trace.Block) int, name func(b *trace.Block) int) *grouping {
	g := &grouping{out: &report.Grouping{By: by, Bands: []*report.Band{}}, name: name, pool: o.pool, bandOf: make([]int16, o.pool.Slots)}
	add := func(n bandName, kind string) {
		band := &report.Band{Name: o.texts.IndexOf(n.name), Detail: -1, Kind: kind}
		if n.detail != "" {
			band.Detail = o.texts.IndexOf(n.detail)
		}
		g.counters = append(g.counters, &bandCounter{band: band})
	}
	first := 0
	// Of a recording of one instant all is older, and nothing is told apart by it.
	if o.before() {
		add(bandName{beforeName, ""}, report.Before)
		first = 1
	}
	for _, n := range names {
		add(n, "")
	}
	add(bandName{rest, ""}, report.Rest)
	last := len(g.counters) - 1
	g.band = func(b *trace.Block) int {
		if o.isSeed(b) && o.before() {
			return 0
		}
		if k := group(b); k >= 0 {
			return first + k
		}
		return last
	}
	return g
}

const beforeName = "from before the recording"

// before reports whether there is a band for what is older than the recording.
func (o *outline) before() bool { return o.pool.Seeds > 0 && o.timeline.Events > 0 }

// groupings returns the ways to divide what lives, the one that is shown first first.
func (o *outline) groupings() (list []*grouping) {
	if g := o.byPurpose(); g != nil {
		list = append(list, g)
	}
	if o.trace.Sites() > 1 {
		list = append(list, o.byStack())
		if g := o.byCaller(); g != nil {
			list = append(list, g)
		}
	}
	return append(list, o.bySize())
}

// siteParts returns the weight of each site.
func (o *outline) siteParts() map[int]float64 {
	return parts(slices.All(o.weights.sites), slices.All(o.weights.sitesAtPeak))
}

// bandsOfSites returns the band of each site, -1 for the rest.
func (o *outline) bandsOfSites(band func(site int) (int, bool)) []int16 {
	bands := make([]int16, o.trace.Sites())
	for site := range bands {
		bands[site] = -1
		if k, ok := band(site); ok {
			bands[site] = int16(k)
		}
	}
	return bands
}

// stackName returns the text of a block's stack, marked if the block is older than the
// recording.
func (o *outline) stackName(b *trace.Block) int {
	at := o.texts.sites
	key := uint64(b.Site) << 1
	if o.isSeed(b) {
		key++
	}
	if k, ok := at[key]; ok {
		return k
	}
	text := stack(o.trace, b.Site)
	if o.isSeed(b) && o.before() && b.Site == 0 {
		text = "(" + beforeName + ", without a stack)"
	}
	if o.isSeed(b) && o.before() && !strings.Contains(text, "before the recording") { // the reader says so, too
		first, others, several := strings.Cut(text, "\n")
		if text = first + " (" + beforeName + ")"; several {
			text += "\n" + others
		}
	}
	at[key] = o.texts.IndexOf(text)
	return at[key]
}

// byStack has a band for each of the heaviest stacks.
func (o *outline) byStack() *grouping {
	// Sites whose texts are the same are one group.
	texts := map[string]float64{}
	siteText := map[int]string{}
	weights := o.siteParts()
	for _, site := range heaviest(weights, maxCallers) {
		text := stack(o.trace, uint32(site))
		siteText[site] = text
		texts[text] += weights[site]
	}
	index := map[string]int{}
	var names []bandName
	heavy := heaviest(texts, maxBands)
	for k, name := range shorten(heavy) {
		index[heavy[k]] = k
		names = append(names, bandName{name, heavy[k]})
	}
	bands := o.bandsOfSites(func(site int) (int, bool) {
		k, ok := index[siteText[site]]
		return k, ok
	})
	return o.newGrouping("stack", names, "all other stacks", func(b *trace.Block) int { return int(bands[b.Site]) }, o.stackName)
}

// shorten names each stack after the innermost frame of the program's own files, or after
// the first frame further out that tells it from the others.
func shorten(stacks []string) (names []string) {
	heads := map[string]int{} // the innermost frames of stacks
	for _, s := range stacks {
		for at := range ownHeads(s) {
			heads[at]++
		}
	}
	for _, s := range stacks {
		name := ""
		for at := range ownHeads(s) {
			last := at[strings.LastIndexByte(at, '\n')+1:]
			if name = cmp.Or(name, last); heads[at] == 1 {
				name = last
				break
			}
		}
		names = append(names, name)
	}
	return names
}

// ownHeads returns the innermost frames of a stack, from those up to the first of the
// program's own on: one frame more each time.
func ownHeads(stack string) iter.Seq[string] {
	return func(yield func(string) bool) {
		own := stacks.OwnFrame(stack)
		for at, seen := 0, false; at <= len(stack); {
			end := len(stack)
			if n := strings.IndexByte(stack[at:], '\n'); n >= 0 {
				end = at + n
			}
			if seen = seen || stack[at:end] == own; seen && !yield(stack[:end]) {
				return
			}
			at = end + 1
		}
	}
}

// label names the rows of a list.
func (o *outline) label(rows []report.Group) {
	var stacks []string
	for _, r := range rows {
		if r.Name >= 0 {
			stacks = append(stacks, strings.Replace(o.texts.List[r.Name], " ("+beforeName+")", "", 1))
		}
	}
	for k, name := range shorten(stacks) {
		if strings.Contains(o.texts.List[rows[k].Name], " ("+beforeName+")") {
			name += " (" + beforeName + ")"
		}
		rows[k].Label = o.texts.IndexOf(name)
	}
}

// bySize has a band for each of the heaviest sizes. Where they are less than half of all,
// ranges of sizes say more.
func (o *outline) bySize() *grouping {
	weights := o.sizeParts()
	if !o.sizes.ranges {
		var top, all float64
		for _, key := range heaviest(weights, maxBands) {
			top += weights[key]
		}
		for _, w := range weights {
			all += w
		}
		if top < all/2 {
			o.sizes.ranges = true
			weights = o.sizeParts()
		}
	}
	index := map[uint64]int{}
	var names []bandName
	for k, key := range heaviest(weights, maxBands) {
		index[key] = k
		names = append(names, bandName{o.sizes.name(key), o.sizes.exactly(key)})
	}
	return o.newGrouping("size", names, "all other sizes", func(b *trace.Block) int {
		if k, ok := index[o.sizes.key(b.Bytes)]; ok {
			return k
		}
		return -1
	}, func(b *trace.Block) int {
		key := o.sizes.key(b.Bytes)
		name := o.sizes.name(key)
		if o.isSeed(b) && o.before() {
			name += " (" + beforeName + ")"
		}
		if exact := o.sizes.exactly(key); exact != "" {
			name += ", " + exact
		}
		return o.texts.IndexOf(name)
	})
}

// sizeParts returns the weight of each group of sizes.
func (o *outline) sizeParts() map[uint64]float64 {
	area, atPeak := map[uint64]float64{}, map[uint64]float64{}
	for bytes, v := range o.weights.sizes {
		area[o.sizes.key(bytes)] += v
	}
	for bytes, v := range o.weights.sizesAtPeak {
		atPeak[o.sizes.key(bytes)] += v
	}
	return parts(maps.All(area), maps.All(atPeak))
}

// listAt lists what lives after an event. A request that the recorded program was refused is
// not in it.
func (o *outline) listAt(w *trace.Walk, groupings []*grouping) *report.List {
	live, blocks := w.Kept()
	l := &report.List{Event: o.pool.Recorded(w.Number), Bytes: live.Cap(), Blocks: blocks}
	for _, g := range groupings {
		byName := map[int]*report.Group{}
		for i := range w.Slots {
			b := &w.Slots[i]
			if !w.Keeps(b) {
				continue
			}
			name, born := g.name(b), o.born(b)
			r := byName[name]
			if r == nil {
				r = &report.Group{Name: name, Since: born}
				byName[name] = r
			}
			r.Bytes, r.Blocks, r.Since = size.Add(r.Bytes, b.Bytes), r.Blocks+1, min(r.Since, born)
		}
		rows := []report.Group{}
		for _, name := range slices.Sorted(maps.Keys(byName)) {
			rows = append(rows, *byName[name])
		}
		slices.SortStableFunc(rows, func(a, b report.Group) int { return cmp.Compare(b.Bytes, a.Bytes) })
		if len(rows) > listRows {
			rest := report.Group{Name: -1, Kinds: uint64(len(rows) - listRows), Since: rows[listRows].Since}
			for _, r := range rows[listRows:] {
				rest.Bytes, rest.Blocks, rest.Since = size.Add(rest.Bytes, r.Bytes), rest.Blocks+r.Blocks, min(rest.Since, r.Since)
			}
			rows = append(rows[:listRows:listRows], rest)
		}
		o.label(rows)
		l.Groups = append(l.Groups, rows)
	}
	return l
}

// hex returns an address as text.
func hex(n uint64) string { return fmt.Sprintf("0x%x", n) }
