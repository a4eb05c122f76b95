package shim_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"gpumem"
	"gpumem/device"
	"gpumem/shim"
)

// TestDriversPoolIsCounted: what the driver's own pool reserves for the policy async
// counts in the account, its blocks are known by their addresses, and more than the lease
// is refused. Without, programs on it had no limit, and no free of theirs was seen.
func TestDriversPoolIsCounted(t *testing.T) {
	account := shim.NewLimit(100 << 20)
	var low, high uint64
	p, d := openPolicy(t, 1<<30, "async", shim.Config{Account: account, Addresses: func(l, h uint64) { low, high = l, h }})
	s, err := d.StreamCreate()
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		f := p.Figures()
		_, left := account.Limit()
		if f.InUse > f.Held || f.Held != 100<<20-left {
			t.Errorf("%s: %d bytes are in use, %d reserved, %d counted", when, f.InUse, f.Held, 100<<20-left)
		}
	}
	check("before the first block")
	var blocks []uint64
	for {
		a, err := p.AllocAsync(5<<20+1, uint64(s))
		if errors.Is(err, gpumem.ErrOutOfMemory) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if a < low || a >= high || !p.Contains(a) {
			t.Fatalf("block at %#x is not in [%#x, %#x)", a, low, high)
		}
		blocks = append(blocks, a)
		check("after a block")
	}
	if n := len(blocks); n < 10 || n > 19 {
		t.Errorf("%d blocks of 5 MiB in 100 MiB", n)
	}
	for _, a := range blocks {
		if err := p.FreeAsync(a, uint64(s)); err != nil {
			t.Fatal(err)
		}
		check("after a free")
	}
	if p.Contains(blocks[0]) {
		t.Errorf("%#x is the pool's when all are free", blocks[0])
	}
	for _, a := range blocks { // another thread may be freeing any of them when the range changes
		if a < low || a >= high {
			t.Errorf("the range [%#x, %#x) has lost %#x", low, high, a)
		}
	}
	if err := p.Trim(); err != nil {
		t.Fatal(err)
	}
	check("after Trim")
	if f := p.Figures(); f.Held != 0 || f.InUse != 0 {
		t.Errorf("Figures = %+v, want nothing held", f)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}

// calls counts the calls of an account.
type calls struct {
	shim.Account
	takes int
}

func (c *calls) Take(p shim.Part, n uint64) error {
	c.takes++
	return c.Account.Take(p, n)
}

// TestAccountIsAskedOnceForARequest: not for each of its pages, and what a request does
// not need is given back.
func TestAccountIsAskedOnceForARequest(t *testing.T) {
	account := &calls{Account: shim.NewLimit(200 << 20)}
	p, _ := open(t, 1<<30, shim.Config{Account: account, Ordered: true})
	held := func() uint64 { _, left := account.Limit(); return 200<<20 - left }
	a, err := p.Alloc(64 << 20)
	if err != nil {
		t.Fatal(err)
	}
	if account.takes != 1 || held() != 64<<20 {
		t.Errorf("64 MiB: %d calls, %d bytes held; want one call", account.takes, held())
	}
	if _, err := p.Alloc(16 << 20); err != nil {
		t.Fatal(err)
	}
	if err := p.Free(a); err != nil {
		t.Fatal(err)
	}
	account.takes = 0
	if _, err = p.Alloc(80 << 20); err != nil { // 64 MiB of it are idle
		t.Fatal(err)
	}
	if f := p.Figures(); account.takes > 2 || held() != f.Held {
		t.Errorf("80 MiB: %d calls, %d bytes counted, %d held", account.takes, held(), f.Held)
	}
	before := held()
	if _, err := p.Alloc(150 << 20); !errors.Is(err, gpumem.ErrOutOfMemory) || held() > before {
		t.Errorf("beyond the limit: %v, %d bytes counted, want at most %d", err, held(), before)
	}
	if err := p.Close(); err != nil || held() != 0 {
		t.Errorf("Close = %v, %d bytes counted", err, held())
	}
}

// shown is an account that notes what is published.
type shown struct {
	shim.Account
	last    shim.Figures
	refused []uint64
}

func (s *shown) Publish(f shim.Figures) { s.last = f }
func (s *shown) Refused(bytes uint64)   { s.refused = append(s.refused, bytes) }

