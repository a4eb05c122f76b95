package shim_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gpumem"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/doctor"
	"gpumem/policy/frameworks"
	"gpumem/preload/internal/shim"
	"gpumem/record/formats"
	"gpumem/record/trace"
)

// TestRefusedWithoutALease: nothing is said of a limit where there is none.
func TestRefusedWithoutALease(t *testing.T) {
	p, _ := openDriver(t, 64*mib, "elastic", shim.Config{Say: func(s string) { t.Errorf("said %q", s) }})
	if _, err := p.Alloc(65 * mib); !errors.Is(err, gpumem.ErrOutOfMemory) {
		t.Errorf("Alloc = %v", err)
	}
}

func TestRefused(t *testing.T) {
	var said []string
	account := shim.NewLimit(64 << 20)
	charges, err := shim.NewCharges(account, shim.Process{Outside: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	p, _ := open(t, 1<<30, shim.Config{Account: account, Charges: charges, Say: func(s string) { said = append(said, s) }})
	if _, err := p.Alloc(48 << 20); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := p.Alloc(2 << 20); !errors.Is(err, gpumem.ErrOutOfMemory) {
			t.Fatalf("a block beyond the limit: %v", err)
		}
	}
	if len(said) != 1 {
		t.Errorf("said %q, want one line", said)
	}
	// The framework's own message shows the lease as the size of the GPU.
	log := "gpumem: " + said[0] + "\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 64.00 MiB of which 0 bytes is free. Of the allocated memory 47.00 MiB is allocated by PyTorch, and 1.00 MiB is reserved by PyTorch but unallocated.\n"
	if d, err := doctor.Diagnose(strings.NewReader(log), nil); err != nil || len(d.Causes) != 1 || d.Causes[0].ID != doctor.ExternalQuota || !strings.Contains(d.Causes[0].Evidence[0].Reading, "0 B was left of the lease of 64 MiB") {
		t.Errorf("the doctor reads %q as %+v, %v", said[0], d, err)
	}
	if free, total, err := p.Info(); err != nil || free != 0 || total != 64<<20 {
		t.Errorf("Info = %d, %d, %v", free, total, err)
	}
	if f := p.Figures(); f.Refused != 3 || f.InUse != 48<<20 || f.Held != 48<<20 {
		t.Errorf("Figures = %+v", f)
	}
}

func TestFree(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		t.Run(fmt.Sprintf("ordered %v", ordered), func(t *testing.T) {
			p, _ := open(t, 1<<30, shim.Config{Ordered: ordered})
			a, err := p.Alloc(1000)
			if err != nil {
				t.Fatal(err)
			}
			if base, n, err := p.Range(a + 999); err != nil || base != a || n != 1000 {
				t.Errorf("Range inside = %#x, %d, %v", base, n, err)
			}
			if _, _, err := p.Range(a + 1000); !errors.Is(err, shim.ErrNotMine) {
				t.Errorf("Range behind the last byte = %v", err)
			}
			for _, addr := range []uint64{a + 256, a - 256, 0x1234} {
				if err := p.Free(addr); !errors.Is(err, gpumem.ErrNotAllocated) {
					t.Errorf("Free(%#x) = %v", addr, err)
				}
			}
			if err := p.Free(a); err != nil {
				t.Fatal(err)
			}
			if err := p.Free(a); !errors.Is(err, gpumem.ErrNotAllocated) {
				t.Errorf("second Free = %v", err)
			}
			if _, _, err := p.Range(a + 1); !errors.Is(err, shim.ErrNotMine) {
				t.Errorf("Range of what was freed = %v", err)
			}
			if f := p.Figures(); f.InUse != 0 {
				t.Errorf("in use after the frees: %d", f.InUse)
			}
		})
	}
}

// TestPending: memory of cuMemFree is not handed out before a wait, and a wait of the
// program's makes it free at no cost.
func TestPending(t *testing.T) {
	p, d := open(t, 1<<30, shim.Config{})
	a, _ := p.Alloc(4 << 20)
	_ = p.Free(a)
	b, _ := p.Alloc(4 << 20)
	if a == b {
		t.Error("pending memory was handed out")
	}
	n := p.Synchronizing()
	late, _ := p.Alloc(4 << 20)
	_ = p.Free(late)
	_ = d.Synchronize()
	_ = p.Synchronized(n)
	if got := p.Pending(); got != 4<<20 {
		t.Errorf("%d bytes are pending, want those that were freed during the wait", got)
	}
	if c, _ := p.Alloc(4 << 20); c != a {
		t.Errorf("block at %#x, want the free one at %#x", c, a)
	}
}

