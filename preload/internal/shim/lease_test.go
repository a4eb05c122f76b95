package shim_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"gpumem"
	"gpumem/device"
	"gpumem/preload/internal/shim"
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
	// Past the pool.
	account.refused = nil
	beside, err := shim.NewCharges(account, shim.Process{})
	if err != nil {
		t.Fatal(err)
	}
	p, _ = open(t, 1<<30, shim.Config{Account: account, Charges: beside})
	if err := beside.Take(7 << 20); !errors.Is(err, device.ErrOutOfMemory) {
		t.Error(err)
	}
	if account.last.Refused != 1 || p.Figures().Refused != 1 || !slices.Equal(account.refused, []uint64{7 << 20}) {
		t.Errorf("past the pool: published %+v, refused %v", account.last, account.refused)
	}
	// Without a pool, and of a context that has no room.
	account.refused = nil
	charges, err := shim.NewCharges(account, shim.Process{})
	if err != nil {
		t.Fatal(err)
	}
	if err := charges.Take(5 << 20); !errors.Is(err, device.ErrOutOfMemory) {
		t.Error(err)
	}
	if _, err := shim.NewCharges(account, shim.Process{Outside: 6 << 20}); !errors.Is(err, device.ErrOutOfMemory) {
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
	charges, err := shim.NewCharges(account, shim.Process{Outside: 30 << 20})
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
	handle, managed := shim.Key{Kind: shim.Handle, Value: 1}, shim.Key{Kind: shim.Plain, Value: 2 << 20}
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
	charges.RemovedContext(charges.RemoveContext(7), true)
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

// TestRequestOfTheWholeLeaseAsksOnce: the account of a lease is a file, which is locked for
// each call.
func TestRequestOfTheWholeLeaseAsksOnce(t *testing.T) {
	account := newAccount(t, 64*mib)
	p, _ := openDriver(t, 1<<30, "elastic", shim.Config{Account: account})
	if _, err := p.Alloc(64 * mib); err != nil || account.takes != 1 {
		t.Errorf("Alloc = %v after %d calls of the account, want one", err, account.takes)
	}
}

// TestDriversPoolIsAskedWithinTheLease: what the driver's own pool certainly has to grow by
// is refused before the driver is called, which would take it from the GPU.
func TestDriversPoolIsAskedWithinTheLease(t *testing.T) {
	account := newAccount(t, 100*mib)
	p, d := openDriver(t, 1<<30, "async", shim.Config{Account: account})
	s := uint64(d.stream(t))
	if _, err := p.AllocAsync(60*mib, s); err != nil {
		t.Fatal(err)
	}
	_, before := d.Held()
	if _, err := p.AllocAsync(60*mib, s); !errors.Is(err, gpumem.ErrOutOfMemory) {
		t.Fatalf("60 MiB more = %v", err)
	}
	if _, peak := d.Held(); peak != before {
		t.Errorf("the driver's pool grew to %d MiB for a request that the lease refuses", peak/mib)
	}
}

// TestDriversPoolCountsLessWhenItShrinks: what the driver's own pool has released at a wait
// of the program's counts no longer from the next request on.
func TestDriversPoolCountsLessWhenItShrinks(t *testing.T) {
	account := newAccount(t, 200*mib)
	p, d := openDriver(t, 1<<30, "async:fraction=.1", shim.Config{Account: account})
	s := uint64(d.stream(t))
	a, err := p.AllocAsync(100*mib, s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.AllocAsync(30*mib, s); err != nil { // more than the pool keeps in any case
		t.Fatal(err)
	}
	if err := errors.Join(p.FreeAsync(a, s), d.Synchronize()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.AllocAsync(mib, s); err != nil {
		t.Fatal(err)
	}
	now, _ := d.Held()
	if held, _, _ := account.counts(); held != now || held >= 100*mib {
		t.Errorf("%d MiB are counted, and the device holds %d", held/mib, now/mib)
	}
}

// TestPoolWithoutOthersDoesNotLook: nobody can ask for its memory, so no timer runs.
func TestPoolWithoutOthersDoesNotLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAccount(t, 100*mib)
		p, _ := openDriver(t, 1<<30, "vmm", shim.Config{Account: a})
		b, err := p.Alloc(4 * mib)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Free(b); err != nil {
			t.Fatal(err)
		}
		before := a.looked()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := a.looked(); n != before {
			t.Errorf("it has looked %d times", n-before)
		}
	})
}

