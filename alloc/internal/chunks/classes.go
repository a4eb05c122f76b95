package chunks

import "math/bits"

// Sizes and their classes, with the 221,184 units of 54 MiB as bound, that of an index for
// a large pool: 256 bytes are class 1, 300,032 are class 1,172, one for each size up to
// the bound. Above it 64 to 68 MiB are one class, 68 to 72 the next, sixteen from 64 to 128
// MiB. So a search for 66 MiB looks in the class from 64 MiB on for the first chunk that
// is large enough, and if there is none, takes the first of the next class that is not
// empty: that one is large enough whatever it holds.

// classes is what an Index and Lists have in common: the free chunks by class of their
// size, and a bitmap of the classes that are not empty, three levels of 64-ary words, which
// finds the next one in at most five word reads.
type classes struct {
	store *Store
	roots []H // a chunk of each class, from which the others are found; 0: empty
	exact uint32
	l0    []word   // bits for each class
	l1    []uint64 // a bit for each word of l0 that has any
	l2    uint64   // a bit for each word of l1
}

// word is what is known of 64 classes without a look at their roots, which are
// spread over a megabyte and seldom in the processor's cache.
type word struct {
	any  uint64 // the class is not empty
	many uint64 // its treap holds more than one chunk; of Lists 0
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

// makeClasses returns empty classes for chunks of st. Sizes up to about limit bytes are the
// usual ones; larger ones work, too. For a large pool there is a megabyte of roots, all of
// which are written to here.
func makeClasses(st *Store, limit uint64) classes {
	exact := uint64(maxExact)
	if limit < maxExact*unit {
		exact = max(limit/unit+1, defaultExact)
	}
	n := int(exact) + logClasses
	words := (n + 63) / 64
	x := classes{
		store: st,
		roots: make([]H, n),
		exact: uint32(exact),
		l0:    make([]word, words),
		l1:    make([]uint64, (words+63)/64),
	}
	clear(x.roots) // see Store.New
	return x
}

// Cap returns the bytes of host memory that the classes hold.
func (x *classes) Cap() int { return len(x.roots)*4 + len(x.l0)*16 + len(x.l1)*8 }

// class returns the class of a size, in bytes: the size in units below the bound.
func (x *classes) class(size uint64) uint32 {
	if u := size >> unitBits; u < uint64(x.exact) {
		return uint32(u)
	}
	return x.logClass(size)
}

// logClass returns the class of a size above the bound: by its highest bit, and the four
// bits after that.
func (x *classes) logClass(size uint64) uint32 {
	e := uint32(bits.Len64(size)) - 1
	sub := uint32(size>>(e-subBits)) & (1<<subBits - 1)
	return x.exact + (e-unitBits)<<subBits + sub
}

// next returns the first class from c on that is not empty, or false. It reads the word
// of c, the one above in the next level, and so on: up, across and down.
func (x *classes) next(c uint32) (uint32, bool) {
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

// last returns the last class that is not empty, or false.
func (x *classes) last() (uint32, bool) {
	if x.l2 == 0 {
		return 0, false
	}
	v := uint32(bits.Len64(x.l2)) - 1
	w := v<<6 + uint32(bits.Len64(x.l1[v])) - 1
	return w<<6 + uint32(bits.Len64(x.l0[w].any)) - 1, true
}

// after returns the root of the first class behind k that is not empty, 0 if there is none.
func (x *classes) after(k uint32) H {
	if k++; int(k) < len(x.roots) {
		if k, ok := x.next(k); ok {
			return x.roots[k]
		}
	}
	return 0
}

// fill notes in the upper levels that class k is not empty.
func (x *classes) fill(k uint32) {
	x.l1[k>>12] |= 1 << (k >> 6 & 63)
	x.l2 |= 1 << (k >> 12)
}

// empty takes the only chunk out of class k.
func (x *classes) empty(k uint32) {
	x.roots[k] = 0
	w := &x.l0[k>>6]
	if w.any &^= 1 << (k & 63); w.any != 0 {
		return
	}
	if x.l1[k>>12] &^= 1 << (k >> 6 & 63); x.l1[k>>12] == 0 {
		x.l2 &^= 1 << (k >> 12)
	}
}