// TestPendingMemoryIsWaitedForAtItsBound: a wait costs what the driver's cuMemFree costs. It
// comes when more than 32 MiB, or an eighth of what is in use, are pending, and not before.
func TestPendingMemoryIsWaitedForAtItsBound(t *testing.T) {
	for _, tc := range []struct{ inUse, pending uint64 }{
		{16 * mib, 32 * mib},
		{256 * mib, 32 * mib},
		{800 * mib, 100 * mib},
	} {
		t.Run(fmt.Sprintf("%d MiB in use", tc.inUse/mib), func(t *testing.T) {
			p, d := openDriver(t, 2<<30, "elastic", shim.Config{})
			alloc := func(bytes uint64) uint64 {
				a, err := p.Alloc(bytes)
				if err != nil {
					t.Fatal(err)
				}
				return a
			}
			alloc(tc.inUse)
			var small []uint64
			for range tc.pending/(2*mib) + 1 {
				small = append(small, alloc(2*mib))
			}
			for i, a := range small {
				if p.Pending() != uint64(i)*2*mib || d.waits.Load() != 0 {
					t.Fatalf("%d MiB are pending after %d frees, and %d waits", p.Pending()/mib, i, d.waits.Load())
				}
				if err := p.Free(a); err != nil {
					t.Fatal(err)
				}
			}
			if p.Pending() != 0 || d.waits.Load() != 1 {
				t.Errorf("%d bytes are pending beyond the bound, and %d waits; want 0 and 1", p.Pending(), d.waits.Load())
			}
		})
	}
}

// TestBlockStaysWhenItsFreeFails: a free that the driver refuses changes nothing, and can
// be tried again.
func TestBlockStaysWhenItsFreeFails(t *testing.T) {
	for _, tc := range []struct {
		name, spec string
		call       string // that fails
		free       func(p *shim.Pool, addr, stream uint64) error
	}{
		{"cuMemFree", "platform", "cuMemFree", func(p *shim.Pool, addr, _ uint64) error { return p.Free(addr) }},
		{"cuMemFreeAsync", "platform", "cuMemFree", (*shim.Pool).FreeAsync},
		{"cuMemFreeAsync, the driver's own pool", "async", "cuMemFreeAsync", (*shim.Pool).FreeAsync},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, d := openDriver(t, 1<<30, tc.spec, shim.Config{Ordered: true})
			s := uint64(d.stream(t))
			a, err := p.Alloc(1000)
			if err != nil {
				t.Fatal(err)
			}
			d.count(failing(tc.call, device.ErrInvalidValue))
			before, _ := p.Used()
			if err := tc.free(p, a, s); !errors.Is(err, device.ErrInvalidValue) {
				t.Fatalf("the free = %v", err)
			}
			if now, _ := p.Used(); now != before || !p.Contains(a) {
				t.Errorf("%d bytes are in use, want %d; the address is the pool's: %v", now, before, p.Contains(a))
			}
			if _, n, err := p.Range(a); err != nil || n != 1000 {
				t.Errorf("Range = %d, %v", n, err)
			}
			d.OnCall(nil)
			if err := tc.free(p, a, s); err != nil {
				t.Errorf("the second free = %v", err)
			}
			if now, _ := p.Used(); now != 0 || p.Contains(a) {
				t.Errorf("%d bytes are in use; the address is the pool's: %v", now, p.Contains(a))
			}
		})
	}
}

