package contents

// page is the contents of Page bytes, and which of them the program wrote since so many launches: all, or
// those whose bits are set. After another launch it is none, whatever the bits are.
type page struct {
	bytes    *[Page]byte
	launches uint64
	all      bool
	bits     *[Page / 64]uint64 // nil: none
}

// ones has the lowest n of 64 bits set, of which there is at least one.
func ones(n uint64) uint64 { return ^uint64(0) >> (64 - n) }

// written returns the bits of n bytes, at most 64.
func (p *page) written(launches, off, n uint64) uint64 {
	switch {
	case p.launches != launches:
		return 0
	case p.all:
		return ones(n)
	case p.bits == nil:
		return 0
	}
	i, shift := off/64, off%64
	word := p.bits[i] >> shift
	if shift+n > 64 {
		word |= p.bits[i+1] << (64 - shift)
	}
	return word & ones(n)
}

// set sets the bits of n bytes, at most 64, to those of word; to none if that is older than the page's count.
func (p *page) set(launches, off, n, word uint64) {
	if launches < p.launches {
		word = 0
	}
	i, shift := off/64, off%64
	p.bits[i] = p.bits[i]&^(ones(n)<<shift) | word<<shift
	if shift+n > 64 {
		p.bits[i+1] = p.bits[i+1]&^(ones(n)>>(64-shift)) | word>>(64-shift)
	}
}

// begin has the page told by its bits, as of so many launches if its count is not newer.
func (p *page) begin(launches uint64) {
	if p.bits == nil {
		p.bits = new([Page / 64]uint64)
	}
	switch {
	case p.launches < launches:
		clear(p.bits[:])
		p.launches = launches
	case p.all:
		for i := range p.bits {
			p.bits[i] = ones(64)
		}
	}
	p.all = false
}

// note notes that the program wrote n bytes.
func (p *page) note(launches, off, n uint64) {
	switch {
	case n == Page:
		p.launches, p.all = launches, true
		return
	case p.launches == launches && p.all:
		return
	}
	p.begin(launches)
	for at := uint64(0); at < n; at += 64 {
		k := min(64, n-at)
		p.set(launches, off+at, k, ones(k))
	}
}

// noteCopy notes of n bytes what holds of those at another page's offset, of which they are a copy.
func (p *page) noteCopy(launches, off, n uint64, from *page, start uint64) {
	switch {
	case from.launches != launches && !p.all && p.bits == nil:
		return // neither has marks
	case from.launches == launches && from.all:
		p.note(launches, off, n)
		return
	}
	p.begin(launches)
	for at := uint64(0); at < n; at += 64 {
		k := min(64, n-at)
		p.set(launches, off+at, k, from.written(launches, start+at, k))
	}
}
