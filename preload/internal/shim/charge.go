// Memory that the program takes past the pool.

package shim

import (
	"errors"
	"fmt"
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

// Charges counts in the account what the program takes from the driver by itself. Any
// number of goroutines may use it.
type Charges struct {
	account Account
	outside uint64 // that this process takes while it has a context
	sum     atomic.Uint64

	mu      sync.Mutex // guards what follows
	entered bool       // outside is counted
	of      map[Key]*charge
	maps    map[uint64]mapping // by address
	pool    *Pool              // releases what is idle before a charge is refused; nil for none
}

// A charge ends when the last of its users has gone: handles, and mappings.
type charge struct {
	bytes   uint64
	users   int
	context uint64 // it ends with; 0 for none
}

// A mapping is one use of a handle that the program has mapped.
type mapping struct {
	bytes uint64
	key   Key
}

// NewCharges begins with outside bytes, which the context and the libraries of this
// process take.
func NewCharges(a Account, outside uint64) (*Charges, error) {
	c := &Charges{account: a, outside: outside, of: map[Key]*charge{}, maps: map[uint64]mapping{}}
	if err := c.Enter(); err != nil {
		return nil, err
	}
	return c, nil
}

// Enter counts what is outside the pool, if it is not counted: the program's context has
// ended before, and it makes another.
func (c *Charges) Enter() error {
	c.mu.Lock()
	entered := c.entered
	c.entered = true
	c.mu.Unlock()
	if entered || c.outside == 0 {
		return nil
	}
	if err := c.ask(Outside, c.outside); err != nil {
		c.mu.Lock()
		c.entered = false
		c.mu.Unlock()
		if errors.Is(err, device.ErrOutOfMemory) {
			c.account.Refused(c.outside)
		}
		return fmt.Errorf("the lease has no room for what a process takes outside the pool: %w", err)
	}
	return nil
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
	err := c.account.Take(p, bytes)
	c.mu.Lock()
	pool := c.pool
	c.mu.Unlock()
	if errors.Is(err, device.ErrOutOfMemory) && pool != nil {
		if err := pool.idle(); err != nil {
			return err
		}
		err = c.account.Take(p, bytes)
	}
	limit, _ := c.account.Limit()
	for start := time.Now(); errors.Is(err, device.ErrOutOfMemory) && bytes <= limit && time.Since(start) < patience; {
		if c.account.Want(bytes) != nil { // no other process
			break
		}
		time.Sleep(poll)
		err = c.account.Take(p, bytes)
	}
	return err
}

// Bytes returns what is charged now, without what is outside.
func (c *Charges) Bytes() uint64 { return c.sum.Load() }

// Take counts memory that the program is about to take. It is refused where the lease
// has no room, after what is idle in the pool, and in other processes of the lease, was
// released.
func (c *Charges) Take(bytes uint64) error {
	if err := c.Enter(); err != nil {
		return err
	}
	err := c.ask(Charged, bytes)
	c.mu.Lock()
	pool := c.pool
	c.mu.Unlock()
	switch {
	case err == nil:
	case pool != nil:
		pool.refusedCharge(bytes, err)
	case errors.Is(err, device.ErrOutOfMemory):
		c.account.Refused(bytes)
	}
	return err
}

// Done notes what the memory of a Take became. It ends with a context of the driver's, if
// that is not 0.
func (c *Charges) Done(k Key, bytes, context uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.of[k]; old != nil { // its end was not seen
		c.sum.Add(-old.bytes)
		c.give(old.bytes)
	}
	c.of[k] = &charge{bytes, 1, context}
	c.sum.Add(bytes)
}

// Failed takes back a Take whose call failed.
func (c *Charges) Failed(bytes uint64) { c.account.Give(Charged, bytes) }

// Retained notes that the program has a handle once more.
func (c *Charges) Retained(k Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.of[k]; e != nil {
		e.users++
	}
}

// Remove ends one use of what the program is about to release, and returns the bytes that
// are free with it: they are still counted, until Failed releases them, or Done has them
// again because the release failed. ok is false for what was never charged.
func (c *Charges) Remove(k Key) (bytes uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.remove(k)
}

func (c *Charges) remove(k Key) (bytes uint64, ok bool) {
	e := c.of[k]
	if e == nil {
		return 0, false
	}
	if e.users--; e.users > 0 {
		return 0, true
	}
	delete(c.of, k)
	c.sum.Add(-e.bytes)
	return e.bytes, true
}

// ContextEnded takes back the charges of what has ended with a context.
func (c *Charges) ContextEnded(context uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.contextEnded(context)
}

func (c *Charges) contextEnded(context uint64) {
	for k, e := range c.of {
		if e.context == context && context != 0 {
			e.users = 1
			bytes, _ := c.remove(k)
			c.give(bytes)
		}
	}
}

func (c *Charges) give(bytes uint64) { c.account.Give(Charged, bytes) }

// Mapped notes that the program has mapped a handle: the memory stays until it is
// unmapped, also if the handle is released before.
func (c *Charges) Mapped(addr, bytes uint64, k Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.of[k]; e != nil {
		e.users++
		c.maps[addr] = mapping{bytes, k}
	}
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
		bytes, _ := c.remove(m.key)
		c.give(bytes)
		at += max(m.bytes, 1)
	}
}

// end takes back what has ended with the pool's context, and what is outside, until Enter.
// What is the program's in other contexts, or in none (cuMemCreate), stays.
func (c *Charges) end(context uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pool = nil
	c.contextEnded(context)
	for _, e := range c.of {
		if e.context != 0 {
			return // another context is there
		}
	}
	if c.entered {
		c.account.Give(Outside, c.outside)
		c.entered = false
	}
}