// TestPlainMemoryWhenItsWaitFails: where the driver fails while plain memory waits for the
// stream that used it before, nobody gets that memory before all work was waited for.
func TestPlainMemoryWhenItsWaitFails(t *testing.T) {
	p, d := openDriver(t, 1<<30, "elastic", shim.Config{})
	s, other := d.stream(t), d.stream(t)
	a, err := p.AllocAsync(4*mib, uint64(s))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.AllocAsync(4*mib, uint64(other)); err != nil { // its first request waits for all before
		t.Fatal(err)
	}
	work := func(s device.Stream, addr uint64) {
		t.Helper()
		if err := d.Work(s, time.Second, nil, []device.Range{{Addr: addr, Bytes: 4 * mib}}); err != nil {
			t.Fatal(err)
		}
	}
	work(s, a)
	if err := p.FreeAsync(a, uint64(s)); err != nil {
		t.Fatal(err)
	}
	d.count(failing("cuStreamSynchronize", device.ErrInvalidValue))
	if _, err := p.Alloc(4 * mib); !errors.Is(err, device.ErrInvalidValue) {
		t.Fatalf("Alloc = %v", err)
	}
	d.OnCall(nil)
	for range 2 {
		b, err := p.AllocAsync(4*mib, uint64(other))
		if err != nil {
			t.Fatal(err)
		}
		work(other, b)
	}
	if _, err := p.Alloc(4 * mib); err != nil {
		t.Error(err)
	}
	if now, _ := p.Used(); now != 16*mib {
		t.Errorf("%d bytes are in use, want 16 MiB", now)
	}
}

// TestInfo: what is idle in the pool is free to the program, and what is pending is.
func TestInfo(t *testing.T) {
	account := newAccount(t, 200*mib)
	p, d := openDriver(t, 1<<30, "jax:preallocate=false", shim.Config{Account: account})
	info := func(when string, want uint64) {
		t.Helper()
		if free, total, err := p.Info(); err != nil || free != want || total != 200*mib {
			t.Errorf("%s: %d MiB of %d are free, %v; want %d", when, free/mib, total/mib, err, want/mib)
		}
	}
	if total := p.Total(); total != 200*mib {
		t.Errorf("the total is %d MiB", total/mib)
	}
	info("at first", 200*mib)
	a, err := p.Alloc(64 * mib)
	if err != nil {
		t.Fatal(err)
	}
	info("with a block", 136*mib)
	if err := p.Free(a); err != nil {
		t.Fatal(err)
	}
	info("after its free", 200*mib)
	account.others = 50 * mib
	info("beside others", 150*mib)
	d.SetUsed(900 * mib)
	if free, _, _ := p.Info(); free != 124*mib { // the 60 MiB that the GPU has left, and 64 idle
		t.Errorf("on a full GPU %d MiB are free", free/mib)
	}
}

// TestAttributes: what cuMemPoolGetAttribute tells, now and at most.
func TestAttributes(t *testing.T) {
	p, _ := openDriver(t, 1<<30, "elastic", shim.Config{Ordered: true})
	a, err := p.Alloc(3 * mib)
	if err != nil {
		t.Fatal(err)
	}
	check := func(reserved, used uint64) {
		t.Helper()
		if now, high := p.Reserved(); now != reserved || high != 4*mib {
			t.Errorf("Reserved = %d, %d; want %d", now, high, reserved)
		}
		if now, high := p.Used(); now != used || high != 3*mib {
			t.Errorf("Used = %d, %d; want %d", now, high, used)
		}
	}
	check(4*mib, 3*mib)
	if err := p.Free(a); err != nil {
		t.Fatal(err)
	}
	check(4*mib, 0)
	if err := p.Trim(); err != nil {
		t.Fatal(err)
	}
	check(0, 0)
}

// TestFreeDuringAWaitStaysPending: another thread queues work and frees while the pool waits. That
// work is not part of the wait.
func TestFreeDuringAWaitStaysPending(t *testing.T) {
	p, d := openDriver(t, 1<<30, "elastic", shim.Config{Account: newAccount(t, 64*mib)})
	s := d.stream(t)
	large, err := p.Alloc(20 * mib)
	if err != nil {
		t.Fatal(err)
	}
	small, err := p.Alloc(4 * mib)
	if err != nil {
		t.Fatal(err)
	}
	d.waited = func() {
		d.waited = nil
		if err := d.Work(s, time.Second, nil, []device.Range{{Addr: small, Bytes: 4 * mib}}); err != nil {
			t.Error(err)
		}
		if err := p.Free(small); err != nil {
			t.Error(err)
		}
	}
	if err := p.Free(large); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Alloc(50 * mib); err != nil { // waits for the 20 MiB
		t.Fatal(err)
	}
	if n := p.Pending(); n != 4*mib {
		t.Errorf("%d bytes are pending, want the 4 MiB that were freed during the wait", n)
	}
}

