package chunks

import "math/bits"

// Sizes and their classes, with the 221,184 units of 54 MiB as bound, that of an index for
// a large pool: 256 bytes are class 1, 300,032 are class 1,172, one for each size up to
// the bound. Above it 64 to 68 MiB are one class, 68 to 72 the next, sixteen from 64 to 128
// MiB. So a search for 66 MiB looks in the class from 64 MiB on for the first chunk that
// is large enough, and if there is none, takes the first of the next class that is not
// empty: that one is large enough whatever it holds.

// Index orders free chunks by size, then address, and finds the best fit: the
// smallest chunk that is large enough, the lowest in address among equals (or
// the highest: see NewHighIndex).
// That is the order of the original's bins, which are sets sorted by exactly
// that key, so the first fit in its order is the best fit in ours.
//
// Two steps make it fast where the original is slow. A class for every exact
// size up to a bound (a size is a number of 256-byte units) and sixteen
// classes for each power of two above it; a bitmap of the non-empty classes,
// three levels of 64-ary words, finds the next one in at most five word reads.
// Within a class a treap, linked through the chunks, keeps the order by size
// and address. Most classes hold one chunk or none. NewListIndex makes one with lists
// instead.
//
//	find     at most five words, then the left edge of one treap
//	insert   O(log k) of the k chunks in the class
//	remove   O(log k)
//
// The original walks its bin from the smallest chunk instead, which is 5,000
// ns when thousands of chunks in it are a little too small.
type Index struct {
	store *Store
	flip  uint64 // ^0 orders equal chunks by descending address, 0 by ascending
	tie   Tie    // nil: by address
	roots []H    // of each class; 0: empty
	exact uint32
	list  bool     // classes are lists, not treaps
	loose bool     // see Loose
	walk  int      // see NewListIndex
	l0    []word   // bits for each class
	l1    []uint64 // a bit for each word of l0 that has any
	l2    uint64   // a bit for each word of l1
}

// word is what is known of 64 classes without a look at their roots, which are
// spread over a megabyte and seldom in the processor's cache.
type word struct {
	any  uint64 // the class is not empty
	many uint64 // its treap holds more than one chunk; of lists 0
}

const (
	unit     = 256 // bytes; every size is a multiple
	unitBits = 8

	// Classes above the exact ones: 16 for each power of two from 2^8 to 2^63.
	// Those below the bound stay empty; the sum is simpler so.
	subBits      = 4
	logClasses   = (64 - unitBits) << subBits
	maxExact     = 54 << 20 / unit       // sizes below 54 MiB: with a first page of chunks and a table the whole stays below 1.1 MB of host memory
	maxClasses   = maxExact + logClasses // at most 64^3, for the three levels
	defaultExact = 1 << 8
)

// NewIndex makes an index for chunks of st. Sizes up to about limit bytes are
// the usual ones; larger ones work, too. An index for a large pool has a
// megabyte of roots, all of which are written to here.
func NewIndex(st *Store, limit uint64) *Index {
	exact := uint64(maxExact)
	if limit < maxExact*unit {
		exact = max(limit/unit+1, defaultExact)
	}
	n := int(exact) + logClasses
	words := (n + 63) / 64
	x := &Index{
		store: st,
		roots: make([]H, n),
		exact: uint32(exact),
		l0:    make([]word, words),
		l1:    make([]uint64, (words+63)/64),
	}
	clear(x.roots) // see Store.New
	return x
}

// NewHighIndex makes an index that orders equal chunks by descending address,
// so that it finds the highest of them.
func NewHighIndex(st *Store, limit uint64) *Index {
	x := NewIndex(st, limit)
	x.flip = ^uint64(0)
	return x
}

// A Tie reports whether chunk h, which is a, comes before chunk k, which is b and of the
// same size.
type Tie func(h H, a *Chunk, k H, b *Chunk) bool

// NewTieIndex makes an index that orders equal chunks by tie, which must not change its
// answer while both are in the index.
func NewTieIndex(st *Store, limit uint64, tie Tie) *Index {
	x := NewIndex(st, limit)
	x.tie = tie
	return x
}

// NewListIndex makes an index whose classes are lists, ordered by size and then address. A
// chunk is put in with a look at either end, as blocks are often freed in the order of their
// addresses or the reverse of it, and then behind at most walk others of its size: in a
// class of many more, the order is not exact. For the some hundred equal blocks of a
// training step that is faster than a treap. Among different sizes above the bound all are
// walked, and of those a pool of 160 GiB has at most 3,000.
func NewListIndex(st *Store, limit uint64, walk int) *Index {
	x := NewIndex(st, limit)
	x.list, x.walk = true, walk
	return x
}

