// Tests of the index against a sorted slice, and of the shape of its treaps.
package chunks

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// limits are pools on both sides of every kind of index: the fewest exact
// classes, a few more, one class short of all of them, all of them.
var limits = []uint64{0, defaultExact * unit, 1 << 20, (maxExact - 1) * unit, maxExact * unit, 80 << 30, math.MaxUint64}

// edgeSizes are sizes at which something changes: word boundaries of the three
// bitmap levels, the end of the exact classes, powers of two and their
// sixteenths, and both ends of the range.
func edgeSizes() []uint64 {
	var out []uint64
	around := func(units uint64) {
		for d := range uint64(3) {
			if u := units + d - 1; u > 0 && u < 1<<(64-unitBits) {
				out = append(out, u*unit)
			}
		}
	}
	for _, u := range []uint64{
		1, 64, 128, defaultExact, 4096, 8192, 64 * 64 * 54, maxExact, maxClasses,
		1 << 20 / unit, 1<<20/unit + 1, // the bound with a limit of 1 MiB
		1 << 30 / unit, 17 << 26 / unit, 31 << 26 / unit, 1 << 31 / unit,
		1 << (63 - unitBits), 31 << (59 - unitBits), 1<<(64-unitBits) - 1,
	} {
		around(u)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// model is an index together with what it should hold, in order.
type model struct {
	st    Store
	x     *Index
	order []H
}

func newModel(limit uint64) *model {
	m := &model{}
	m.x = NewIndex(&m.st, limit)
	return m
}

func (m *model) key(h H) (size, addr uint64) {
	c := m.st.At(h)
	return c.Size, c.Addr
}

// pos is where a chunk of that size and address stands in the order.
func (m *model) pos(size, addr uint64) int {
	i, _ := slices.BinarySearchFunc(m.order, 0, func(h H, _ int) int {
		s, a := m.key(h)
		return cmp.Or(cmp.Compare(s, size), cmp.Compare(a, addr))
	})
	return i
}

func (m *model) at(i int) H {
	if i < len(m.order) {
		return m.order[i]
	}
	return 0
}

func (m *model) insert(size, addr uint64) H {
	h, c := m.st.New()
	c.Size, c.Addr, c.State = size, addr, Free
	c.left, c.right = 77, 78 // as a former life may have left them
	m.x.Insert(h, c)
	m.order = slices.Insert(m.order, m.pos(size, addr), h)
	return h
}

func (m *model) remove(i int) {
	h := m.order[i]
	m.x.Remove(h, m.st.At(h))
	m.order = slices.Delete(m.order, i, i+1)
	m.st.Drop(h)
}

// take takes the best fit out and compares.
func (m *model) take(t testing.TB, size uint64) {
	t.Helper()
	i := m.pos(size, 0)
	want := m.at(i)
	if got, _ := m.x.Take(size); got != want {
		t.Fatalf("Take(%d) = %d, want %d of %d chunks", size, got, want, len(m.order))
	}
	if want != 0 {
		m.order = slices.Delete(m.order, i, i+1)
		m.st.Drop(want)
	}
}

// checkFind compares one answer.
func (m *model) checkFind(t testing.TB, size uint64) {
	t.Helper()
	if got, want := m.x.Find(size), m.at(m.pos(size, 0)); got != want {
		t.Fatalf("Find(%d) = %d, want %d of %d chunks", size, got, want, len(m.order))
	}
}

// check compares everything that can be asked, and looks at the structure.
func (m *model) check(t testing.TB) {
	t.Helper()
	if err := m.x.wellFormed(); err != nil {
		t.Fatal(err)
	}
	for i, h := range m.order {
		size, _ := m.key(h)
		if got, want := m.x.After(h), m.at(i+1); got != want {
			t.Fatalf("After(%d) = %d, want %d", h, got, want)
		}
		m.checkFind(t, size)
		m.checkFind(t, size-unit)
		if size+unit != 0 {
			m.checkFind(t, size+unit)
		}
	}
	if all := slices.Collect(m.x.Ascend); !slices.Equal(all, m.order) {
		t.Fatalf("Ascend() visits %v, want %v", all, m.order)
	}
	var largest H
	if n := len(m.order); n > 0 {
		largest = m.order[n-1]
	}
	if got := m.x.Largest(); got != largest {
		t.Fatalf("Largest() = %d, want %d", got, largest)
	}
	if got := slices.Collect(m.x.Ascend); !slices.Equal(got, m.order) {
		t.Fatalf("Ascend gives %v, want %v", got, m.order)
	}
}

// wellFormed checks what the index relies on: every treap is ordered both ways
// and holds chunks of its class alone, and every bitmap tells of the level
// below it.
func (x *Index) wellFormed() error {
	n := 0
	// lo and hi are the chunks between which the subtree lies, 0 where it is open.
	var visit func(k uint32, h, lo, hi H) error
	visit = func(k uint32, h, lo, hi H) error {
		if h == 0 {
			return nil
		}
		n++
		c := x.store.At(h)
		switch {
		case x.class(c.Size) != k:
			return fmt.Errorf("chunk %d of %d bytes is in class %d", h, c.Size, k)
		case lo != 0 && !x.before(lo, x.store.At(lo), h, c) || hi != 0 && !x.before(h, c, hi, x.store.At(hi)):
			return fmt.Errorf("chunk %d is out of order", h)
		}
		for _, child := range []H{c.left, c.right} {
			if child != 0 && priority(child) > priority(h) {
				return fmt.Errorf("chunk %d is above %d, whose priority is higher", h, child)
			}
		}
		if err := visit(k, c.left, lo, h); err != nil {
			return err
		}
		return visit(k, c.right, h, hi)
	}
	for k, h := range x.roots {
		if set := x.l0[k>>6].any>>(k&63)&1 == 1; set != (h != 0) {
			return fmt.Errorf("class %d: root %d, but its bit is %v", k, h, set)
		}
		several := false
		if h != 0 {
			c := x.store.At(h)
			several = c.left|c.right != 0
		}
		if set := x.l0[k>>6].many>>(k&63)&1 == 1; set != several {
			return fmt.Errorf("class %d: its bit for several chunks is %v", k, set)
		}
		if h == 0 {
			continue
		}
		if err := visit(uint32(k), h, 0, 0); err != nil {
			return err
		}
	}
	for w, m := range x.l0 {
		if set := x.l1[w>>6]>>(w&63)&1 == 1; set != (m.any != 0) {
			return fmt.Errorf("word %d of l0 is %x, but its bit is %v", w, m.any, set)
		}
	}
	for v, m := range x.l1 {
		if set := x.l2>>v&1 == 1; set != (m != 0) {
			return fmt.Errorf("word %d of l1 is %x, but its bit is %v", v, m, set)
		}
	}
	if all := slices.Collect(x.Ascend); n != len(all) {
		return fmt.Errorf("Ascend() visits %d chunks, but %d are there", len(all), n)
	}
	return nil
}

// depth is the number of chunks on the longest way down.
func (x *Index) depth(h H) int {
	if h == 0 {
		return 0
	}
	c := x.store.At(h)
	return 1 + max(x.depth(c.left), x.depth(c.right))
}

// TestNewIndexSize: the exact classes end where the limit or the bitmap does.
func TestNewIndexSize(t *testing.T) {
	for _, tc := range []struct {
		limit uint64
		exact uint32
	}{
		{0, defaultExact},
		{(defaultExact - 1) * unit, defaultExact},
		{defaultExact * unit, defaultExact + 1},
		{1 << 20, 1<<20/unit + 1},
		{(maxExact - 1) * unit, maxExact},
		{maxExact*unit - 1, maxExact},
		{maxExact * unit, maxExact},
		{math.MaxUint64, maxExact},
	} {
		var st Store
		x := NewIndex(&st, tc.limit)
		if x.exact != tc.exact {
			t.Errorf("limit %d: %d exact classes, want %d", tc.limit, x.exact, tc.exact)
		}
		// The last class of all must have a bit.
		last := x.class(math.MaxUint64 - unit + 1)
		if int(last) != len(x.roots)-1 || int(last>>6) >= len(x.l0) || int(last>>12) >= len(x.l1) || last>>12 > 63 {
			t.Errorf("limit %d: class %d is the last of %d with %d and %d words", tc.limit, last, len(x.roots), len(x.l0), len(x.l1))
		}
		if want := 4*len(x.roots) + 16*len(x.l0) + 8*len(x.l1); x.Cap() != want {
			t.Errorf("limit %d: Cap() = %d, want %d", tc.limit, x.Cap(), want)
		}
		if x.Find(0) != 0 || x.Find(unit) != 0 || x.Largest() != 0 || slices.Collect(x.Ascend) != nil {
			t.Errorf("limit %d: an empty index found something", tc.limit)
		}
	}
}

// TestIndexClassOrder: a larger size is never in a lower class, or the index
// would pass a fit by.
func TestIndexClassOrder(t *testing.T) {
	for _, limit := range limits {
		var st Store
		x := NewIndex(&st, limit)
		sizes := edgeSizes()
		for i, size := range sizes {
			if i > 0 && x.class(sizes[i-1]) > x.class(size) {
				t.Errorf("limit %d: %d bytes are in class %d, %d bytes in class %d",
					limit, sizes[i-1], x.class(sizes[i-1]), size, x.class(size))
			}
		}
	}
}

// TestIndexEdges puts one chunk of each pair of edge sizes in, so that next has
// to go from every kind of class to every other.
func TestIndexEdges(t *testing.T) {
	sizes := edgeSizes()
	for _, limit := range limits {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			m := newModel(limit)
			for i, small := range sizes {
				for _, large := range sizes[i:] {
					a := m.insert(small, 1<<40)
					b := m.insert(large, 2<<40)
					for _, size := range sizes {
						m.checkFind(t, size)
					}
					if m.x.After(a) != b || m.x.After(b) != 0 || m.x.Largest() != b {
						t.Fatalf("%d and %d bytes: After(%d) = %d, After(%d) = %d, Largest() = %d",
							small, large, a, m.x.After(a), b, m.x.After(b), m.x.Largest())
					}
					m.remove(1)
					m.take(t, small)
				}
			}
			m.check(t)
		})
	}
}

