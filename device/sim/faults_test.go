package sim_test

import (
	"errors"
	"testing"
	"time"

	"gpumem/device"
	"gpumem/device/sim"
)

// script makes 30 calls of every kind and gives everything back. It returns
// each call's error. What fails is left out of the rest, and frees are tried
// again at the end.
func script(d *sim.Device) (errs []error, unfreed int) {
	var addrs []uint64
	free := func(i int) {
		err := d.Free(addrs[i])
		if errs = append(errs, err); err == nil {
			addrs = append(addrs[:i], addrs[i+1:]...)
		}
	}
	for i := range 10 {
		r, err := d.Alloc(uint64(i+1) * 700 * kib)
		if errs = append(errs, err); err == nil {
			addrs = append(addrs, r.Addr)
		}
		if _, _, err := d.MemInfo(); i%2 == 0 || err != nil {
			errs = append(errs, err)
		} else {
			errs = append(errs, nil)
		}
		if i%3 == 2 && len(addrs) > 0 {
			free(len(addrs) / 2)
		}
	}
	for i := len(addrs) - 1; i >= 0; i-- {
		free(i)
	}
	return errs, len(addrs)
}

// TestFailCall makes every call of the script fail in turn. That one fails, no
// other does, and nothing leaks.
func TestFailCall(t *testing.T) {
	cfg := sim.Config{Total: gib, Granularity: 512}
	clean := newDevice(t, cfg)
	errs, _ := script(clean)
	calls := len(errs)
	if uint64(calls) != clean.Counters().Calls || errors.Join(errs...) != nil {
		t.Fatalf("the script makes %d calls, %d counted: %v", calls, clean.Counters().Calls, errors.Join(errs...))
	}
	own := errors.New("the tester's own")
	for _, tc := range []struct {
		name      string
		err, want error
	}{
		{"default", nil, device.ErrOutOfMemory},
		{"invalid", device.ErrInvalidValue, device.ErrInvalidValue},
		{"own", own, own},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for n := 1; n <= calls; n++ {
				d := newDevice(t, cfg)
				d.FailCall(uint64(n), tc.err)
				errs, unfreed := script(d)
				for i, err := range errs {
					if want := i+1 == n; (err != nil) != want || want && !errors.Is(err, tc.want) {
						t.Errorf("call %d failed with %v; call %d should", i+1, err, n)
					}
				}
				var call *device.CallError
				if !errors.As(errs[n-1], &call) || call.Device != "sim:1GiB" {
					t.Errorf("call %d: %v is no CallError", n, errs[n-1])
				}
				// A call that failed had no effect: a grant that could not be freed is
				// the only one that is left.
				now, _ := d.Held()
				if free, total, _ := d.MemInfo(); free != total-now || (now > 0) != (unfreed > 0) {
					t.Errorf("call %d failed: %d held, %d of %d free, %d not freed", n, now, free, total, unfreed)
				}
			}
		})
	}
}

// TestFailedCallTime: a call that fails is charged as the cheapest of its kind.
func TestFailedCallTime(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	r, err := d.Alloc(64 * mib)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		call func() error
		want time.Duration // microseconds
	}{
		{"alloc", func() error { _, err := d.Alloc(64 * mib); return err }, 5},
		{"free", func() error { return d.Free(r.Addr) }, 5},
		{"info", func() error { _, _, err := d.MemInfo(); return err }, 8},
	} {
		before := d.Counters()
		d.FailCall(before.Calls+1, nil)
		if err := tc.call(); err == nil {
			t.Errorf("%s did not fail", tc.name)
		}
		if got := d.Counters().Time - before.Time; got != tc.want*time.Microsecond {
			t.Errorf("%s: %v, want %d µs", tc.name, got, tc.want)
		}
	}
	if err := d.Free(r.Addr); err != nil {
		t.Errorf("the call that failed freed: %v", err)
	}
}

func TestFailCallTakenAway(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	d.FailCall(1, nil)
	d.FailCall(2, nil) // in place of the first
	if _, err := d.Alloc(1); err != nil {
		t.Errorf("first call: %v", err)
	}
	d.FailCall(0, nil)
	if _, err := d.Alloc(1); err != nil {
		t.Errorf("second call: %v", err)
	}
}

// TestLoseAt: from that call on every one fails, whatever other fault stands.
func TestLoseAt(t *testing.T) {
	cfg := sim.Config{Total: gib, Granularity: 512}
	errs, _ := script(newDevice(t, cfg))
	for n := 1; n <= len(errs); n++ {
		d := newDevice(t, cfg)
		d.LoseAt(uint64(n))
		d.FailCall(uint64(n), nil)
		errs, unfreed := script(d)
		for i, err := range errs {
			if got, want := errors.Is(err, device.ErrLost), i+1 >= n; got != want || !want && err != nil {
				t.Errorf("lost at call %d, call %d: %v", n, i+1, err)
			}
		}
		if now, _ := d.Held(); (now > 0) != (unfreed > 0) {
			t.Errorf("lost at call %d: %d bytes are held and %d grants not freed", n, now, unfreed)
		}
		if got := d.Counters().Calls; got != uint64(len(errs)) {
			t.Errorf("lost at call %d: %d calls counted of %d", n, got, len(errs))
		}
	}

	d := newDevice(t, cfg)
	d.LoseAt(1)
	if _, _, err := d.MemInfo(); !errors.Is(err, device.ErrLost) {
		t.Errorf("lost: %v", err)
	}
	d.LoseAt(0)
	if _, _, err := d.MemInfo(); err != nil {
		t.Errorf("not lost any more: %v", err)
	}
}

// TestRefuseAbove: it is the request that counts, not what it is rounded up to.
func TestRefuseAbove(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	d.RefuseAbove(100)
	for _, tc := range []struct {
		bytes uint64
		want  error
	}{{100, nil}, {101, device.ErrOutOfMemory}, {gib, device.ErrOutOfMemory}, {1, nil}} {
		if _, err := d.Alloc(tc.bytes); !errors.Is(err, tc.want) {
			t.Errorf("Alloc(%d): %v, want %v", tc.bytes, err, tc.want)
		}
	}
	if _, _, err := d.MemInfo(); err != nil {
		t.Error(err)
	}
	if err := d.Free(sim.Base); err != nil {
		t.Error(err)
	}
	d.RefuseAbove(0)
	if _, err := d.Alloc(101); err != nil {
		t.Errorf("after the fault was taken away: %v", err)
	}
}
