package sim

import (
	"errors"
	"testing"

	"gpumem/device"
)

// flaky is a ledger that can fail as one in a file can.
type flaky struct {
	private
	err error // of every call; nil: none fails
}

func (l *flaky) take(n uint64) error {
	if l.err != nil {
		return l.err
	}
	return l.private.take(n)
}

func (l *flaky) give(n uint64) error {
	if l.err != nil {
		return l.err
	}
	return l.private.give(n)
}

func (l *flaky) free() (uint64, error) {
	n, _ := l.private.free()
	return n, l.err
}

// TestLedgerFails: each call that asks the ledger fails with its error,
// changes nothing, and works when it is made again.
func TestLedgerFails(t *testing.T) {
	const page = pageUnit
	d, err := New(Config{Total: 1 << 30, Context: 1, Name: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	l := &flaky{private: private{holdings: &holdings{total: 1 << 30}}}
	d.ledger = l
	broken := errors.New("the file is gone")
	var grant, apart device.Range
	var base uint64
	for i, tc := range []struct {
		name string
		call string // "": does not ask the ledger
		do   func() error
		held uint64 // by the ledger, afterwards; with the context's byte
	}{
		{"the first call", "cuMemGetInfo", func() error { _, _, err := d.MemInfo(); return err }, 1},
		{"free and total", "cuMemGetInfo", func() error { _, _, err := d.MemInfo(); return err }, 1},
		{"a grant", "cuMemAlloc", func() (err error) { grant, err = d.Alloc(page); return err }, page + 1},
		{"a managed grant", "", func() (err error) { apart, err = d.AllocManaged(page); return err }, page + 1},
		{"its end", "", func() error { return d.Free(apart.Addr) }, page + 1},
		{"a handle", "cuMemCreate", func() error { _, err := d.MemCreate(page); return err }, 2*page + 1},
		{"another", "cuMemCreate", func() error { _, err := d.MemCreate(page); return err }, 3*page + 1},
		{"addresses", "", func() (err error) { base, err = d.AddressReserve(4*page, 0); return err }, 3*page + 1},
		{"a mapping", "", func() error { return d.MemMap(base, page, 1) }, 3*page + 1},
		{"a second", "", func() error { return d.MemMap(base+page, page, 2) }, 3*page + 1},
		{"a third", "", func() error { return d.MemMap(base+2*page, page, 1) }, 3*page + 1},
		{"release while mapped", "", func() error { return d.MemRelease(1) }, 3*page + 1},
		{"unmap all of it", "cuMemUnmap", func() error { return d.MemUnmap(base, 3*page) }, 2*page + 1},
		{"release", "cuMemRelease", func() error { return d.MemRelease(2) }, page + 1},
		{"free", "cuMemFree", func() error { return d.Free(grant.Addr) }, 1},
	} {
		if l.err = broken; tc.call != "" {
			before, held := l.held, d.held
			err := tc.do()
			var as *device.CallError
			if !errors.As(err, &as) || as.Call != tc.call || as.Device != "mine" || as.Err != broken {
				t.Errorf("%s: %v", tc.name, err)
			}
			if l.held != before || d.held != held {
				t.Errorf("%s: a call that failed changed what is held", tc.name)
			}
			l.err = nil
		}
		if err := tc.do(); err != nil || l.held != tc.held || d.held != max(tc.held, 1)-1 {
			t.Errorf("step %d, %s: %v, %d bytes held, want %d", i, tc.name, err, l.held, tc.held)
		}
	}
	if l.err = nil; d.Close() != nil || l.held != 0 {
		t.Errorf("closed, and %d bytes are held", l.held)
	}
}

// TestRefuseOnce: an error that names a call already is not told twice.
func TestRefuseOnce(t *testing.T) {
	d, err := New(Config{Total: 1})
	if err != nil {
		t.Fatal(err)
	}
	own := &device.CallError{Call: "hers", Device: "hers", Err: device.ErrLost}
	d.OnCall(func(uint64, string, uint64) error { return own })
	if _, _, err := d.MemInfo(); err != own {
		t.Errorf("%v, want %v", err, own)
	}
}