// TestPeer: a peer gets access to what is mapped, once, and to what is mapped later, and
// not to what is mapped no longer.
func TestPeer(t *testing.T) {
	p, d := openDriver(t, 1<<30, "vmm", shim.Config{})
	held := func() (sum uint64) {
		for _, r := range d.access {
			sum += r.Bytes
		}
		return sum
	}
	a, err := p.Alloc(4 * mib)
	if err != nil {
		t.Fatal(err)
	}
	gone, err := p.Alloc(8 * mib)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Free(gone), p.Trim()); err != nil {
		t.Fatal(err)
	}
	n := p.Synchronizing()
	if err := errors.Join(d.Synchronize(), p.Synchronized(n), p.Trim()); err != nil {
		t.Fatal(err)
	}
	if held() != 0 {
		t.Fatalf("%v before there is a peer", d.access)
	}
	for range 2 {
		if err := p.Peer(1); err != nil {
			t.Fatal(err)
		}
	}
	if len(d.access) != 1 || d.access[0] != (device.Range{Addr: a, Bytes: 4 * mib}) {
		t.Errorf("the first peer has access to %v, want 4 MiB at %#x", d.access, a)
	}
	if _, err := p.Alloc(6 * mib); err != nil {
		t.Fatal(err)
	}
	if held() != 10*mib {
		t.Errorf("the first peer has access to %v, want 10 MiB", d.access)
	}
	if err := p.Peer(2); err != nil || held() != 20*mib {
		t.Errorf("Peer(2) = %v, the peers have access to %v, want 20 MiB together", err, d.access)
	}
}

// TestFreeBesideACapture: under the policy async a block's own stream has to wait at the
// free. If a graph is being captured there the block stays pending; a refusal would be an
// error of the program's cuMemFreeAsync.
func TestFreeBesideACapture(t *testing.T) {
	for _, spec := range everyPolicy {
		t.Run(spec, func(t *testing.T) {
			p, d := openDriver(t, 1<<30, spec, shim.Config{})
			s, other := d.stream(t), d.stream(t)
			a, err := p.AllocAsync(4*mib, uint64(s))
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Synchronize(); err != nil {
				t.Fatal(err)
			}
			d.captured[s] = true
			if err := p.FreeAsync(a, uint64(other)); err != nil {
				t.Errorf("FreeAsync = %v", err)
			}
			delete(d.captured, s)
			if err := p.Free(a); !errors.Is(err, gpumem.ErrNotAllocated) {
				t.Errorf("a second free = %v", err)
			}
			n := p.Synchronizing()
			if err := errors.Join(d.Synchronize(), p.Synchronized(n), p.Trim()); err != nil || p.Pending() != 0 {
				t.Errorf("%v, %d bytes are pending after the capture", err, p.Pending())
			}
		})
	}
}

// TestContains: an address behind the pool's memory may be the driver's, whose free it is.
func TestContains(t *testing.T) {
	p, _ := openDriver(t, 1<<30, "platform", shim.Config{})
	a, err := p.Alloc(2 * mib)
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[uint64]bool{a - 1: false, a: true, a + 2*mib - 1: true, a + 2*mib: false} {
		if p.Contains(addr) != want {
			t.Errorf("Contains(%#x) = %v, the block is at %#x", addr, !want, a)
		}
	}
}

// TestFailedWaitIsTheErrorOfTheRequest: a GPU that is lost is not one without memory.
func TestFailedWaitIsTheErrorOfTheRequest(t *testing.T) {
	p, d := openDriver(t, 1<<30, "elastic", shim.Config{Account: newAccount(t, 64*mib)})
	a, err := p.Alloc(20 * mib)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Free(a); err != nil {
		t.Fatal(err)
	}
	d.count(failing("cuCtxSynchronize", device.ErrIllegalAddress))
	if _, err := p.Alloc(60 * mib); !errors.Is(err, device.ErrIllegalAddress) {
		t.Errorf("Alloc = %v, want the error of the wait", err)
	}
}