// TestRefusalIsPublishedAtOnce: a program often ends of one, and gpumem ps would never
// show it.
func TestRefusalIsPublishedAtOnce(t *testing.T) {
	account := &shown{Account: shim.NewLimit(4 << 20)}
	p, _ := open(t, 1<<30, shim.Config{Account: account})
	if _, err := p.Alloc(8 << 20); !errors.Is(err, gpumem.ErrOutOfMemory) {
		t.Fatal(err)
	}
	if account.last.Refused != 1 || !slices.Equal(account.refused, []uint64{8 << 20}) {
		t.Errorf("published: %+v, refused %v", account.last, account.refused)
	}
	// Without a pool, and of a context that has no room.
	account.refused = nil
	charges, err := shim.NewCharges(account, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := charges.Take(5 << 20); !errors.Is(err, device.ErrOutOfMemory) {
		t.Error(err)
	}
	if _, err := shim.NewCharges(account, 6<<20); !errors.Is(err, device.ErrOutOfMemory) {
		t.Error(err)
	}
	if !slices.Equal(account.refused, []uint64{5 << 20, 6 << 20}) {
		t.Errorf("refused %v", account.refused)
	}
}

// TestContextAfterAnother: what a process takes outside the pool counts again when its
// context has ended and it makes another, and what belongs to no context, or to another
// one, counts all the time.
func TestContextAfterAnother(t *testing.T) {
	account := shim.NewLimit(100 << 20)
	charges, err := shim.NewCharges(account, 30<<20)
	if err != nil {
		t.Fatal(err)
	}
	held := func(when string, want uint64) {
		t.Helper()
		if _, left := account.Limit(); 100<<20-left != want {
			t.Errorf("%s: %d bytes count, want %d", when, 100<<20-left, want)
		}
	}
	charge := func(k shim.Key, bytes, context uint64) {
		t.Helper()
		if err := charges.Take(bytes); err != nil {
			t.Fatal(err)
		}
		charges.Done(k, bytes, context)
	}
	handle, managed := shim.Key{Kind: shim.Handle, Value: 1}, shim.Key{Kind: shim.Plain, Value: 1}
	p, _ := open(t, 1<<30, shim.Config{Account: account, Charges: charges}) // of context 1
	charge(handle, 4<<20, 0)
	charge(managed, 8<<20, 1)
	if _, err := p.Alloc(2 << 20); err != nil {
		t.Fatal(err)
	}
	held("with a pool", 44<<20)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	held("after the context's end", 4<<20)
	if err := charges.Enter(); err != nil {
		t.Fatal(err)
	}
	held("in the next context", 34<<20)
	charge(managed, 8<<20, 7)
	p, _ = open(t, 1<<30, shim.Config{Account: account, Charges: charges})
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	held("while another context is there", 42<<20)
	charges.ContextEnded(7)
	release(charges, handle)
	if err := charges.Take(80 << 20); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("80 MiB beside the 30 outside = %v", err)
	}
	held("at the end", 30<<20)
}

// TestCaptureKeepsWhatIsPending: memory of cuMemFree waits for the end of a capture, where
// a wait for all work would spoil the graph.
func TestCaptureKeepsWhatIsPending(t *testing.T) {
	p, d := openDriver(t, 1<<30, "elastic", shim.Config{Account: shim.NewLimit(200 << 20)})
	s, err := d.StreamCreate()
	if err != nil {
		t.Fatal(err)
	}
	d.captured[s] = true
	for range 4 {
		a, err := p.Alloc(20 << 20)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Free(a); err != nil {
			t.Fatal(err)
		}
	}
	if n := p.Pending(); n != 80<<20 {
		t.Errorf("%d bytes are pending in a capture, want 80 MiB", n)
	}
	if _, err := p.Alloc(150 << 20); !errors.Is(err, gpumem.ErrOutOfMemory) {
		t.Errorf("beside what waits for the capture's end: %v", err)
	}
	delete(d.captured, s)
	if _, err := p.Alloc(150 << 20); err != nil {
		t.Errorf("after the capture: %v", err)
	}
}

// TestPlainMemoryInACapture: where the pool would have to wait for the captured stream the
// driver grants the block, which counts, is known by its addresses, and goes back to the
// driver when all work is done.
func TestPlainMemoryInACapture(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		t.Run(fmt.Sprintf("ordered %v", ordered), func(t *testing.T) {
			account := shim.NewLimit(200 << 20)
			p, d := openDriver(t, 1<<30, "elastic", shim.Config{Account: account, Ordered: ordered})
			s, err := d.StreamCreate()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.AllocAsync(1<<20, uint64(s)); err != nil {
				t.Fatal(err)
			}
			d.captured[s] = true
			counted := func() uint64 { _, left := account.Limit(); return 200<<20 - left }
			var blocks []uint64
			for range 3 {
				a, err := p.Alloc(10 << 20)
				if err != nil {
					t.Fatal(err)
				}
				if base, n, err := p.Range(a + 1000); err != nil || base != a || n < 10<<20 {
					t.Errorf("Range = %#x, %d, %v; want the block at %#x", base, n, err, a)
				}
				blocks = append(blocks, a)
			}
			if f := p.Figures(); f.InUse < 31<<20 || f.Held != counted() || f.Held < f.InUse {
				t.Errorf("Figures = %+v, %d bytes are counted", f, counted())
			}
			if err := errors.Join(p.Free(blocks[0]), p.FreeAsync(blocks[1], uint64(s))); err != nil {
				t.Fatal(err)
			}
			delete(d.captured, s)
			n := p.Synchronizing()
			if err := errors.Join(d.Synchronize(), p.Synchronized(n), p.Trim()); err != nil {
				t.Fatal(err)
			}
			if f := p.Figures(); f.InUse != 11<<20 || f.Held != counted() || f.Held > 13<<20 {
				t.Errorf("after the capture: %+v, %d bytes are counted", f, counted())
			}
			if err := p.Close(); err != nil || counted() != 0 {
				t.Errorf("Close = %v, %d bytes are counted", err, counted())
			}
			if free, total, _ := d.MemInfo(); free != total {
				t.Errorf("%d bytes of %d are free after Close", free, total)
			}
		})
	}
}
