// Memory that the program takes past the pool: what the driver granted for it.

package shim

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"gpumem/device"
)

// Kind is what memory a program took past the pool.
type Kind uint8

// The kinds of [Key].
const (
	Plain  Kind = iota // by its address: managed, pitched, or plain memory of the driver
	Handle             // cuMemCreate
	Array              // cuArrayCreate and the like
)

// Key names memory that a program took past the pool: Value is its address or handle.
type Key struct {
	Kind  Kind
	Value uint64
}

// Process is what the driver takes for a process by itself, in bytes, and how it waits for room.
type Process struct {
	Outside uint64 // context and libraries, while there is a context
	Context uint64 // each further context of the program
	Block   uint64 // the driver's unit; 0 stands for 2 MiB
	There   bool   // there is a context already, which counts also beyond the lease
	// WaitRoom is that of [Config].
	WaitRoom func(bytes uint64) Waiter
}

// Charges counts in the account what the program takes from the driver by itself. Any
// number of goroutines may use it.
//
// Memory with an address counts by the driver's blocks that it lies in, see blocks; an
// array, which has none, by blocks of its own; memory in pools of the driver by what the
// driver says that the pool has reserved.
type Charges struct {
	account Account
	process Process
	sum     atomic.Uint64
	under   releases // of all memory of this GPU: of the pool, too

	mu       sync.Mutex // guards what follows
	state    whereabouts
	entered  chan struct{} // is closed when entering has ended
	contexts contexts
	of       map[Key]*charge
	leaving  map[uint64]leaving // by token
	token    uint64             // the last one
	maps     map[uint64]mapping // by address
	mapped   uint64             // bytes of them
	reserved map[uint64]uint64  // bytes counted by pool of the driver
	blocks   *blocks            // of the pool's grants, too
	pool     *Pool              // releases what is idle before a charge is refused; nil for none
}

// whereabouts is whether what is outside of the pool is counted.
type whereabouts uint8

const (
	nowhere  whereabouts = iota // it is not: there is no context
	entering                    // a thread asks for room for it
	outside                     // it is
)

// A charge ends when the last of its users has gone: handles, and mappings.
type charge struct {
	bytes   uint64 // as requested
	users   int
	context uint64 // it ends with; 0 for none
	gone    bool   // the context has ended, while the charge was leaving
}

// leaving is a use that ends: the driver is about to release it.
type leaving struct {
	key   Key
	of    *charge
	last  bool   // it was the last use
	bytes closed // that are given back then
}

// A mapping is one use of a handle that the program has mapped.
type mapping struct {
	bytes uint64
	key   Key
}

// NewCharges begins with what the context and the libraries of this process take.
func NewCharges(a Account, process Process) (*Charges, error) {
	process.Block = max(process.Block, driverBlock)
	blocks := newBlocks(process.Block)
	process.Context = blocks.most(process.Context)
	c := &Charges{
		account: a, process: process, blocks: blocks, contexts: contexts{known: map[uint64]bool{}, ending: map[uint64]*leaves{}},
		of: map[Key]*charge{}, leaving: map[uint64]leaving{}, maps: map[uint64]mapping{}, reserved: map[uint64]uint64{},
	}
	switch err := c.Enter(); {
	case errors.Is(err, device.ErrOutOfMemory) && process.There:
		a.Count(Outside, process.Outside)
		c.state = outside
	case err != nil:
		return nil, err
	}
	return c, nil
}

// Enter counts what is outside the pool, if it is not counted: the program's context has
// ended before, and it makes another. Of several threads one asks, and the others wait for
// the answer.
func (c *Charges) Enter() error {
	if c.process.Outside == 0 {
		return nil
	}
	c.mu.Lock()
	for c.state == entering {
		entered := c.entered
		c.mu.Unlock()
		<-entered
		c.mu.Lock()
	}
	if c.state == outside {
		c.mu.Unlock()
		return nil
	}
	c.state, c.entered = entering, make(chan struct{})
	c.mu.Unlock()
	err := c.ask(Outside, c.process.Outside)
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.entered)
	if err == nil {
		c.state = outside
		return nil
	}
	c.state = nowhere
	if !errors.Is(err, device.ErrOutOfMemory) {
		return fmt.Errorf("what a process takes outside the pool: %w", err)
	}
	c.account.Refused(c.process.Outside)
	return fmt.Errorf("the lease has no room for what a process takes outside the pool: %w", err)
}