// TestDoneWorkCostsNoWait: plain memory waits for the stream that used it before, unless its
// work is known to be done, and once.
func TestDoneWorkCostsNoWait(t *testing.T) {
	p, d := openDriver(t, 1<<30, "elastic", shim.Config{})
	s := d.stream(t)
	next := func(wait bool) {
		t.Helper()
		a, err := p.AllocAsync(4*mib, uint64(s))
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Work(s, time.Second, nil, []device.Range{{Addr: a, Bytes: 4 * mib}}); err != nil {
			t.Fatal(err)
		}
		if err := p.FreeAsync(a, uint64(s)); err != nil {
			t.Fatal(err)
		}
		if !wait {
			d.Advance(time.Minute)
		}
		calls := d.count(nil)
		if _, err := p.Alloc(4 * mib); err != nil {
			t.Fatal(err)
		}
		if n := calls["cuStreamSynchronize"]; n > 1 || n == 1 != wait {
			t.Errorf("work under way: %v; %d waits", wait, n)
		}
	}
	next(false)
	next(true)
	next(false)
}

// TestProgramsOwnWaitIsEnough: when the program has waited for all work, the pool does not
// wait again for memory that was freed before.
func TestProgramsOwnWaitIsEnough(t *testing.T) {
	p, d := openDriver(t, 1<<30, "elastic", shim.Config{Ordered: true})
	s := d.stream(t)
	if _, err := p.AllocAsync(4*mib, uint64(s)); err != nil {
		t.Fatal(err)
	}
	plain, err := p.Alloc(4 * mib)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Free(plain); err != nil {
		t.Fatal(err)
	}
	n := p.Synchronizing()
	if err := errors.Join(d.Synchronize(), p.Synchronized(n)); err != nil {
		t.Fatal(err)
	}
	if a, err := p.AllocAsync(4*mib, uint64(s)); err != nil || a != plain {
		t.Fatalf("the block is at %#x and not at %#x, %v: the case is not the one meant", a, plain, err)
	}
	if d.waits.Load() != 0 {
		t.Errorf("%d waits of the pool", d.waits.Load())
	}
}

// TestMarkOfAnEarlierCapture: memory that was freed beside a capture waits for nothing when
// the program has waited since, although another graph is captured in that stream by now.
func TestMarkOfAnEarlierCapture(t *testing.T) {
	p, d := openDriver(t, 1<<30, "elastic", shim.Config{})
	s, other := d.stream(t), d.stream(t)
	if _, err := p.AllocAsync(4*mib, uint64(other)); err != nil {
		t.Fatal(err)
	}
	a, err := p.AllocAsync(4*mib, uint64(s))
	if err != nil {
		t.Fatal(err)
	}
	d.captured[s] = true
	if err := p.FreeAsync(a, uint64(other)); err != nil {
		t.Fatal(err)
	}
	clear(d.captured)
	n := p.Synchronizing()
	if err := errors.Join(d.Synchronize(), p.Synchronized(n)); err != nil {
		t.Fatal(err)
	}
	d.captured[s] = true
	if b, err := p.AllocAsync(4*mib, uint64(other)); err != nil || a != b {
		t.Errorf("AllocAsync = %#x, %v, want the block at %#x", b, err, a)
	}
}