// TestIndexEachClass has one chunk in the index and moves it through the sizes
// of every class; all requests up to it find it and none past it do.
func TestIndexEachClass(t *testing.T) {
	m := newModel(math.MaxUint64)
	for k := uint64(1); k < maxExact; k += 61 { // prime to 64: every bit of a word, in some word
		m.insert(k*unit, 0)
		m.checkFind(t, unit)
		m.checkFind(t, k*unit)
		m.checkFind(t, (k+1)*unit)
		m.remove(0)
	}
	m.check(t)
}

// TestIndexEqualSizes removes roots, leaves and inner nodes of one large treap.
func TestIndexEqualSizes(t *testing.T) {
	const n = 5000
	for _, size := range []uint64{unit, 1 << 20, 1 << 33} {
		m := newModel(80 << 30)
		for _, i := range rand.New(rand.NewPCG(1, size)).Perm(n) {
			m.insert(size, uint64(i)*size)
		}
		m.check(t)
		r := rand.New(rand.NewPCG(2, size))
		for round := 0; len(m.order) > 0; round++ {
			i := r.IntN(len(m.order))
			if round%4 == 0 { // the root
				i = slices.Index(m.order, m.x.roots[m.x.class(size)])
			}
			if m.remove(i); round%4 == 1 {
				m.take(t, size)
			}
			m.checkFind(t, size)
			if round%500 == 0 {
				m.check(t)
			}
		}
		m.check(t)
	}
}