// TestWaitingRequestGetsWhatAnotherThreadFrees: memory of cuMemFree that is pending when a
// request waits for other processes goes to that request.
func TestWaitingRequestGetsWhatAnotherThreadFrees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAccount(t, 100*mib)
		a.want = func(bytes uint64) error {
			if bytes > 0 {
				a.announce(bytes) // others hear of it, and so does this process
			}
			return nil
		}
		p, _ := openDriver(t, 1<<30, "elastic", shim.Config{Account: a})
		b, err := p.Alloc(30 * mib)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Alloc(40 * mib); err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(300 * time.Millisecond)
			if err := p.Free(b); err != nil {
				t.Error(err)
			}
		}()
		if _, err := p.Alloc(50 * mib); err != nil {
			t.Error(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestDamagedAccountIsAFullOne: a pool knows what to do where a GPU has no memory, and a
// program does.
func TestDamagedAccountIsAFullOne(t *testing.T) {
	for _, spec := range everyPolicy {
		t.Run(spec, func(t *testing.T) {
			account := newAccount(t, 100*mib)
			p, d := openDriver(t, 1<<30, spec, shim.Config{Account: account})
			s := uint64(d.stream(t))
			account.broken = errors.New("the file is damaged")
			if _, err := p.AllocAsync(mib, s); !errors.Is(err, gpumem.ErrOutOfMemory) {
				t.Errorf("AllocAsync = %v", err)
			}
			if _, err := p.Alloc(mib); !errors.Is(err, gpumem.ErrOutOfMemory) {
				t.Errorf("Alloc = %v", err)
			}
			account.broken = nil
			if _, err := p.AllocAsync(mib, s); err != nil {
				t.Errorf("later: %v", err)
			}
		})
	}
}

// TestLimitIsOfThisProcessAlone: nobody else is asked, waits or hears.
func TestLimitIsOfThisProcessAlone(t *testing.T) {
	l := shim.NewLimit(10)
	if err := l.Want(1); !errors.Is(err, device.ErrNotSupported) {
		t.Errorf("Want = %v", err)
	}
	if n, bytes := l.Wanted(); n != 0 || bytes != 0 {
		t.Errorf("Wanted = %d, %d", n, bytes)
	}
	if err := l.Take(shim.Held, 10); err != nil {
		t.Errorf("Take of all = %v", err)
	}
	if err := l.Take(shim.Charged, 1); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("Take beyond the limit = %v", err)
	}
	l.Give(shim.Held, 4)
	if limit, left := l.Limit(); limit != 10 || left != 4 {
		t.Errorf("Limit = %d, %d", limit, left)
	}
}

// TestChargeAsksTheOthersOfTheLease: memory past the pool is refused only when others have
// had a second to release what is idle with them, and at once where nobody can help.
func TestChargeAsksTheOthersOfTheLease(t *testing.T) {
	nobody := func(*account) func(uint64) error { return nil }
	nothing := func(*account) func(uint64) error { return func(uint64) error { return nil } }
	release := func(a *account) func(uint64) error {
		return func(bytes uint64) error {
			if bytes > 0 {
				a.release(50 * mib)
			}
			return nil
		}
	}
	for _, tc := range []struct {
		name  string
		bytes uint64
		want  func(a *account) func(uint64) error // what the others do
		ok    bool
		asked bool
		took  time.Duration // at least, and not much more
	}{
		{"others release theirs", 60 * mib, release, true, true, 20 * time.Millisecond},
		{"others have nothing idle", 60 * mib, nothing, false, true, time.Second},
		{"there are no others", 60 * mib, nobody, false, true, 0},
		{"more than the lease", 101 * mib, nothing, false, false, 0},
		{"there is room", 50 * mib, nothing, true, false, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAccount(t, 100*mib)
				a.others = 50 * mib
				a.want = tc.want(a)
				c, err := shim.NewCharges(a, shim.Process{})
				if err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				if err := c.Take(tc.bytes); (err == nil) != tc.ok || err != nil && !errors.Is(err, device.ErrOutOfMemory) {
					t.Errorf("Take = %v", err)
				}
				if took := time.Since(start); took < tc.took || took > tc.took+20*time.Millisecond {
					t.Errorf("it took %v, want %v", took, tc.took)
				}
				asked := a.askedFor()
				if len(asked) > 0 != tc.asked || tc.asked && asked[0] != tc.bytes {
					t.Errorf("the others were asked for %v", asked)
				}
				if _, charged, _ := a.counts(); tc.ok && charged != tc.bytes || !tc.ok && charged != 0 {
					t.Errorf("%d bytes are charged", charged)
				}
			})
		})
	}
}