// TestStreamThatEndsAfterACapture: a mark that could not be recorded in a capture still
// stands for the work of its stream when that has ended. Memory of the stream is neither
// handed out nor released before.
func TestStreamThatEndsAfterACapture(t *testing.T) {
	handOut := func(bytes uint64) func(*shim.Pool, *driver, device.Stream) error {
		return func(p *shim.Pool, d *driver, s device.Stream) error {
			a, err := p.AllocAsync(bytes, uint64(s))
			if err != nil {
				return err
			}
			return d.Work(s, time.Second, nil, []device.Range{{Addr: a, Bytes: bytes}})
		}
	}
	release := func(p *shim.Pool, _ *driver, _ device.Stream) error { return p.Trim() }
	for _, tc := range []struct {
		name         string
		during, next func(p *shim.Pool, d *driver, other device.Stream) error
	}{
		{"the memory is handed out", handOut(4 * mib), handOut(4 * mib)},
		{"the memory is released", release, release},
		{"the memory is moved", release, handOut(60 * mib)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, d := openDriver(t, 1<<30, "elastic", shim.Config{Account: newAccount(t, 64*mib)})
			s, other := d.stream(t), d.stream(t)
			a, err := p.AllocAsync(4*mib, uint64(s))
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Work(s, time.Minute, nil, []device.Range{{Addr: a, Bytes: 4 * mib}}); err != nil {
				t.Fatal(err)
			}
			if err := p.FreeAsync(a, uint64(s)); err != nil {
				t.Fatal(err)
			}
			d.captured[s] = true
			if err := tc.during(p, d, other); !errors.Is(err, shim.ErrCapturing) {
				t.Fatalf("in the capture: %v", err)
			}
			clear(d.captured)
			if err := errors.Join(p.StreamDestroyed(uint64(s)), d.StreamDestroy(s)); err != nil {
				t.Fatal(err)
			}
			if err := tc.next(p, d, other); err != nil {
				t.Error(err)
			}
			if h := d.Hazards(); len(h) > 0 {
				t.Error(h[0])
			}
		})
	}
}

// TestMarkIsRecordedWhenTheCaptureHasEnded: from then on the next capture in that stream
// does not matter to what waits for the mark.
func TestMarkIsRecordedWhenTheCaptureHasEnded(t *testing.T) {
	p, d := openDriver(t, 1<<30, "elastic", shim.Config{})
	s, second, third := d.stream(t), d.stream(t), d.stream(t)
	a, err := p.AllocAsync(4*mib, uint64(s))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.FreeAsync(a, uint64(s)); err != nil {
		t.Fatal(err)
	}
	d.captured[s] = true
	if _, err := p.AllocAsync(4*mib, uint64(second)); !errors.Is(err, shim.ErrCapturing) {
		t.Fatalf("in the capture: %v", err)
	}
	clear(d.captured)
	if _, err := p.AllocAsync(4*mib, uint64(second)); err != nil {
		t.Fatal(err)
	}
	d.captured[s] = true
	if _, err := p.AllocAsync(4*mib, uint64(third)); err != nil {
		t.Errorf("in the next capture: %v", err)
	}
}

// TestLostContextIsNoCapture: a free whose stream cannot be asked about ends with what the driver
// says, and not as one that a capture puts off, and the block is still there.
func TestLostContextIsNoCapture(t *testing.T) {
	for _, policy := range []string{"async", "elastic", "vmm"} {
		t.Run(policy, func(t *testing.T) {
			p, d := openDriver(t, 1<<30, policy, shim.Config{})
			s, second := d.stream(t), d.stream(t)
			a, err := p.AllocAsync(4*mib, uint64(s))
			if err != nil {
				t.Fatal(err)
			}
			inUse, _ := p.Used()
			d.lost = device.ErrIllegalAddress
			if err := p.FreeAsync(a, uint64(second)); !errors.Is(err, device.ErrIllegalAddress) || errors.Is(err, shim.ErrCapturing) {
				t.Errorf("in another stream: %v, want the driver's error", err)
			}
			if now, _ := p.Used(); now != inUse {
				t.Errorf("%d bytes in use after it, %d before", now, inUse)
			}
			d.lost = nil
			if err := p.FreeAsync(a, uint64(second)); err != nil {
				t.Errorf("once more, in a context that is well: %v", err)
			}
		})
	}
}

// TestTrimBesidePlainMemory: what is idle is released without a wait for all work, although
// plain memory may be in use by any of it.
func TestTrimBesidePlainMemory(t *testing.T) {
	p, d := openDriver(t, 1<<30, "elastic", shim.Config{})
	s := d.stream(t)
	if _, err := p.Alloc(4 * mib); err != nil {
		t.Fatal(err)
	}
	a, err := p.AllocAsync(8*mib, uint64(s))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Work(s, time.Second, nil, []device.Range{{Addr: a, Bytes: 8 * mib}}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.FreeAsync(a, uint64(s)), p.Trim()); err != nil {
		t.Fatal(err)
	}
	if f := p.Figures(); f.Held != 4*mib || d.waits.Load() != 0 {
		t.Errorf("%d bytes are held after %d waits for all work", f.Held, d.waits.Load())
	}
}