// TestIndexWorkload is a long run of sizes as programs have them.
func TestIndexWorkload(t *testing.T) {
	for _, limit := range limits {
		r := rand.New(rand.NewPCG(3, limit))
		m := newModel(limit)
		for step := range 4000 {
			switch n := len(m.order); {
			case n > 0 && r.IntN(100) < 25:
				m.remove(r.IntN(n))
			case r.IntN(100) < 25:
				m.take(t, logUniform(r))
			default:
				m.insert(logUniform(r), r.Uint64N(1<<32)*unit)
			}
			m.checkFind(t, logUniform(r))
			if step%400 == 0 {
				m.check(t)
			}
		}
	}
}

// TestIndexAscendStops: the visitor can say no.
func TestIndexAscendStops(t *testing.T) {
	m := newModel(1 << 30)
	for i := range uint64(10) {
		m.insert((i+1)*unit, i<<20)
	}
	var got []H
	for h := range m.x.Ascend {
		if got = append(got, h); len(got) == 3 {
			break
		}
	}
	if !slices.Equal(got, m.order[:3]) {
		t.Errorf("visited %v, want %v", got, m.order[:3])
	}
}

// TestIndexDepth: the treap stays shallow whatever the handles' order. A random
// one of n chunks is some 2.5 ln n deep on average, 29 of 100,000, with a tail.
// With one multiplication as its hash, stride 2584 was 5,620 deep.
func TestIndexDepth(t *testing.T) {
	const n, limit = 100_000, 80
	strides := []int{1, 2, 3, 4, 7, 8, 16, 17, 64, 89, 144, 233, 377, 610, 987, 1024, 1597, 2584, 4096, 4181, 6765}
	for _, stride := range strides {
		// Chunk i of the address order has handle 1 + i*stride. No store of that
		// many handles is needed to know the treap's shape: it is the Cartesian
		// tree of the priorities.
		if got := cartesianDepth(n, func(i int) uint32 { return priority(H(1 + i*stride)) }); got > limit {
			t.Errorf("handles %d apart: %d deep, want at most %d", stride, got, limit)
		}
	}

	// The shape that Insert makes is that tree.
	m := newModel(80 << 30)
	for i := range n {
		h, c := m.st.New()
		c.Size, c.Addr = 1<<20, uint64(i)<<20
		m.x.Insert(h, c)
	}
	want := cartesianDepth(n, func(i int) uint32 { return priority(H(1 + i)) })
	if got := m.x.depth(m.x.roots[m.x.class(1<<20)]); got != want || got > limit {
		t.Errorf("100,000 equal chunks in address order: %d deep, want %d, and at most %d", got, want, limit)
	}
}

