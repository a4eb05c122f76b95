package chunks

import "math/bits"

// Lists orders free chunks by size and finds the best fit, as Index does, in less time
// and with less order among equal chunks. A class is a list, ordered by size and then
// address. A chunk is put in with a look at either end, as blocks are often freed in the
// order of their addresses or the reverse of it, and then behind at most walk others of
// its size: in a class of many more, the order is not exact. For the some hundred equal
// blocks of a training step that is faster than a treap. Among different sizes above the
// bound all are walked, and of those a pool of 160 GiB has at most 3,000.
//
// In a list, left is the next chunk, 0 at the end, and right the one before, of the first
// chunk the last one. Most lists have one chunk or two, and no processor foretells which of
// them an operation meets, so there are few branches.
type Lists struct {
	classes
	walk  int
	loose bool // see SetLoose
}

// NewLists makes lists for chunks of st. limit, in bytes, is that of the pool; see
// makeClasses. walk is at least 0.
func NewLists(st *Store, limit uint64, walk int) *Lists {
	return &Lists{classes: makeClasses(st, limit), walk: walk}
}

// SetLoose sets whether a chunk is put before all others of its size, without a look at
// their addresses, where it is at least as small as all of its class. That is all classes of
// one size. It is off at first. What is in stays where it is.
func (x *Lists) SetLoose(on bool) { x.loose = on }

// Insert puts the free chunk c in, whose number is h. Its Size is a multiple of 256 and
// stays as it is until the chunk is taken out.
func (x *Lists) Insert(h H, c *Chunk) {
	k := x.class(c.Size)
	n := x.roots[k]
	if n == 0 {
		c.left, c.right = 0, h
		x.roots[k] = h
		x.l0[k>>6].any |= 1 << (k & 63)
		x.fill(k)
		return
	}
	d := x.store.At(n)
	if c.Size > d.Size || c.Size == d.Size && !x.loose && c.Addr > d.Addr {
		x.insertAfter(h, c, d)
		return
	}
	c.left, c.right = n, d.right
	d.right = h
	x.roots[k] = h
}

// insertAfter puts h into the list that begins with first, and not before that.
func (x *Lists) insertAfter(h H, c, first *Chunk) {
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

// Remove takes the chunk c out, whose number is h and which is in.
func (x *Lists) Remove(h H, c *Chunk) {
	k := x.class(c.Size)
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
func (x *Lists) pop(k uint32, c *Chunk) {
	n := c.left
	if n == 0 {
		x.empty(k)
		return
	}
	x.roots[k] = n
	x.store.At(n).right = c.right
}

// Find is the best fit for size bytes, a multiple of 256: 0 if no chunk is as large.
func (x *Lists) Find(size uint64) H {
	k := x.class(size)
	if k >= x.exact {
		// A class of several sizes: its own may be too small.
		for h := x.roots[k]; h != 0; h = x.store.At(h).left {
			if x.store.At(h).Size >= size {
				return h
			}
		}
		return x.after(k)
	}
	k, ok := x.next(k)
	if !ok {
		return 0
	}
	return x.roots[k]
}

// Take is Find and Remove in one, for allocators that nearly always use what they find.
// The chunk is nil if none is as large.
func (x *Lists) Take(size uint64) (H, *Chunk) {
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
	x.pop(k, c)
	return h, c
}

// After is the chunk that follows h in the order, 0 at the end; h is in the lists.
func (x *Lists) After(h H) H {
	c := x.store.At(h)
	if c.left != 0 {
		return c.left
	}
	return x.after(x.class(c.Size))
}

// Largest is the last chunk in the order, which is the largest, 0 if there is none. It is
// the highest of the largest ones, but for those that came in while the order was off.
func (x *Lists) Largest() H {
	k, ok := x.last()
	if !ok {
		return 0
	}
	return x.store.At(x.roots[k]).right
}

// Ascend visits the chunks in order until yield says no. The lists must not change
// meanwhile.
func (x *Lists) Ascend(yield func(H) bool) {
	k, ok := x.next(0)
	if !ok {
		return
	}
	for h := x.roots[k]; h != 0; h = x.After(h) {
		if !yield(h) {
			return
		}
	}
}