// TestEndedStreamIsNotAskedAbout: the driver refuses the question whether a graph is captured
// in a stream that has ended, and a refusal counts as yes.
func TestEndedStreamIsNotAskedAbout(t *testing.T) {
	p, d := openDriver(t, 1<<30, "elastic", shim.Config{})
	s := d.stream(t)
	a, err := p.AllocAsync(40*mib, uint64(s))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.StreamDestroyed(uint64(s)), d.StreamDestroy(s), p.Free(a)); err != nil {
		t.Fatal(err)
	}
	if p.Pending() != 0 {
		t.Errorf("%d bytes are pending beyond the bound", p.Pending())
	}
}

// TestStreamThatEndsDuringAWait: another thread destroys a stream between the look at all
// streams and the question about that one. Without, the driver's error, an invalid handle, was
// that of a request of this thread.
func TestStreamThatEndsDuringAWait(t *testing.T) {
	p, d := openDriver(t, 1<<30, "elastic", shim.Config{})
	s := d.stream(t)
	if _, err := p.AllocAsync(mib, uint64(s)); err != nil {
		t.Fatal(err)
	}
	a, err := p.Alloc(40 * mib)
	if err != nil {
		t.Fatal(err)
	}
	ended := false
	d.asked = func(of device.Stream) {
		if of == s && !ended {
			ended = true
			if err := errors.Join(p.StreamDestroyed(uint64(s)), d.StreamDestroy(s)); err != nil {
				t.Error(err)
			}
		}
	}
	if err := p.Free(a); err != nil || !ended || p.Pending() != 0 {
		t.Errorf("Free = %v, the stream has ended: %t, %d bytes are pending", err, ended, p.Pending())
	}
}