// The wait for other processes of the lease to release idle memory, and the time between
// two attempts: as package gpumem has them for a pool's requests.
const (
	patience = time.Second
	poll     = 20 * time.Millisecond
)

// ask takes bytes in the account; where the lease has no room it releases what is idle
// in this process, and then asks the others of the lease for theirs.
func (c *Charges) ask(p Part, bytes uint64) error {
	err := c.count(p, bytes)
	limit, _ := c.account.Limit()
	if !errors.Is(err, device.ErrOutOfMemory) || bytes > limit {
		return err
	}
	c.under.again(func() (refused bool, own uint64) {
		c.mu.Lock()
		pool := c.pool
		c.mu.Unlock()
		if pool != nil {
			own = 1
			if e := pool.idle(); e != nil && c.has(pool) {
				err = e
				return false, own
			}
		}
		err = c.count(p, bytes)
		return errors.Is(err, device.ErrOutOfMemory), own
	})
	for start := time.Now(); errors.Is(err, device.ErrOutOfMemory) && time.Since(start) < patience; {
		if c.account.Want(bytes) != nil { // no other process
			break
		}
		time.Sleep(poll)
		err = c.count(p, bytes)
	}
	if c.process.WaitRoom == nil {
		return err
	}
	w := c.process.WaitRoom(bytes)
	defer w.End()
	for waits := 0; waits < mostWaits && c.othersHaveIt(bytes, err) && w.Again(); waits++ {
		err = c.count(p, bytes)
	}
	return err
}

// count takes bytes in the account. While the pool's memory is away it takes none without which that could
// never return: what the program has beside the pool stays where it is.
func (c *Charges) count(p Part, bytes uint64) error {
	c.mu.Lock()
	pool := c.pool
	c.mu.Unlock()
	if pool != nil {
		needs, away := pool.IsAway()
		if away && bytes > less(c.account.Reachable(), c.account.Beside()+needs) {
			return fmt.Errorf("%w: the memory that is away could not return", device.ErrOutOfMemory)
		}
	}
	return c.account.Take(p, bytes)
}

// othersHaveIt reports whether a request was refused because of what others hold of the lease, in a
// run in which they may leave.
func (c *Charges) othersHaveIt(bytes uint64, err error) bool {
	if !errors.Is(err, device.ErrOutOfMemory) {
		return false
	}
	c.mu.Lock()
	pool := c.pool
	c.mu.Unlock()
	if pool == nil {
		return isOthers(c.account, bytes, 0)
	}
	return isOthers(c.account, bytes, pool.held(pool.pool.Stats()))
}

// has reports whether a pool has not ended.
func (c *Charges) has(pool *Pool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pool == pool
}

// Bytes returns what is charged now, without what is outside.
func (c *Charges) Bytes() uint64 { return c.sum.Load() }

// Take counts memory that the program is about to take: as many whole blocks as bytes may
// need, until Done knows better. It is refused where the lease has no room, after what is
// idle in the pool, and in other processes of the lease, was released.
func (c *Charges) Take(bytes uint64) error { return c.take(bytes, c.blocks.most(bytes)) }

func (c *Charges) take(bytes, most uint64) error {
	if err := c.Enter(); err != nil {
		return err
	}
	err := c.ask(Charged, most)
	if err != nil {
		c.refused(bytes, err)
	}
	return err
}

// refused notes that the program was refused a request.
func (c *Charges) refused(bytes uint64, err error) {
	c.mu.Lock()
	pool := c.pool
	c.mu.Unlock()
	if pool != nil {
		pool.refusedCharge(bytes, err)
	} else if errors.Is(err, device.ErrOutOfMemory) {
		c.account.Refused(bytes)
	}
}

