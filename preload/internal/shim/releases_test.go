package shim_test

import (
	"errors"
	"runtime"
	"testing"

	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/preload/internal/shim"
)

// newCharges makes the charges of a process of which nothing is outside of its pool.
func newCharges(t testing.TB, a shim.Account) *shim.Charges {
	t.Helper()
	c, err := shim.NewCharges(a, shim.Process{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestWhatIsBeingReleasedIsNotRefused: one thread is in the middle of a release, and another
// one's request has no room without it. The release goes on when the request waits for it, or
// has been refused, which is the fault.
func TestWhatIsBeingReleasedIsNotRefused(t *testing.T) {
	const limit = 64 * mib
	plain := shim.Key{Value: 1 << 30}
	charge := func(t *testing.T, c *shim.Charges) {
		if err := c.Take(48 * mib); err != nil {
			t.Fatal(err)
		}
		c.Done(plain, 48*mib, 0)
	}
	// Each case begins a release and returns what ends it.
	for _, tc := range []struct {
		name  string
		begin func(t *testing.T, p *shim.Pool, c *shim.Charges, flush chan bool) (end func())
	}{
		{"memory past the pool", func(t *testing.T, _ *shim.Pool, c *shim.Charges, _ chan bool) func() {
			charge(t, c)
			token := c.Remove(plain)
			return func() { c.Removed(token, true) }
		}},
		{"memory of which the driver says later how much it was", func(t *testing.T, _ *shim.Pool, c *shim.Charges, _ chan bool) func() {
			if err := c.ReservedPooled(7, 48*mib, 0); err != nil {
				t.Fatal(err)
			}
			c.Releasing()
			return func() {
				if err := c.ReservedPooled(7, 0, 0); err != nil {
					t.Error(err)
				}
				c.Released()
			}
		}},
		// The blocks are no longer pending, and not free in the pool yet.
		{"a flush of the pool", func(t *testing.T, p *shim.Pool, _ *shim.Charges, flush chan bool) func() {
			freed, err := p.Alloc(24 * mib)
			if err == nil {
				_, err = p.Alloc(16 * mib)
			}
			if err := errors.Join(err, p.Free(freed)); err != nil {
				t.Fatal(err)
			}
			return func() { flush <- true }
		}},
	} {
		for _, request := range []struct {
			name string
			do   func(p *shim.Pool, c *shim.Charges) error
		}{
			{"by the pool", func(p *shim.Pool, _ *shim.Charges) error { _, err := p.Alloc(32 * mib); return err }},
			{"past the pool", func(_ *shim.Pool, c *shim.Charges) error { return c.Take(32 * mib) }},
		} {
			t.Run(tc.name+", a request "+request.name, func(t *testing.T) {
				a := newAccount(t, limit)
				a.want = func(uint64) error { return nil }
				c := newCharges(t, a)
				flush, entered := make(chan bool), make(chan bool)
				stop := false
				p := openOn(t, newDriver(t, sim.Config{Total: 1 << 30}), "platform", shim.Config{Account: a, Charges: c, Pending: func(bytes uint64) {
					if bytes == 0 && stop {
						stop = false
						close(entered)
						<-flush
					}
				}})
				end := tc.begin(t, p, c, flush)
				if p.Pending() > 0 {
					stop = true
					n := p.Synchronizing()
					go func() {
						if err := p.Synchronized(n); err != nil {
							t.Error(err)
						}
					}()
					<-entered
				}
				done := make(chan error, 1)
				go func() { done <- request.do(p, c) }()
				for len(done) == 0 && !c.Waiting() {
					runtime.Gosched()
				}
				end()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if asked := a.askedFor(); len(asked) > 0 {
					t.Errorf("other processes were asked for %d bytes", asked)
				}
			})
		}
	}
}

// TestRequestIsRefusedInTheEnd: others release again and again what does not suffice.
func TestRequestIsRefusedInTheEnd(t *testing.T) {
	a := newAccount(t, 64*mib)
	c := newCharges(t, a)
	if err := c.Take(48 * mib); err != nil {
		t.Fatal(err)
	}
	a.full = func() {
		c.Releasing()
		c.Released()
	}
	if err := c.Take(32 * mib); !errors.Is(err, device.ErrOutOfMemory) {
		t.Fatalf("Take = %v", err)
	}
	if want := 1 + 1 + shim.Attempts; a.takes != want {
		t.Errorf("%d attempts, want %d", a.takes, want)
	}
}

// TestRefusalWithoutAReleaseIsOfTheFirstAttempt: what nobody releases is not waited for.
func TestRefusalWithoutAReleaseIsOfTheFirstAttempt(t *testing.T) {
	a := newAccount(t, 64*mib)
	c := newCharges(t, a)
	if err := c.Take(65 * mib); !errors.Is(err, device.ErrOutOfMemory) || a.takes != 1 {
		t.Errorf("Take of more than the lease = %v after %d attempts", err, a.takes)
	}
}
