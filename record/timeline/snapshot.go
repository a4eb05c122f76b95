package timeline

// A snapshot of the whole pool, for a page: its map and what is live.

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"gpumem/alloc"
	"gpumem/internal/report"
	"gpumem/record/trace"
)

const (
	// Cells of a map: of most snapshots, and of those at the peak, at the first refusal
	// and at the end.
	mapCells, keyCells = 256, 2048
	holeRows           = 8
	// topBlocks and keyBlocks are the most blocks of a map that are listed.
	topBlocks, keyBlocks = 24, 200
	// maxNames and maxNameBytes bound the texts of stacks and groups.
	maxNames     = 2 << 20
	maxNameBytes = 4 << 10
)

// textTable is the texts of a page, and which of them each site has.
type textTable struct {
	report.Texts
	sites map[uint64]int // of outline.stackName
	shown func(stack string) string
}

func newTexts(t *trace.Trace) *textTable {
	return &textTable{shown: t.Shown, Texts: report.Texts{Most: maxNames, Longest: maxNameBytes}, sites: map[uint64]int{}}
}

// stack returns a site's stack as text, with the directories of files: the page leaves them
// out at the end.
func stack(t *trace.Trace, site uint32) string {
	return cmp.Or(t.FullSite(site), "(no stack was recorded)")
}

// snapshot visits the whole pool. A key one has more cells and blocks.
func (s *sampler) snapshot(key bool) {
	cells, tops := mapCells, topBlocks
	if key {
		cells, tops = keyCells, keyBlocks
	}
	top := topList[topBlock]{most: tops, size: func(b topBlock) uint64 { return b.size }}
	stats := s.pass.Stats()
	in := &report.Snapshot{Event: s.number(), Used: stats.BytesInUse, Held: stats.PoolBytes, Free: stats.PoolBytes - min(stats.BytesInUse, stats.PoolBytes), Hole: stats.LargestFreeBlock}
	var walked uint64
	s.pass.Allocator.Walk(func(c alloc.Chunk) bool {
		walked += c.Size
		return true
	})
	m := newMap(cells, max(walked, stats.PoolBytes))
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
		}
		return true
	})
	in.Map, in.Holes, in.Largest = m.done()
	for _, b := range top.done() {
		name := uint64(0)
		if b.site != 0 {
			name = uint64(s.texts.IndexOf(s.trace.FullSite(uint32(b.site)))) + 1
		}
		in.Top = append(in.Top, [3]uint64{b.at, b.size, name})
	}
	s.layer.Snapshots = append(s.layer.Snapshots, in)
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