// TestChargeBesideACapture: idle memory that waits for the end of a capture does not keep the
// others of the lease from being asked.
func TestChargeBesideACapture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAccount(t, 100*mib)
		a.others = 50 * mib
		a.want = func(bytes uint64) error {
			if bytes > 0 {
				a.release(50 * mib)
			}
			return nil
		}
		c, err := shim.NewCharges(a, shim.Process{})
		if err != nil {
			t.Fatal(err)
		}
		p, d := openDriver(t, 1<<30, "elastic", shim.Config{Account: a, Charges: c})
		s := d.stream(t)
		b, err := p.AllocAsync(40*mib, uint64(s))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.FreeAsync(b, uint64(s)); err != nil {
			t.Fatal(err)
		}
		d.captured[s] = true
		if err := p.Trim(); !errors.Is(err, shim.ErrCapturing) {
			t.Fatalf("Trim = %v: the case is not the one meant", err)
		}
		if err := c.Take(60 * mib); err != nil {
			t.Errorf("Take = %v", err)
		}
		clear(d.captured)
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestIdleMemoryStaysOnAFullGPU: who shares the lease asks for idle memory, and the GPU's other
// users have separate leases.
func TestIdleMemoryStaysOnAFullGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := openDriver(t, 1<<30, "elastic", shim.Config{Ordered: true})
		b, err := p.Alloc(40 * mib)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Free(b); err != nil {
			t.Fatal(err)
		}
		d.SetUsed(1<<30 - 41*mib)
		time.Sleep(gpumem.DefaultIdleTrim / 2)
		synctest.Wait()
		if now, _ := d.Held(); now != 40*mib {
			t.Errorf("%d bytes are held", now)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestContextThatDidNotFitFitsLater: what is outside the pool counts when there is room, once.
func TestContextThatDidNotFitFitsLater(t *testing.T) {
	a := newAccount(t, 100*mib)
	c, err := shim.NewCharges(a, shim.Process{Outside: 30 * mib})
	if err != nil {
		t.Fatal(err)
	}
	p, _ := openDriver(t, 1<<30, "elastic", shim.Config{Account: a, Charges: c})
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p, _ = openDriver(t, 1<<30, "elastic", shim.Config{Account: a, Charges: c})
	if err := p.Close(); err != nil { // nothing is counted that could be given back
		t.Fatal(err)
	}
	a.others = 90 * mib
	for range 2 {
		if err := c.Enter(); !errors.Is(err, device.ErrOutOfMemory) {
			t.Errorf("Enter beside 90 MiB = %v", err)
		}
		if err := c.Take(mib); !errors.Is(err, device.ErrOutOfMemory) {
			t.Errorf("Take of a process that has no context = %v", err)
		}
	}
	a.others = 0
	for range 2 {
		if err := c.Enter(); err != nil {
			t.Error(err)
		}
	}
	if held, charged, out := a.counts(); held != 0 || charged != 0 || out != 30*mib {
		t.Errorf("%d bytes are held, %d charged, %d outside", held, charged, out)
	}
}

// TestOthersGetWhatIsIdle: a pool releases what it does not need when another process of
// the lease asks for memory, and only then.
func TestOthersGetWhatIsIdle(t *testing.T) {
	for _, tc := range []struct {
		spec    string
		ordered bool
		held    uint64 // when nobody has asked
		left    uint64 // when somebody has
	}{
		{"elastic", false, 28 * mib, 4 * mib}, // pending
		{"elastic", true, 28 * mib, 4 * mib},  // idle: package gpumem sees to it
		{"vmm", false, 28 * mib, 4 * mib},
		{"pytorch", true, 44 * mib, 20 * mib}, // in segments of 20 and 24 MiB
		{"platform", false, 28 * mib, 4 * mib},
		{"jax:preallocate=false", true, 36 * mib, 36 * mib}, // which releases nothing
	} {
		t.Run(fmt.Sprintf("%s, ordered %v", tc.spec, tc.ordered), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAccount(t, 100*mib)
				a.want = func(uint64) error { return nil }
				a.announce(8 * mib) // before the pool was there
				p, _ := openDriver(t, 1<<30, tc.spec, shim.Config{Account: a, Ordered: tc.ordered})
				held := func() uint64 {
					time.Sleep(time.Second)
					synctest.Wait()
					held, _, _ := a.counts()
					return held
				}
				keep, err := p.Alloc(4 * mib)
				if err != nil {
					t.Fatal(err)
				}
				idle, err := p.Alloc(24 * mib)
				if err != nil {
					t.Fatal(err)
				}
				if err := p.Free(idle); err != nil {
					t.Fatal(err)
				}
				if n := held(); n != tc.held {
					t.Errorf("%d bytes are held while nobody asks, want %d", n, tc.held)
				}
				a.announce(0) // a process that joins asks for nothing
				if n := held(); n != tc.held {
					t.Errorf("%d bytes are held when a process asks for nothing, want %d", n, tc.held)
				}
				a.announce(24 * mib)
				if n := held(); n != tc.left {
					t.Errorf("%d bytes are held when another process asks, want %d", n, tc.left)
				}
				if err := p.Free(keep); err != nil {
					t.Fatal(err)
				}
				held() // until nothing more is published
				if err := p.Close(); err != nil {
					t.Fatal(err)
				}
				_, before := a.published()
				a.announce(24 * mib)
				n := held()
				if _, shows := a.published(); n != 0 || shows != before {
					t.Errorf("%d bytes are held after Close, and the figures are published %d times", n, shows-before)
				}
			})
		})
	}
}