// Loose sets whether a chunk is put before all others of its size, which saves the order by
// address and the look at others. It is for list indexes, and off at first. What is in
// stays where it is.
func (x *Index) Loose(on bool) { x.loose = on }

// Len returns how many chunks are in the index, by a walk: an operation keeps no
// count.
func (x *Index) Len() int {
	n := 0
	for range x.Ascend {
		n++
	}
	return n
}

// Cap returns the bytes of host memory that the index holds.
func (x *Index) Cap() int { return len(x.roots)*4 + len(x.l0)*16 + len(x.l1)*8 }

// class returns the class of a size, in bytes: the size in units below the bound.
func (x *Index) class(size uint64) uint32 {
	if u := size >> unitBits; u < uint64(x.exact) {
		return uint32(u)
	}
	return x.logClass(size)
}

// logClass returns the class of a size above the bound: by its highest bit, and the four
// bits after that.
func (x *Index) logClass(size uint64) uint32 {
	e := uint32(bits.Len64(size)) - 1
	sub := uint32(size>>(e-subBits)) & (1<<subBits - 1)
	return x.exact + (e-unitBits)<<subBits + sub
}

// next returns the first class from c on that is not empty, or false. It reads the word
// of c, the one above in the next level, and so on: up, across and down.
func (x *Index) next(c uint32) (uint32, bool) {
	w := c >> 6
	if m := x.l0[w].any >> (c & 63); m != 0 {
		return c + uint32(bits.TrailingZeros64(m)), true
	}
	w++
	v := w >> 6
	if int(v) < len(x.l1) {
		if m := x.l1[v] >> (w & 63); m != 0 {
			w += uint32(bits.TrailingZeros64(m))
			return w<<6 + uint32(bits.TrailingZeros64(x.l0[w].any)), true
		}
	}
	v++
	m := x.l2 >> v // v of 64 and more shifts everything out
	if m == 0 {
		return 0, false
	}
	v += uint32(bits.TrailingZeros64(m))
	w = v<<6 + uint32(bits.TrailingZeros64(x.l1[v]))
	return w<<6 + uint32(bits.TrailingZeros64(x.l0[w].any)), true
}

// Insert puts the free chunk c in, whose number is h. Its Size is a multiple of
// 256, and no other chunk in the index has its Addr; both stay as they are until
// it is taken out.
func (x *Index) Insert(h H, c *Chunk) {
	k := x.class(c.Size)
	if x.list {
		x.push(k, h, c)
		return
	}
	c.left, c.right = 0, 0
	w, bit := &x.l0[k>>6], uint64(1)<<(k&63)
	if w.any&bit != 0 {
		w.many |= bit
		x.insert(k, h, c)
		return
	}
	x.roots[k] = h
	if w.any == 0 {
		x.fill(k)
	}
	w.any |= bit
}

// Remove takes the chunk c out, whose number is h and which is in.
func (x *Index) Remove(h H, c *Chunk) {
	k := x.class(c.Size)
	if x.list {
		x.pull(k, h, c)
		return
	}
	w, bit := &x.l0[k>>6], uint64(1)<<(k&63)
	if w.many&bit != 0 {
		x.remove(k, h, c)
		x.fewer(k)
		return
	}
	x.empty(k)
}

// fill notes in the upper levels that class k is not empty.
func (x *Index) fill(k uint32) {
	x.l1[k>>12] |= 1 << (k >> 6 & 63)
	x.l2 |= 1 << (k >> 12)
}

// empty takes the only chunk out of class k.
func (x *Index) empty(k uint32) {
	x.roots[k] = 0
	w := &x.l0[k>>6]
	if w.any &^= 1 << (k & 63); w.any != 0 {
		return
	}
	if x.l1[k>>12] &^= 1 << (k >> 6 & 63); x.l1[k>>12] == 0 {
		x.l2 &^= 1 << (k >> 12)
	}
}

// fewer notes that a chunk was taken out of the treap of class k, which had several.
func (x *Index) fewer(k uint32) {
	if c := x.store.At(x.roots[k]); c.left == 0 && c.right == 0 {
		x.l0[k>>6].many &^= 1 << (k & 63)
	}
}

// Find is the best fit for size bytes, a multiple of 256: 0 if no chunk is as
// large.
func (x *Index) Find(size uint64) H {
	k := x.class(size)
	if k >= x.exact {
		// A class of several sizes: its own may be too small.
		if h := x.lowerBound(x.roots[k], size); h != 0 {
			return h
		}
		if k++; int(k) >= len(x.roots) {
			return 0
		}
	}
	k, ok := x.next(k)
	if !ok {
		return 0
	}
	return x.first(k)
}

