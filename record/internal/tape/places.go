package tape

// The addresses of the recorded program's blocks, with which a replay compares its own
// placements. They are few bytes, but most passes over a recording do not need them, so
// they are stored apart from the events.
//
// A place is two varints (encoding/binary): how many Allocs without an address
// lie between it and the place before, and the difference of the addresses,
// zigzag. Blocks of places lie in the spool as those of events do; each stands
// alone, relative to index 0 and address 0.

import (
	"encoding/binary"
	"math"

	"gpumem/record/internal/spool"
)

// placeEncoder packs the places of one pool into the current block.
type placeEncoder struct {
	buf  []byte
	next uint64 // the number of the Alloc after the last one in the block
	addr uint64 // of the last one in the block
}

// place notes where the block of the last Alloc lies; 0 is unknown. It is of no seed: the
// order in which those were allocated is lost.
func (p *PoolBuilder) place(addr uint64) error {
	if addr == 0 {
		return nil
	}
	e := &p.places
	n := p.p.Allocs - p.p.Seeds - 1
	d := int64(addr - e.addr)
	e.buf = binary.AppendUvarint(e.buf, n-e.next)
	e.buf = binary.AppendUvarint(e.buf, uint64(d<<1)^uint64(d>>63))
	e.next, e.addr = n+1, addr
	p.p.Placed++
	if len(e.buf) < blockBytes {
		return nil
	}
	return p.sealPlaces()
}

// sealPlaces hands the block of places to the spool.
func (p *PoolBuilder) sealPlaces() error {
	e := &p.places
	if len(e.buf) == 0 {
		return nil
	}
	blk, err := p.b.trace.spool.Store(e.buf)
	if err != nil {
		return err
	}
	p.p.places = append(p.p.places, blk)
	*e = placeEncoder{buf: e.buf[:0]}
	return nil
}

// Places reads the addresses of a pool's blocks. It is not safe for concurrent use;
// several readers of one pool may be open at once.
type Places struct {
	pool  *Pool
	seeds uint64 // that are still to come
	alloc uint64 // number of the next Alloc after the seeds
	next  int    // number of the block after the current one
	rest  []byte // of the current block
	buf   []byte // holds a block that came from the file
	// The next place, by the number of its Alloc. In a new block it is relative
	// to 0.
	at, addr uint64
	ahead    bool // the next place is read
}

// Places returns a reader that begins at the first event.
func (p *Pool) Places() *Places { return &Places{pool: p, seeds: p.Seeds} }

// Of returns the address of the block that e, the next event of the pool, allocates;
// 0 if the recording does not have it or e allocates none. It must be called for
// every event, in order. The error is a temporary file that cannot be read, or a
// closed trace.
func (c *Places) Of(e *Event) (addr uint64, err error) {
	switch {
	case e.Op == Free:
		return 0, nil
	case c.seeds > 0:
		c.seeds--
		return 0, nil
	}
	if !c.ahead {
		if err := c.read(); err != nil {
			return 0, err
		}
		c.ahead = true
	}
	n := c.alloc
	c.alloc++
	if n != c.at {
		return 0, nil
	}
	c.ahead = false
	return c.addr, nil
}

// read reads the next place; after the last one it is of an Alloc that never
// comes.
func (c *Places) read() error {
	next := c.at + 1
	if len(c.rest) == 0 {
		if c.next == len(c.pool.places) {
			c.at = math.MaxUint64
			return nil
		}
		data, err := c.pool.trace.spool.Load(c.pool.places[c.next], &c.buf)
		if err != nil {
			return err
		}
		c.next++
		c.rest, next, c.addr = data, 0, 0
	}
	skipped, n := binary.Uvarint(c.rest)
	z, m := binary.Uvarint(c.rest[max(n, 0):])
	if n <= 0 || m <= 0 {
		return spool.ErrDamaged
	}
	c.rest = c.rest[n+m:]
	c.at = next + skipped
	c.addr += z>>1 ^ -(z & 1)
	return nil
}
