// Contexts of the program, and what ends with them.

package shim

import (
	"errors"
	"fmt"

	"gpumem/device"
)

// contexts are those of the program on one GPU. Guarded by the mu of its Charges.
//
// The first one is counted with what is outside of the pool, each further one takes about as
// much as the first did. room is counted before the driver makes a context, and less after it
// has ended one, so that it is never less than what there is: at least further(n).
type contexts struct {
	n      int                // that are there, are being made, or are ending
	asking int                // threads that ask for room for one: what is outside stays counted
	room   uint64             // bytes that are counted for all but the first
	known  map[uint64]bool    // those that are there, by the driver's handle
	ending map[uint64]*leaves // by token
}

// leaves is what ends with a context: the driver is about to end it.
type leaves struct {
	handle uint64
	known  bool // it was counted
	of     map[Key]left
}

// left is a charge that has left, and the bytes that are given back when it has ended.
type left struct {
	of    *charge
	bytes closed
}

// further is what n contexts take beside what is outside.
func (c *Charges) further(n int) uint64 { return uint64(max(n-1, 0)) * c.process.Context }

// TakeContext counts a context that the program is about to make, until TookContext. It is
// refused where the lease has no room.
func (c *Charges) TakeContext() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.contexts.asking++
	err := c.takeContext()
	c.contexts.asking--
	if err != nil {
		c.exit()
	}
	return err
}

// takeContext is TakeContext. Caller holds mu, which is unlocked while the account is asked.
func (c *Charges) takeContext() error {
	c.mu.Unlock()
	err := c.Enter()
	c.mu.Lock()
	// Another thread may make a context meanwhile, or end one.
	for err == nil && c.contexts.room < c.further(c.contexts.n+1) {
		bytes := c.further(c.contexts.n+1) - c.contexts.room
		c.mu.Unlock()
		if err = c.ask(Outside, bytes); errors.Is(err, device.ErrOutOfMemory) {
			c.account.Refused(bytes)
			err = fmt.Errorf("the lease has no room for what a process takes outside the pool, which is one context more: %w", err)
		}
		c.mu.Lock()
		if err == nil {
			c.contexts.room += bytes
		}
	}
	if err != nil {
		return err
	}
	c.contexts.n++
	c.lowerRoom()
	if c.contexts.n > 1 {
		c.account.Uncertain()
	}
	return nil
}

// TookContext notes the handle of a context that was made after TakeContext; 0 if it was not.
func (c *Charges) TookContext(handle uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if handle == 0 {
		c.endContext()
	} else {
		c.contexts.known[handle] = true
	}
}

// RemoveContext begins the end of a context: what the program took in it is counted until
// RemovedContext, by the token that RemoveContext returns.
func (c *Charges) RemoveContext(handle uint64) (token uint64) {
	c.under.begin()
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &leaves{handle: handle, known: c.contexts.known[handle], of: map[Key]left{}}
	delete(c.contexts.known, handle)
	for k, e := range c.of {
		if e.context == handle && handle != 0 {
			l.of[k] = left{e, c.leave(k, e)}
		}
	}
	c.token++
	c.contexts.ending[c.token] = l
	return c.token
}

// RemovedContext says whether the driver has ended what RemoveContext was called for.
func (c *Charges) RemovedContext(token uint64, ended bool) {
	defer c.under.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.contexts.ending[token]
	delete(c.contexts.ending, token)
	if !ended {
		if l.known {
			c.contexts.known[l.handle] = true
		}
		for k, e := range l.of {
			c.undo(k, e.of, e.bytes)
		}
		return
	}
	for _, e := range l.of {
		e.bytes.give(c.account)
	}
	for _, of := range c.leaving { // what other threads release at the same time cannot stay
		if of.of.context == l.handle && l.handle != 0 {
			of.of.gone = true
		}
	}
	if l.known {
		c.endContext()
	}
}

// with returns what ends with a context that is ending; nil if it is not. Caller holds mu.
func (c *Charges) with(handle uint64) *leaves {
	for _, l := range c.contexts.ending {
		if l.handle == handle && handle != 0 {
			return l
		}
	}
	return nil
}

// endContext counts one context less. Caller holds mu.
func (c *Charges) endContext() {
	c.contexts.n--
	c.lowerRoom()
	c.exit()
}

// lowerRoom gives back what is counted for more contexts than there are. Caller holds mu.
func (c *Charges) lowerRoom() {
	if n := c.further(c.contexts.n); n < c.contexts.room {
		c.account.Give(Outside, c.contexts.room-n)
		c.contexts.room = n
	}
}

// exit gives back what is outside, until Enter, if the last context has ended. Caller holds mu.
func (c *Charges) exit() {
	if c.contexts.n+c.contexts.asking > 0 || c.pool != nil || c.state != outside {
		return
	}
	for _, e := range c.of {
		if e.context != 0 {
			return // a context is there that was not counted
		}
	}
	c.account.Give(Outside, c.process.Outside)
	c.state = nowhere
}