// cartesianDepth is the depth of the tree whose order from left to right is
// that of i and in which no child has a higher priority than its parent.
func cartesianDepth(n int, priority func(int) uint32) int {
	type node struct {
		p     uint32
		left  int // depth of what is below to the left
		right int
	}
	var spine []node // from the root to the right
	pop := func() (depth int) {
		top := spine[len(spine)-1]
		spine = spine[:len(spine)-1]
		return 1 + max(top.left, top.right)
	}
	for i := range n {
		p, below := priority(i), 0
		for len(spine) > 0 && spine[len(spine)-1].p < p {
			spine[len(spine)-1].right = below
			below = pop()
		}
		spine = append(spine, node{p: p, left: below})
	}
	depth := 0
	for len(spine) > 0 {
		spine[len(spine)-1].right = depth
		depth = pop()
	}
	return depth
}

func TestIndexAllocatesNothing(t *testing.T) {
	m := newModel(80 << 30)
	r := rand.New(rand.NewPCG(4, 4))
	for range 1000 {
		m.insert(logUniform(r), r.Uint64N(1<<32)*unit)
	}
	h, c := m.st.New()
	*c = Chunk{Size: 1 << 20, Addr: 1 << 50}
	if n := testing.AllocsPerRun(500, func() {
		m.x.Insert(h, c)
		benchSink = m.x.Find(1 << 20)
		benchSink = m.x.After(benchSink)
		benchSink = m.x.Largest()
		m.x.Remove(h, c)
		m.x.Insert(h, c)
		m.x.Insert(m.x.Take(unit))
		m.x.Remove(h, c)
	}); n != 0 {
		t.Errorf("insert, find, after, largest, take and remove made %v allocations", n)
	}
}

// FuzzIndex decodes bytes to operations: the first chooses the limit, then each
// four are an operation, a size and an address.
func FuzzIndex(f *testing.F) {
	f.Add([]byte{5, 0, 1, 2, 3, 0, 1, 2, 4, 1, 0, 0, 0})
	f.Add([]byte{0, 0, 40, 9, 9, 0, 41, 9, 9, 2, 40, 0, 0, 3, 0, 0, 0})
	// Sequences from a generator, so that a plain test run covers some, too.
	r := rand.New(rand.NewPCG(5, 5))
	for limit := range limits {
		for _, n := range []int{20, 200, 1200} {
			b := []byte{byte(limit)}
			for range n {
				b = binary.LittleEndian.AppendUint32(b, r.Uint32())
			}
			f.Add(b)
		}
	}
	sizes := edgeSizes()
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		m := newModel(limits[int(b[0])%len(limits)])
		serial := uint64(0)
		steps := 0
		for b = b[1:]; len(b) >= 4; b = b[4:] {
			op, s, lo, a := b[0], b[1], b[2], b[3]
			// Half of the sizes are edges; the others have any exponent and eight
			// more bits.
			size := sizes[int(s)%len(sizes)]
			if lo&1 == 1 {
				e := unitBits + int(s)%(64-unitBits)
				size = (1<<e | uint64(lo)<<e>>8) &^ (unit - 1)
			}
			switch n := len(m.order); {
			case op%8 < 4 || n == 0:
				serial++ // no two chunks begin at one address
				m.insert(size, uint64(a)<<40|serial*unit)
			case op%8 < 6:
				m.remove((int(s)<<8 | int(lo)) % n)
			case op%8 < 7:
				m.take(t, size)
			}
			m.checkFind(t, size)
			if steps++; steps == 100 { // not often: a look at all classes takes longest
				m.check(t)
			}
		}
		m.check(t)
		for len(m.order) > 0 {
			m.remove(len(m.order) / 2)
		}
		m.check(t)
	})
}
