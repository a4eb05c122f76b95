package timeline

// A snapshot of the whole pool, for a page: its map and what is live.

import (
	"cmp"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"

	"gpumem/alloc"
	"gpumem/report"
)

const (
	// Cells of a map and rows of a list: of most snapshots, and of those at the
	// peak, at the first refusal and at the end.
	mapCells, keyCells = 512, 4096
	listRows, keyRows  = 24, 60
	holeRows           = 8
	// topBlocks and keyBlocks are the most blocks of a map that are listed.
	topBlocks, keyBlocks = 32, 256
	// maxNames and maxNameBytes bound the texts of stacks and frames.
	maxNames     = 2 << 20
	maxNameBytes = 4 << 10
)

// maxSizes is the number of different sizes that a snapshot lists; of more, ranges are
// shown. It is a variable for tests.
var maxSizes = 1 << 16

// A textTable gives each text one index.
type textTable struct {
	list  []string
	index map[string]int
	bytes int
}

func (t *textTable) of(text string) int {
	if len(text) > maxNameBytes {
		text = text[:maxNameBytes] + "..."
	}
	k, ok := t.index[text]
	if ok {
		return k
	}
	if t.bytes+len(text) > maxNames {
		return t.of("(a stack; there are too many to show)")
	}
	if t.index == nil {
		t.index = map[string]int{}
	}
	t.bytes += len(text)
	t.list = append(t.list, text)
	t.index[text] = len(t.list) - 1
	return len(t.list) - 1
}

// stackOf returns the texts of a site: its stack, and its innermost frame.
func (s *sampler) stackOf(site alloc.Site) [2]int {
	at, ok := s.sites[site]
	if !ok {
		text := stack(s.trace, uint32(site))
		first, _, _ := strings.Cut(text, "\n")
		at = [2]int{s.texts.of(text), s.texts.of(first)}
		s.sites[site] = at
	}
	return at
}

// snapshot visits the whole pool. A key one has more cells and rows.
func (s *sampler) snapshot(key bool) {
	cells, rows, tops := mapCells, listRows, topBlocks
	if key {
		cells, rows, tops = keyCells, keyRows, keyBlocks
	}
	top := topList[topBlock]{most: tops, size: func(b topBlock) uint64 { return b.size }}
	stats := s.pass.Stats()
	in := &report.Snapshot{Event: s.pass.Event, Used: stats.BytesInUse, Held: stats.PoolBytes, Hole: stats.LargestFreeBlock}
	var walked uint64
	s.pass.Allocator.Walk(func(c alloc.Chunk) bool {
		walked += c.Size
		return true
	})
	m := newMap(cells, max(walked, stats.PoolBytes))
	alive := s.timeline.Blocks == nil // to be gathered
	sizes, ranges := map[uint64]report.Group{}, map[uint64]report.Group{}
	sites := map[alloc.Site]report.Group{}
	region := -1
	s.pass.Allocator.Walk(func(c alloc.Chunk) bool {
		s.walked++
		if c.Live {
			top.add(topBlock{m.known, c.Size, c.Site})
		}
		m.add(c.Size, c.Live, c.Region != region)
		region = c.Region
		if c.Live {
			in.Blocks++
			in.Asked += c.Requested
			if alive {
				if sizes != nil {
					put(sizes, c.Requested, c.Requested, 1)
				}
				if len(sizes) > maxSizes {
					sizes = nil
				}
				put(ranges, 1<<max(0, bits.Len64(c.Requested)-1), c.Requested, 1)
				put(sites, c.Site, c.Requested, 1)
			}
		}
		return true
	})
	in.Map, in.Holes, in.Largest = m.done()
	for _, b := range top.done() {
		name := uint64(0)
		if b.site != 0 {
			name = uint64(s.stackOf(b.site)[0]) + 1
		}
		in.Top = append(in.Top, [3]uint64{b.at, b.size, name})
	}
	s.layer.Snapshots = append(s.layer.Snapshots, in)
	if !alive {
		return
	}
	in.Sizes = largest(sizes, rows)
	if sizes == nil || sumOf(in.Sizes) < in.Asked/2 {
		in.Sizes, in.Ranges = largest(ranges, rows), true
	}
	if s.trace.Sites() > 1 {
		stacks, frames := map[uint64]report.Group{}, map[uint64]report.Group{}
		for site, g := range sites {
			at := s.stackOf(site)
			put(stacks, uint64(at[0]), g.Bytes, g.Blocks)
			put(frames, uint64(at[1]), g.Bytes, g.Blocks)
		}
		in.Stacks, in.Frames = largest(stacks, rows), largest(frames, rows)
	}
}