// TestFiguresArePublishedSoon: gpumem ps shows what the pool did a moment ago, the first block at
// once, and an account in a file is not written for each call.
func TestFiguresArePublishedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAccount(t, 100*mib)
		p, _ := openDriver(t, 1<<30, "elastic", shim.Config{
			Account: a, Before: shim.Figures{PeakHeld: 50 * mib, PeakInUse: mib, Allocs: 7, Refused: 3, DriverCalls: 1000},
		})
		calls := p.Figures().DriverCalls
		var blocks []uint64
		for range 10 {
			b, err := p.Alloc(2 * mib)
			if err != nil {
				t.Fatal(err)
			}
			blocks = append(blocks, b)
		}
		f, n := a.published()
		if f.InUse < 18*mib || f.PeakInUse < 18*mib {
			t.Errorf("%d publications at once, the last of %+v", n, f)
		}
		for range 100 {
			b, err := p.Alloc(64 << 10)
			if err = errors.Join(err, p.Free(b)); err != nil {
				t.Fatal(err)
			}
		}
		_, now := a.published()
		if now != n {
			t.Errorf("%d publications of small blocks", now-n)
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		f, n = a.published()
		want := shim.Figures{
			Held: f.Held, PeakHeld: 50 * mib, InUse: 20 * mib, PeakInUse: 20*mib + 64<<10,
			Allocs: 117, Refused: 3, DriverCalls: f.DriverCalls,
		}
		if n != now+1 || f != want || f.Held < 20*mib || f.DriverCalls <= calls {
			t.Errorf("%d publications, the last of %+v", n, f)
		}
		if err := p.Free(blocks[0]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if f, n := a.published(); n != now+2 || f.InUse != 18*mib {
			t.Errorf("%d publications, the last of %+v", n, f)
		}
		if err := p.Free(blocks[1]); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond) // the figures are the next pool's by then
		synctest.Wait()
		if f, n := a.published(); n != now+3 || f.Held != 0 || f.InUse != 0 {
			t.Errorf("after Close %d publications, the last of %+v", n, f)
		}
	})
}

// TestGrantInACaptureIsTriedAgain: where the lease is full of what is idle in the pool, that
// makes room for memory that only the driver can grant.
func TestGrantInACaptureIsTriedAgain(t *testing.T) {
	account := newAccount(t, 200*mib)
	p, d := openDriver(t, 1<<30, "elastic", shim.Config{Account: account})
	s := d.stream(t)
	idle, err := p.AllocAsync(150*mib, uint64(s))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.FreeAsync(idle, uint64(s)), d.Synchronize()); err != nil {
		t.Fatal(err)
	}
	d.captured[s] = true
	if _, err := p.Alloc(100 * mib); !errors.Is(err, gpumem.ErrOutOfMemory) || !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("while the graph is captured: %v", err)
	}
	account.full = func() { delete(d.captured, s) } // by another thread, while this one is refused
	a, err := p.Alloc(100 * mib)
	if err != nil {
		t.Fatalf("Alloc = %v", err)
	}
	if f := p.Figures(); f.Held != 100*mib || f.InUse != 100*mib || f.PeakHeld != 150*mib || f.Refused != 1 {
		t.Errorf("Figures = %+v", f)
	}
	if err := errors.Join(p.Free(a), p.Close()); err != nil {
		t.Fatal(err)
	}
	if held, _, _ := account.counts(); held != 0 {
		t.Errorf("%d bytes are counted after Close", held)
	}
}
