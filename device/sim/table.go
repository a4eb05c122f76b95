package sim

// blockTable finds a pool's block by its address. It is open, with linear probing, and at most
// half full: with eight blocks in sixteen places a search looks at one or two.
type blockTable struct {
	places []struct {
		addr  uint64
		block *part // nil: empty
	}
	count int
	shift uint // 64 less the bits of a place
}

func newTable() blockTable {
	var t blockTable
	t.grow(4)
	return t
}

// grow makes 1 << bits places, and enters what is there anew.
func (t *blockTable) grow(bits uint) {
	old := t.places
	t.places, t.count, t.shift = make([]struct {
		addr  uint64
		block *part
	}, 1<<bits), 0, 64-bits
	for _, p := range old {
		if p.block != nil {
			t.put(p.block)
		}
	}
}

// home is the place of an address, if nothing else is there: the high bits of a product
// with 2^64 divided by the golden ratio.
func (t *blockTable) home(addr uint64) int { return int(addr * 0x9e3779b97f4a7c15 >> t.shift) }

// at is the place of an address, or the empty one at which the search for it ends.
func (t *blockTable) at(addr uint64) int {
	i := t.home(addr)
	for t.places[i].block != nil && t.places[i].addr != addr {
		i = (i + 1) & (len(t.places) - 1)
	}
	return i
}

// find is the block at an address, nil if there is none.
func (t *blockTable) find(addr uint64) *part { return t.places[t.at(addr)].block }

// put enters a block whose address is not there.
func (t *blockTable) put(b *part) {
	if 2*t.count >= len(t.places) {
		t.grow(65 - t.shift)
	}
	p := &t.places[t.at(b.addr)]
	p.addr, p.block = b.addr, b
	t.count++
}

// drop takes out the block at an address, which is there. What a search would no longer
// reach behind the empty place moves into it.
func (t *blockTable) drop(addr uint64) {
	last := len(t.places) - 1
	empty := t.at(addr)
	for i := (empty + 1) & last; t.places[i].block != nil; i = (i + 1) & last {
		if home := t.home(t.places[i].addr); (i-home)&last >= (i-empty)&last {
			t.places[empty] = t.places[i]
			empty = i
		}
	}
	t.places[empty].block = nil
	t.count--
}