// Resize makes the count of a Take of so many bytes that of what the driver has granted, before
// Done. It is refused where the lease has no room; then nothing has changed.
func (c *Charges) Resize(counted, bytes uint64) error {
	have, want := c.blocks.most(counted), c.blocks.most(bytes)
	if want > have {
		err := c.ask(Charged, want-have)
		if err != nil {
			c.refused(bytes, err)
		}
		return err
	}
	c.account.Give(Charged, have-want)
	return nil
}

// Done notes what the memory of a Take became. It ends with a context of the driver's, if
// that is not 0.
func (c *Charges) Done(k Key, bytes, context uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.of[k]; old != nil { // its end was not seen
		c.drop(k, old)
	}
	c.settle(c.blocks.most(bytes), c.enter(k, &charge{bytes: bytes, users: 1, context: context}))
	if k.Kind != Handle { // whose bytes the driver has been given
		c.account.Uncertain()
	}
}

// enter adds a charge and returns the bytes that the driver has taken for it. Caller holds mu.
func (c *Charges) enter(k Key, e *charge) uint64 {
	c.of[k] = e
	n := c.blocks.most(e.bytes)
	if k.Kind == Plain {
		n = c.blocks.enter(k.Value, e.bytes, Charged)
	}
	c.sum.Add(n)
	return n
}

// leave removes a charge and returns the bytes that the driver releases with it. Caller
// holds mu.
func (c *Charges) leave(k Key, e *charge) (n closed) {
	delete(c.of, k)
	if n[Charged] = c.blocks.most(e.bytes); k.Kind == Plain {
		n = c.blocks.leave(k.Value, e.bytes, Charged)
	}
	c.sum.Add(-n[Charged])
	return n
}

// drop ends a charge at once. Caller holds mu.
func (c *Charges) drop(k Key, e *charge) { c.leave(k, e).give(c.account) }

// undo enters a charge again that has left with so many bytes, which are counted. Caller holds
// mu.
func (c *Charges) undo(k Key, e *charge, left closed) {
	c.settle(left[Charged], c.enter(k, e))
	left[Charged] = 0
	left.give(c.account)
}

// settle makes the bytes counted so far those that the driver has taken.
func (c *Charges) settle(counted, taken uint64) { settle(c.account, Charged, counted, taken) }

// settle makes bytes that are counted in an account those that the driver has taken.
func settle(a Account, p Part, counted, taken uint64) {
	if taken > counted {
		a.Count(p, taken-counted)
	} else if taken < counted {
		a.Give(p, counted-taken)
	}
}

// Failed takes back a Take whose call failed.
func (c *Charges) Failed(bytes uint64) { c.account.Give(Charged, c.blocks.most(bytes)) }

// Retained notes that the program has a handle once more.
func (c *Charges) Retained(k Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.of[k]; e != nil {
		e.users++
	}
}

// Remove ends one use of what the program is about to release. Its bytes are counted until
// Removed, by the token that Remove returns: once the driver has the memory back it may give
// another thread the same address or handle. The token is 0 for what was never charged.
func (c *Charges) Remove(k Key) (token uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.of[k]
	if e == nil {
		return 0
	}
	e.users--
	l := leaving{key: k, of: e, last: e.users == 0}
	if l.last {
		l.bytes = c.leave(k, e)
	}
	c.token++
	c.leaving[c.token] = l
	c.under.begin()
	return c.token
}

// Removed says whether the driver has released what Remove ended.
func (c *Charges) Removed(token uint64, released bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, ok := c.leaving[token]
	if !ok {
		return
	}
	delete(c.leaving, token)
	defer c.under.end()
	switch {
	case released, l.last && l.of.gone:
		l.bytes.give(c.account)
	case l.last:
		l.of.users = 1
		if with := c.with(l.of.context); with != nil { // it ends, or stays, with its context
			with.of[l.key] = left{l.of, l.bytes}
			return
		}
		c.undo(l.key, l.of, l.bytes)
	default:
		l.of.users++
	}
}