// first returns the first chunk of class k, which is not empty.
func (x *Index) first(k uint32) H {
	if x.list {
		return x.roots[k]
	}
	return x.leftmost(x.roots[k])
}

// Take is Find and Remove in one, for allocators that nearly always use what they find.
// For an exact size it knows the class of what it finds and need not look for the chunk
// again. The chunk is nil if none is as large.
func (x *Index) Take(size uint64) (H, *Chunk) {
	k := x.class(size)
	if k >= x.exact {
		h := x.Find(size)
		if h == 0 {
			return 0, nil
		}
		c := x.store.At(h)
		x.Remove(h, c)
		return h, c
	}
	// The class is often there, or a near one.
	if near := x.l0[k>>6].any >> (k & 63); near != 0 {
		k += uint32(bits.TrailingZeros64(near))
	} else {
		var ok bool
		if k, ok = x.next(k); !ok {
			return 0, nil
		}
	}
	h := x.roots[k]
	c := x.store.At(h)
	if x.list {
		x.pop(k, c)
		return h, c
	}
	if x.l0[k>>6].many&(1<<(k&63)) == 0 {
		x.empty(k)
		return h, c
	}
	// The leftmost of a treap has no left child: its right one takes its place.
	link := &x.roots[k]
	for c.left != 0 {
		link = &c.left
		h = *link
		c = x.store.At(h)
	}
	*link = c.right
	x.fewer(k)
	return h, c
}

// After is the chunk that follows c in the order, 0 at the end; c is in the
// index. For callers whose requests can be refused by a chunk that is large
// enough, such as an aligned one.
func (x *Index) After(h H) H {
	c := x.store.At(h)
	if x.list {
		if c.left != 0 {
			return c.left
		}
		if k := x.class(c.Size) + 1; int(k) < len(x.roots) {
			if k, ok := x.next(k); ok {
				return x.roots[k]
			}
		}
		return 0
	}
	if c.right != 0 {
		return x.leftmost(c.right)
	}
	k := x.class(c.Size)
	// The last turn to the left on the way down is the successor.
	var succ H
	for n := x.roots[k]; n != h; {
		d := x.store.At(n)
		if x.before(h, c, n, d) {
			succ, n = n, d.left
		} else {
			n = d.right
		}
	}
	if succ != 0 {
		return succ
	}
	if k++; int(k) >= len(x.roots) {
		return 0
	}
	k, ok := x.next(k)
	if !ok {
		return 0
	}
	return x.leftmost(x.roots[k])
}

// Largest is the last chunk in the order, 0 if there is none.
func (x *Index) Largest() H {
	if x.l2 == 0 {
		return 0
	}
	v := uint32(bits.Len64(x.l2)) - 1
	w := v<<6 + uint32(bits.Len64(x.l1[v])) - 1
	k := w<<6 + uint32(bits.Len64(x.l0[w].any)) - 1
	h := x.roots[k]
	if x.list {
		for n := h; n != 0; n = x.store.At(n).left {
			if c, d := x.store.At(h), x.store.At(n); d.Size > c.Size || d.Size == c.Size && d.Addr > c.Addr {
				h = n
			}
		}
		return h
	}
	for {
		r := x.store.At(h).right
		if r == 0 {
			return h
		}
		h = r
	}
}

func (x *Index) leftmost(h H) H {
	for {
		l := x.store.At(h).left
		if l == 0 {
			return h
		}
		h = l
	}
}

// lowerBound is the first chunk of the class at h that is at least size large.
func (x *Index) lowerBound(h H, size uint64) H {
	if x.list {
		for h != 0 && x.store.At(h).Size < size {
			h = x.store.At(h).left
		}
		return h
	}
	var best H
	for h != 0 {
		c := x.store.At(h)
		if c.Size >= size {
			best, h = h, c.left
		} else {
			h = c.right
		}
	}
	return best
}

// before reports whether chunk h, which is a, comes before chunk k, which is b: by
// size, then address; see Index.flip and Index.tie.
func (x *Index) before(h H, a *Chunk, k H, b *Chunk) bool {
	if a.Size != b.Size {
		return a.Size < b.Size
	}
	if x.tie != nil {
		return x.tie(h, a, k, b)
	}
	return a.Addr^x.flip < b.Addr^x.flip
}