func sumOf(list []report.Group) (bytes uint64) {
	for _, g := range list {
		bytes += g.Bytes
	}
	return bytes
}

// A topBlock is a live block on a map.
type topBlock struct {
	at, size uint64
	site     alloc.Site
}

// A topList keeps the largest of many values, the first of those as large.
type topList[T any] struct {
	most int
	size func(T) uint64
	list []T // up to twice as many
}

func (t *topList[T]) add(v T) {
	if t.list = append(t.list, v); len(t.list) == 2*t.most {
		t.done()
	}
}

// done returns the list, the largest first.
func (t *topList[T]) done() []T {
	slices.SortStableFunc(t.list, func(a, b T) int { return cmp.Compare(t.size(b), t.size(a)) })
	t.list = t.list[:min(len(t.list), t.most)]
	return t.list
}

func put[K comparable](m map[K]report.Group, key K, bytes uint64, blocks int) {
	g := m[key]
	g.Bytes, g.Blocks = g.Bytes+bytes, g.Blocks+blocks
	m[key] = g
}

// largest returns the rows with the most bytes.
func largest(m map[uint64]report.Group, rows int) []report.Group {
	list := make([]report.Group, 0, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		g := m[key]
		g.Key = key
		list = append(list, g)
	}
	slices.SortStableFunc(list, func(a, b report.Group) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return slices.Clone(list[:min(len(list), rows)])
}

// A poolMap is the pool in cells, as in report.Snapshot.Map.
type poolMap struct {
	used   []float64 // bytes of each cell in use
	known  uint64    // bytes so far
	total  uint64
	hole   [2]uint64 // the last piece, where joined
	joined bool      // the last piece is a hole
	holes  int
	// largest are the largest holes so far.
	largest topList[[2]uint64]
}

func newMap(cells int, total uint64) *poolMap {
	return &poolMap{
		used: make([]float64, min(uint64(cells), total)), total: total,
		largest: topList[[2]uint64]{most: holeRows, size: func(h [2]uint64) uint64 { return h[1] }},
	}
}

// add adds the next piece; apart reports whether it is separate from the last one.
func (m *poolMap) add(size uint64, live, apart bool) {
	from := m.known
	m.known += size
	switch {
	case !live && m.joined && !apart:
		m.hole[1] += size
	case !live:
		m.end()
		m.hole = [2]uint64{from, size}
		m.holes++
	default:
		m.end()
		width := float64(m.total) / float64(len(m.used))
		// The byte before the end may lie in two cells.
		for k := m.cell(from); k < len(m.used) && float64(k)*width < float64(from+size); k++ {
			low := max(float64(from), float64(k)*width)
			high := min(float64(from+size), float64(k+1)*width)
			m.used[k] += max(0, high-low) / width
		}
	}
	m.joined = !live
}

// end ends the hole that the last piece is in, if it is free.
func (m *poolMap) end() {
	if m.joined {
		m.joined = false
		m.largest.add(m.hole)
	}
}

// cell returns the cell of a byte.
func (m *poolMap) cell(at uint64) int {
	hi, lo := bits.Mul64(at, uint64(len(m.used)))
	k, _ := bits.Div64(hi, lo, m.total)
	return min(int(k), len(m.used)-1)
}

// done returns the map, the number of holes, and the largest of them.
func (m *poolMap) done() (text string, holes int, largest [][2]uint64) {
	cells := make([]byte, len(m.used))
	for k, part := range m.used {
		// 0 and 8 stand for cells that are free or used to the last byte.
		switch eighths := math.Round(8 * part); {
		case part < 1e-9:
			cells[k] = '0'
		case part > 1-1e-9:
			cells[k] = '8'
		default:
			cells[k] = '0' + byte(min(7, max(1, eighths)))
		}
		if m.known < m.total && k > m.cell(m.known) || m.known == 0 {
			cells[k] = '?'
		}
	}
	m.end()
	return string(cells), m.holes, m.largest.done()
}
