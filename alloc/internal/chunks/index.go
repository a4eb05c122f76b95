package chunks

import "math/bits"

// Index orders free chunks by size, then address, and finds the best fit: the
// smallest chunk that is large enough, the lowest in address among equals (or
// the highest: see NewHighIndex).
// That is the order of the original's bins, which are sets sorted by exactly
// that key, so the first fit in its order is the best fit in ours.
//
// Two steps make it fast where the original is slow. A class for every exact
// size up to a bound (a size is a number of 256-byte units) and sixteen
// classes for each power of two above it, with a bitmap of those that are not empty.
// Within a class a treap, linked through the chunks, keeps the order by size
// and address. Most classes hold one chunk or none. Lists is faster, and has less order.
//
//	find     at most five words, then the left edge of one treap
//	insert   O(log k) of the k chunks in the class
//	remove   O(log k)
//
// The original walks its bin from the smallest chunk instead, which is 5,000
// ns when thousands of chunks in it are a little too small.
type Index struct {
	classes
	flip uint64 // ^0 orders equal chunks by descending address, 0 by ascending
	tie  Tie    // nil: by address
}

// NewIndex makes an index for chunks of st. limit, in bytes, is that of the pool; see
// makeClasses.
func NewIndex(st *Store, limit uint64) *Index {
	return &Index{classes: makeClasses(st, limit)}
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

// Insert puts the free chunk c in, whose number is h. Its Size is a multiple of
// 256, and no other chunk in the index has its Addr; both stay as they are until
// it is taken out.
func (x *Index) Insert(h H, c *Chunk) {
	k := x.class(c.Size)
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
	w, bit := &x.l0[k>>6], uint64(1)<<(k&63)
	if w.many&bit != 0 {
		x.remove(k, h, c)
		x.fewer(k)
		return
	}
	x.empty(k)
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
		return x.leftmost(x.after(k))
	}
	k, ok := x.next(k)
	if !ok {
		return 0
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
	// The class is often there, or a near one. This is in next, too, which is too large to be
	// inlined here.
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
	return x.leftmost(x.after(k))
}

// Largest is the last chunk in the order, 0 if there is none.
func (x *Index) Largest() H {
	k, ok := x.last()
	if !ok {
		return 0
	}
	h := x.roots[k]
	for {
		r := x.store.At(h).right
		if r == 0 {
			return h
		}
		h = r
	}
}

// leftmost returns the first chunk of the treap at h, 0 if that is 0.
func (x *Index) leftmost(h H) H {
	for l := h; l != 0; l = x.store.At(h).left {
		h = l
	}
	return h
}

// lowerBound is the first chunk of the class at h that is at least size large.
func (x *Index) lowerBound(h H, size uint64) H {
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
	for h := x.leftmost(x.roots[k]); h != 0; h = x.After(h) {
		if !yield(h) {
			return
		}
	}
}