// begin has a pool release what is idle before a charge is refused. What is reserved of the
// driver's pool that the policy async is built on is the pool's from now on.
func (c *Charges) begin(p *Pool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pool = p
	if n := c.reserved[p.dev.own]; n > 0 && p.dev.own != 0 {
		delete(c.reserved, p.dev.own)
		c.sum.Add(-n)
		_ = p.dev.adopt(device.Pool(p.dev.own), n) // it is counted, also beyond the lease
	}
}

// poolGrowth is by how much a pool of the driver grows at least: see package device/sim.
const poolGrowth = 32 << 20

// TakePooled counts what a pool of the driver may have to grow by for a request of the
// program's, and returns it for ReservedPooled. Where the lease has no room for that, and
// the pool seems to have room for the request, nothing is counted before. limit is what the
// pool may have at most, 0 for all.
func (c *Charges) TakePooled(bytes, reserved, used, limit uint64) (counted uint64, err error) {
	most := newBlocks(poolGrowth).most(bytes)
	if limit > 0 {
		limit = c.blocks.most(limit)
		most = min(most, limit-min(limit, reserved))
	}
	if used > reserved || bytes > reserved-used {
		return most, c.take(bytes, most)
	}
	if err := c.account.Take(Charged, most); errors.Is(err, device.ErrOutOfMemory) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	return most, nil
}

// Unknown is the answer of a driver that does not say how much a pool has reserved.
const Unknown = math.MaxUint64

// ReservedPooled notes what the driver says that a pool has reserved now, of which counted
// bytes are counted already; Unknown leaves all of it counted. The error is that of a lease
// without room; then it is counted all the same. No other call for the pool may be between the driver's answer and this.
func (c *Charges) ReservedPooled(pool, reserved, counted uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pool != nil && c.pool.dev.own == pool { // the policy async has blocks in it, too
		return c.pool.dev.adopt(device.Pool(pool), counted)
	}
	have := c.reserved[pool] + counted
	if reserved == Unknown {
		reserved = have
	}
	c.sum.Add(reserved - c.reserved[pool])
	if c.reserved[pool] = reserved; reserved == 0 {
		delete(c.reserved, pool)
	}
	c.account.Uncertain()
	if reserved <= have {
		c.account.Give(Charged, have-reserved)
		return nil
	}
	err := c.account.Take(Charged, reserved-have)
	if err != nil {
		c.account.Count(Charged, reserved-have)
	}
	return err
}

// Mapped notes that the program has mapped a handle: the memory stays until it is
// unmapped, also if the handle is released before.
func (c *Charges) Mapped(addr, bytes uint64, k Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.of[k]; e != nil {
		e.users++
		c.mapped += bytes - c.maps[addr].bytes
		c.maps[addr] = mapping{bytes, k}
	}
}

// MappedBytes returns how much memory of the GPU the program has mapped by itself.
func (c *Charges) MappedBytes() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mapped
}

// Unmapped notes that the program has unmapped a range of whole mappings.
func (c *Charges) Unmapped(addr, bytes uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at := addr; at < addr+bytes; {
		m, ok := c.maps[at]
		if !ok {
			at += 1 << 16 // no page is smaller
			continue
		}
		delete(c.maps, at)
		c.mapped -= m.bytes
		if e := c.of[m.key]; e != nil {
			if e.users--; e.users == 0 {
				c.drop(m.key, e)
			}
		}
		at += max(m.bytes, 1)
	}
}

// end takes back what has ended with the pool's context, and what is outside, until Enter.
// What is the program's in other contexts, or in none (cuMemCreate), stays.
func (c *Charges) end(context uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pool != nil && c.contexts.n > 1 {
		if n := c.pool.dev.uncount(); n > 0 { // other contexts have memory of the driver's pool
			c.reserved[c.pool.dev.own] = n
			c.sum.Add(n)
			c.account.Count(Charged, n)
			c.account.Give(Held, n)
		}
	}
	c.pool = nil
	for k, e := range c.of {
		if e.context == context && context != 0 {
			c.drop(k, e)
		}
	}
	c.exit()
}
