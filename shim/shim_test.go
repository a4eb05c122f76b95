package shim_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"gpumem"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/doctor"
	"gpumem/policy/frameworks"
	"gpumem/shim"
)

func TestRefused(t *testing.T) {
	var said []string
	account := shim.NewLimit(64 << 20)
	charges, err := shim.NewCharges(account, 16<<20)
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
			if base, n, err := p.Range(a + 999); err != nil || base != a || n < 1000 {
				t.Errorf("Range inside = %#x, %d, %v", base, n, err)
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

// release releases what a key names, as a call that goes well does.
func release(c *shim.Charges, k shim.Key) {
	if n, ok := c.Remove(k); ok {
		c.Failed(n)
	}
}

// TestContextEnded: what a context took is free when it ends, and nothing else.
func TestContextEnded(t *testing.T) {
	account := shim.NewLimit(10 << 20)
	c, _ := shim.NewCharges(account, 0)
	for i := range uint64(4) {
		if err := c.Take(2 << 20); err != nil {
			t.Fatal(err)
		}
		c.Done(shim.Key{Kind: shim.Plain, Value: i}, 2<<20, i%2*7) // of the contexts 0 and 7
	}
	c.ContextEnded(7)
	c.ContextEnded(0)
	if _, left := account.Limit(); left != 6<<20 || c.Bytes() != 4<<20 {
		t.Errorf("%d bytes are left and %d charged, want 6 MiB and 4", left, c.Bytes())
	}
}

func TestCharges(t *testing.T) {
	account := shim.NewLimit(10 << 20)
	c, _ := shim.NewCharges(account, 0)
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

// TestChargedAgain: an address whose end was not seen is charged once, and the end of the
// context gives back no more than was taken.
func TestChargedAgain(t *testing.T) {
	account := shim.NewLimit(10 << 20)
	c, _ := shim.NewCharges(account, 0)
	for range 2 {
		if err := c.Take(3 << 20); err != nil {
			t.Fatal(err)
		}
		c.Done(shim.Key{Kind: shim.Plain, Value: 4096}, 3<<20, 0)
	}
	if _, left := account.Limit(); c.Bytes() != 3<<20 || left != 7<<20 {
		t.Errorf("%d bytes are charged and %d left, want 3 MiB and 7", c.Bytes(), left)
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