// priority makes the treap's shape: a hash of the handle, so that it need not
// be stored. Handles are handed out by the Store and not chosen by a caller,
// so no caller can aim for a bad shape.
//
// Both multiplications are needed. Neighbouring holes have handles a constant
// stride apart, and one multiplication alone maps these to an arithmetic
// progression: for the strides near which it moves little (987, 2584, ...) the
// treap would be a list. The shift between the two breaks the progression.
// Constants: 2^32 divided by the golden ratio, and a multiplier of MurmurHash3.
// The map is one to one, so that no two chunks have the same priority. Only
// comparisons look at it, that is the upper bits first, so it needs no last
// shift.
func priority(h H) uint32 {
	p := uint32(h) * 0x9E3779B1
	p ^= p >> 15
	return p * 0x85EBCA6B
}

// insert puts h into the non-empty treap of class k: down to where its
// priority is the highest, then the subtree found there is split around it
// into its two children.
func (x *Index) insert(k uint32, h H, c *Chunk) {
	p := priority(h)
	link := &x.roots[k]
	for *link != 0 && priority(*link) >= p {
		d := x.store.At(*link)
		if x.before(h, c, *link, d) {
			link = &d.left
		} else {
			link = &d.right
		}
	}
	n := *link
	*link = h
	lo, hi := &c.left, &c.right
	for n != 0 {
		d := x.store.At(n)
		if x.before(n, d, h, c) {
			*lo = n
			lo = &d.right
			n = d.right
		} else {
			*hi = n
			hi = &d.left
			n = d.left
		}
	}
	*lo, *hi = 0, 0
}

// In a list, left is the next chunk, 0 at the end, and right the one before, of the first
// chunk the last one. Most lists have one chunk or two, and no processor foretells which of
// them an operation meets. So push, pull and pop have few branches, and no bit that says
// whether there are several.

// push puts h into the list of class k, which may be empty.
func (x *Index) push(k uint32, h H, c *Chunk) {
	n := x.roots[k]
	if n == 0 {
		c.left, c.right = 0, h
		x.roots[k] = h
		x.l0[k>>6].any |= 1 << (k & 63)
		x.fill(k)
		return
	}
	d := x.store.At(n)
	if c.Size < d.Size || c.Size == d.Size && (x.loose || c.Addr < d.Addr) {
		c.left, c.right = n, d.right
		d.right = h
		x.roots[k] = h
		return
	}
	x.pushAfter(h, c, d)
}

// pushAfter puts h into the list that begins with first, and not before that.
func (x *Index) pushAfter(h H, c, first *Chunk) {
	n := first.right
	d := x.store.At(n)
	if d.Size < c.Size || d.Size == c.Size && d.Addr < c.Addr {
		c.left, c.right = 0, n
		d.left = h
		first.right = h
		return
	}
	d = first
	for walked := 0; ; {
		n = d.left
		e := x.store.At(n) // there is one: the last is behind h
		if e.Size > c.Size || e.Size == c.Size && (e.Addr > c.Addr || walked == x.walk) {
			c.left, c.right = n, e.right
			d.left = h
			e.right = h
			return
		}
		if e.Size == c.Size {
			walked++
		}
		d = e
	}
}

// pull takes c out of the list of class k.
func (x *Index) pull(k uint32, h H, c *Chunk) {
	if x.roots[k] == h {
		x.pop(k, c)
		return
	}
	x.store.At(c.right).left = c.left
	if c.left == 0 {
		x.store.At(x.roots[k]).right = c.right
		return
	}
	x.store.At(c.left).right = c.right
}

// pop takes c, the first one, out of the list of class k.
func (x *Index) pop(k uint32, c *Chunk) {
	n := c.left
	if n == 0 {
		x.empty(k)
		return
	}
	x.roots[k] = n
	x.store.At(n).right = c.right
}

// remove takes h out of the treap of class k: its two children are merged in
// its place.
func (x *Index) remove(k uint32, h H, c *Chunk) {
	link := &x.roots[k]
	for *link != h {
		d := x.store.At(*link)
		if x.before(h, c, *link, d) {
			link = &d.left
		} else {
			link = &d.right
		}
	}
	l, r := c.left, c.right
	for l != 0 && r != 0 {
		if priority(l) >= priority(r) {
			*link = l
			d := x.store.At(l)
			link, l = &d.right, d.right
		} else {
			*link = r
			d := x.store.At(r)
			link, r = &d.left, d.left
		}
	}
	*link = l | r
}

// Ascend visits the chunks in order until yield says no. The index must not
// change meanwhile.
func (x *Index) Ascend(yield func(H) bool) {
	k, ok := x.next(0)
	if !ok {
		return
	}
	for h := x.first(k); h != 0; h = x.After(h) {
		if !yield(h) {
			return
		}
	}
}
