package async

// The pool around the blocks: how it is set up, what it holds, how it releases memory.
//
// The attributes that are changed belong to the device's default pool, which outlives
// this allocator: each is noted with its former value when it is set, and Close sets
// it back. Setting up may fail half-way and is then continued by the next request.

import (
	"errors"
	"fmt"
	"strings"

	"gpumem/alloc"
	"gpumem/device"
	"gpumem/size"
)

// setting is an attribute of the pool that was changed, and what it was.
type setting struct {
	attribute device.PoolAttribute
	old       uint64
}

// open finds the pool and makes it what Config wants. It may be called again
// after an error, and goes on from there; Close puts back what was done until
// then.
func (a *Allocator) open(number uint32) error {
	if !a.found {
		pool, err := a.dev.DefaultPool()
		if err != nil {
			return err
		}
		if a.mark, err = a.dev.PoolGetAttribute(pool, device.PoolReservedHigh); err != nil {
			return err
		}
		a.pool, a.found = pool, true
	}
	want := []setting{{device.PoolReleaseThreshold, a.cfg.Reserve}}
	if a.cfg.Deterministic {
		want = append(want, setting{device.PoolReuseAllowOpportunistic, 0}, setting{device.PoolReuseAllowInternalDependencies, 0})
	}
	for _, w := range want {
		old, err := a.dev.PoolGetAttribute(a.pool, w.attribute)
		if err != nil {
			return err
		}
		if old == w.old {
			continue // as it is, or by an earlier call
		}
		if err := a.dev.PoolSetAttribute(a.pool, w.attribute, w.old); err != nil {
			return err
		}
		a.set = append(a.set, setting{w.attribute, old})
	}
	if err := a.preallocate(number); err != nil {
		return err
	}
	a.ready = true
	return nil
}

// preallocate makes the pool take memory, by allocating and freeing it. A refusal is
// logged, XLA's records in one message, and the pool does without, as in XLA: nothing
// smaller is tried. If the free fails, the bytes are owed and the next request tries
// again.
func (a *Allocator) preallocate(number uint32) error {
	n := a.cfg.Preallocate
	if n > 0 && a.owed == 0 {
		got, err := a.take(n, number)
		// A driver may call a size that the GPU does not have an invalid value.
		if errors.Is(err, device.ErrOutOfMemory) || n > a.info.Total && errors.Is(err, device.ErrInvalidValue) {
			a.logRefused(n)
			return nil
		}
		if err != nil {
			return err
		}
		a.owed, a.owedIn = got.Addr, number
	}
	if a.owed == 0 {
		return nil
	}
	err := a.freeIn(a.owed, a.owedIn, nil)
	if err == nil {
		a.owed = 0
	}
	return err
}

// logRefused logs that the n bytes to preallocate were refused.
func (a *Allocator) logRefused(n uint64) {
	if a.cfg.Log == nil {
		return
	}
	var records []string
	for _, m := range a.Report(alloc.Request{Bytes: n}) {
		records = append(records, m.Text)
	}
	a.cfg.Log(alloc.Message{Severity: alloc.Error, Text: strings.Join(records, "\n")})
	a.cfg.Log(alloc.Message{Severity: alloc.Info, Text: fmt.Sprintf("%s preallocated nothing: refused %s; it takes memory as it is needed", a.name, size.Format(n))})
}

// Stats returns XLA's statistics, by the requested sizes and without the
// preallocation. The limit is Config.Reserve, and the largest free block is 0, as the
// driver does not report it. PoolBytes and PeakPoolBytes are what the pool holds
// from the device and the most of it, with what others have from the same pool.
// The driver is asked for these two at every call, since any synchronise of the
// program may have changed them: that is two driver calls. If it does not
// answer they are what it reported last, and no less than what is in use.
func (a *Allocator) Stats() alloc.Stats {
	if a.found && !a.final {
		a.final = a.look() == nil && a.blocks.Closed
	}
	return a.blocks.Count
}

// look asks the driver what the pool holds. The pool's high mark is older than this
// allocator; until it is passed, the most that was seen is the peak.
func (a *Allocator) look() error {
	s := &a.blocks.Count
	held, err := a.dev.PoolGetAttribute(a.pool, device.PoolReservedCurrent)
	if err != nil {
		s.PoolBytes = max(s.PoolBytes, s.BytesInUse)
	} else {
		s.PoolBytes = held
	}
	s.PeakPoolBytes = max(s.PeakPoolBytes, s.PoolBytes)
	high, err2 := a.dev.PoolGetAttribute(a.pool, device.PoolReservedHigh)
	if err2 == nil && high > a.mark {
		s.PeakPoolBytes = max(s.PeakPoolBytes, high)
	}
	return errors.Join(err, err2)
}

// Trim waits for all work on the device, and makes the pool release what is
// unused until it holds keep bytes; what shares the driver's unit with a live
// block stays. It returns how many bytes the pool released meanwhile, whoever had
// freed them.
func (a *Allocator) Trim(keep uint64) (released uint64, err error) {
	if a.blocks.Closed {
		return 0, alloc.ErrClosed
	}
	if !a.found {
		return 0, nil
	}
	if err := a.look(); err != nil {
		return 0, err
	}
	before := a.blocks.Count.PoolBytes
	if !a.streams.Repeated() {
		if err := a.streams.Synchronize(); err != nil {
			return 0, err
		}
	}
	err = a.dev.PoolTrim(a.pool, keep)
	if err := errors.Join(err, a.look()); err != nil {
		return 0, err
	}
	return before - min(before, a.blocks.Count.PoolBytes), nil
}

// Close releases every block, has the pool release all that is unused, and
// puts its attributes back. It waits for all work on the device. A call that
// fails does not keep it from the others; the errors are joined.
func (a *Allocator) Close() error {
	if a.blocks.Closed {
		return alloc.ErrClosed
	}
	a.blocks.Closed = true
	if !a.found {
		return nil
	}
	// From here on the host knows that no work uses a block any more, whatever
	// was recorded.
	errs := []error{a.dev.Synchronize()}
	if a.owed != 0 {
		errs = append(errs, a.dev.FreeAsync(a.owed, 0))
		a.owed = 0
	}
	for _, h := range a.blocks.Sorted() {
		// Stream 0 will do for all, and is there also where the program has
		// destroyed the block's own.
		errs = append(errs, a.dev.FreeAsync(a.start(h, a.blocks.Store.At(h)), 0))
	}
	errs = append(errs, a.dev.StreamSynchronize(0), a.dev.PoolTrim(a.pool, 0))
	for _, s := range a.set {
		errs = append(errs, a.dev.PoolSetAttribute(a.pool, s.attribute, s.old))
	}
	errs = append(errs, a.streams.Close())
	a.blocks.Reset()
	a.extra = nil
	a.final = a.look() == nil
	return errors.Join(errs...)
}