// TestRecording: every request is recorded with its stream, and what became of it.
func TestRecording(t *testing.T) {
	var file bytes.Buffer
	w, err := trace.NewWriter(&file)
	if err != nil {
		t.Fatal(err)
	}
	p, d := openDriver(t, 1<<30, "elastic", shim.Config{Account: shim.NewLimit(64 * mib), Record: w})
	s := uint64(d.stream(t))
	a, errA := p.Alloc(1000)
	b, errB := p.AllocAsync(3*mib, s)
	if err := errors.Join(errA, errB, p.FreeAsync(b, s), p.Free(a)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.AllocAsync(65*mib, s); !errors.Is(err, gpumem.ErrOutOfMemory) {
		t.Fatal(err)
	}
	var got []string // without a Flush: the program may crash of the refusal
	tr, err := formats.Read(t.Context(), &file, "recording", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	for _, pool := range tr.Pools {
		events := make([]trace.Event, 100)
		n, err := pool.Cursor().Next(events)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events[:n] {
			got = append(got, fmt.Sprintf("%s %v %d in %d, refused %v", pool.Name, e.Op, e.Bytes, e.Stream, e.Refused))
		}
	}
	want := []string{
		"GPU_0 alloc 1000 in 0, refused false",
		"GPU_0 alloc 3145728 in 1, refused false",
		"GPU_0 free 0 in 1, refused false",
		"GPU_0 free 0 in 0, refused false",
		"GPU_0 alloc 68157440 in 1, refused true",
	}
	if !slices.Equal(got, want) {
		t.Errorf("recorded:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// release releases what a key names, as a call that goes well does.
func release(c *shim.Charges, k shim.Key) {
	c.Removed(c.Remove(k), true)
}

// TestContextEnded: what a context took is free when it ends, and nothing else.
func TestContextEnded(t *testing.T) {
	account := shim.NewLimit(10 << 20)
	c, _ := shim.NewCharges(account, shim.Process{})
	for i := range uint64(4) {
		if err := c.Take(2 << 20); err != nil {
			t.Fatal(err)
		}
		c.Done(shim.Key{Kind: shim.Plain, Value: i << 21}, 2<<20, i%2*7) // of the contexts 0 and 7
	}
	handle := shim.Key{Kind: shim.Handle, Value: 1}
	if err := c.Take(2 << 20); err != nil {
		t.Fatal(err)
	}
	c.Done(handle, 2<<20, 7)
	c.Retained(handle) // both uses of it end
	for _, context := range []uint64{7, 0} {
		c.RemovedContext(c.RemoveContext(context), true)
	}
	if _, left := account.Limit(); left != 6<<20 || c.Bytes() != 4<<20 {
		t.Errorf("%d bytes are left and %d charged, want 6 MiB and 4", left, c.Bytes())
	}
}

func TestCharges(t *testing.T) {
	account := shim.NewLimit(10 << 20)
	c, _ := shim.NewCharges(account, shim.Process{})
	p, _ := open(t, 1<<30, shim.Config{Account: account, Charges: c})
	a, _ := p.Alloc(8 << 20)
	_ = p.Free(a)
	if err := c.Take(6 << 20); err != nil { // what is pending and idle makes room
		t.Fatal(err)
	}
	handle := shim.Key{Kind: shim.Handle, Value: 7}
	c.Done(handle, 6<<20, 0)
	c.Mapped(0x10000000, 6<<20, handle)
	if err := c.Take(6 << 20); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("second Take = %v", err)
	}
	full := func(when string) {
		t.Helper()
		if _, err := p.Alloc(6 << 20); !errors.Is(err, gpumem.ErrOutOfMemory) {
			t.Errorf("Alloc %s = %v", when, err)
		}
	}
	release(c, shim.Key{Kind: shim.Plain, Value: 7})
	full("beside the charge")
	release(c, handle)
	full("beside a mapping of released memory")
	c.Unmapped(0x10000000-4<<20, 16<<20)
	if _, err := p.Alloc(6 << 20); err != nil {
		t.Errorf("Alloc after the unmapping = %v", err)
	}
}

// TestMappingEndsOnce: memory that is mapped later at the same addresses, and was never charged,
// takes no charge with it.
func TestMappingEndsOnce(t *testing.T) {
	account := newAccount(t, 10*mib)
	c, err := shim.NewCharges(account, shim.Process{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Take(2 * mib); err != nil {
		t.Fatal(err)
	}
	handle := shim.Key{Kind: shim.Handle, Value: 7}
	c.Done(handle, 2*mib, 0)
	c.Mapped(0x10000000, 2*mib, handle)
	c.Mapped(0x20000000, 2*mib, shim.Key{Kind: shim.Handle, Value: 8})
	for range 2 {
		c.Unmapped(0x10000000, 2*mib)
		c.Unmapped(0x20000000, 2*mib)
	}
	if _, charged, _ := account.counts(); charged != 2*mib || c.Bytes() != 2*mib {
		t.Errorf("%d bytes are charged for a handle of 2 MiB", charged)
	}
}

// TestChargedAgain: an address whose end was not seen is charged once, and the end of the
// context gives back no more than was taken.
func TestChargedAgain(t *testing.T) {
	account := shim.NewLimit(10 << 20)
	c, _ := shim.NewCharges(account, shim.Process{})
	for range 2 {
		if err := c.Take(3 << 20); err != nil {
			t.Fatal(err)
		}
		c.Done(shim.Key{Kind: shim.Plain, Value: 8 << 20}, 3<<20, 0)
	}
	if _, left := account.Limit(); c.Bytes() != 4<<20 || left != 6<<20 {
		t.Errorf("%d bytes are charged and %d left, want 4 MiB and 6", c.Bytes(), left)
	}
}

func BenchmarkPair(b *testing.B) {
	d, _ := sim.New(sim.Config{Total: 8 << 30})
	pol, _ := frameworks.Parse("elastic")
	s, _ := d.StreamCreate()
	for _, c := range []struct {
		name    string
		ordered bool
		stream  uint64
	}{{"safe", false, 0}, {"ordered", true, 0}, {"stream", false, uint64(s)}} {
		b.Run(c.name, func(b *testing.B) {
			p, err := shim.Open(&driver{Device: d}, shim.Config{Policy: pol, Ordered: c.ordered})
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			b.ReportAllocs()
			for b.Loop() {
				if c.stream != 0 {
					a, _ := p.AllocAsync(1<<16, c.stream)
					_ = p.FreeAsync(a, c.stream)
				} else {
					a, _ := p.Alloc(1 << 16)
					_ = p.Free(a)
				}
			}
		})
	}
}
