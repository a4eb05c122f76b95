package sim

import (
	"errors"
	"math"
	"testing"

	"gpumem/device"
)

// broken is a ledger that cannot be written to for a while, as a shared one can
// be.
type broken struct {
	private
	err error
}

func (l *broken) take(n uint64) error {
	if l.err != nil {
		return l.err
	}
	return l.private.take(n)
}

func (l *broken) give(n uint64) error {
	if l.err != nil {
		return l.err
	}
	return l.private.give(n)
}

// TestBrokenLedger: a pool that cannot grow or give back says so, and the next
// call finds everything as it was.
func TestBrokenLedger(t *testing.T) {
	d, err := New(Config{Total: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	l := &broken{private: private{holdings: &holdings{total: 1 << 30}}}
	d.ledger = l
	own := errors.New("the disk is full")
	try := func(name string, held uint64, call func() error) {
		t.Helper()
		before, _ := d.Held()
		l.err = own
		if err := call(); !errors.Is(err, own) {
			t.Errorf("%s: %v", name, err)
		}
		if now, _ := d.Held(); now != before {
			t.Errorf("%s failed: %d held, and %d before", name, now, before)
		}
		l.err = nil
		if err := call(); err != nil {
			t.Errorf("%s again: %v", name, err)
		}
		if now, _ := d.Held(); now != held || l.held != held {
			t.Errorf("%s: %d held, %d in the ledger; want %d", name, now, l.held, held)
		}
	}
	const mib = 1 << 20
	p, err1 := d.DefaultPool()
	q, err2 := d.PoolCreate(0)
	plain, err3 := d.Alloc(1)
	var r, r2 device.Range
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	try("grow", 34*mib, func() (err error) { r, err = d.AllocAsync(p, mib, 0); return })
	try("grow the other", 66*mib, func() (err error) { r2, err = d.AllocAsync(q, mib, 0); return })
	if err := errors.Join(d.FreeAsync(r.Addr, 0), d.FreeAsync(r2.Addr, 0), d.FreeAsync(plain.Addr, 0),
		d.PoolSetAttribute(q, device.PoolReleaseThreshold, 1<<30)); err != nil {
		t.Fatal(err)
	}
	try("synchronise", 32*mib, func() error { return d.StreamSynchronize(0) })
	try("destroy", 0, func() error { return d.PoolDestroy(q) })
	try("grow", 32*mib, func() (err error) { r, err = d.AllocAsync(p, mib, 0); return })
	if err := errors.Join(d.PoolSetAttribute(p, device.PoolReleaseThreshold, 1<<30), d.FreeAsync(r.Addr, 0), d.Synchronize()); err != nil {
		t.Fatal(err)
	}
	try("trim", 0, func() error { return d.PoolTrim(p, 0) })
}

// TestNoAddresses: a pool that finds no addresses takes no memory.
func TestNoAddresses(t *testing.T) {
	d, err := New(Config{Total: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	d.high = math.MaxUint64 - 3*driverBlock // as after very many chunks
	if r, err := d.AllocAsync(1, 1, 0); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("AllocAsync(1) = %+v, %v", r, err)
	}
	if now, _ := d.Held(); now != 0 {
		t.Errorf("%d bytes are held", now)
	}
}

// TestNoPilesOfNotes: a program that runs for long takes no more than it has
// streams and blocks at a time, though its host never waits for anything; and
// streams and pools that end leave nothing behind.
func TestNoPilesOfNotes(t *testing.T) {
	d, err := New(Config{Total: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	a, err1 := d.StreamCreate()
	e, err2 := d.EventCreate()
	r, err3 := d.AllocAsync(1, 4096, a)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		// From stream to stream, with reads in both and a block that comes and goes.
		err := errors.Join(d.EventRecord(e, a), d.StreamWaitEvent(0, e),
			d.Work(0, 0, []device.Range{r}, nil), d.Work(a, 0, []device.Range{{Addr: r.Addr, Bytes: 512}, r}, nil),
			d.EventRecord(e, a), d.StreamWaitEvent(0, e), d.FillAsync(r.Addr, r.Bytes, byte(i), 0))
		b, err1 := d.AllocAsync(1, uint64(1+i%7)*512, 0)
		s, err2 := d.StreamCreate()
		p, err3 := d.PoolCreate(0)
		if err := errors.Join(err, err1, err2, err3, d.FreeAsync(b.Addr, 0), d.StreamDestroy(s), d.PoolDestroy(p),
			d.EventRecord(e, 0), d.StreamWaitEvent(a, e)); err != nil {
			t.Fatal(err)
		}
	}
	m, parts := d.pools.memory(d.pools.blocks.find(r.Addr)), 0
	for range d.pools.all[0].parts {
		parts++
	}
	for b := d.pools.all[0].spare; b != nil; b = b.next {
		parts++
	}
	if len(m.uses) > 10 || parts > 15 || d.pools.blocks.count > 1 || len(d.work.queues) > 3 || len(d.pools.all) > 1 {
		t.Errorf("%d notes, %d parts, %d blocks, %d lanes, %d pools", len(m.uses), parts, d.pools.blocks.count, len(d.work.queues), len(d.pools.all))
	}
	if err := d.Synchronize(); err != nil {
		t.Fatal(err)
	}
	if err := d.FillAsync(r.Addr, 1, 0, 0); err != nil || len(m.uses) != 1 {
		t.Errorf("%d notes after a synchronise, %v", len(m.uses), err)
	}
}
