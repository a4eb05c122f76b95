package sim_test

import (
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
				d.SetFaults(sim.Faults{FailAt: uint64(n), Err: tc.err})
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
		d.SetFaults(sim.Faults{FailAt: before.Calls + 1})
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

func TestFaultsTakenAway(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	d.SetFaults(sim.Faults{FailAt: 1})
	d.SetFaults(sim.Faults{FailAt: 2}) // in place of the first
	if _, err := d.Alloc(1); err != nil {
		t.Errorf("first call: %v", err)
	}
	d.SetFaults(sim.Faults{})
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
		d.SetFaults(sim.Faults{LoseAt: uint64(n), FailAt: uint64(n)})
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
	d.SetFaults(sim.Faults{LoseAt: 1})
	if _, _, err := d.MemInfo(); !errors.Is(err, device.ErrLost) {
		t.Errorf("lost: %v", err)
	}
	d.SetFaults(sim.Faults{})
	if _, _, err := d.MemInfo(); err != nil {
		t.Errorf("not lost any more: %v", err)
	}
}

// pagesScript makes calls of every kind with pages and contents, and then takes
// everything down again. A call whose turn has not come, because one before it
// failed, is left out; what could not be given back is tried again at the end.
func pagesScript(d *sim.Device) (errs []error) {
	try := func(err error) bool {
		errs = append(errs, err)
		return err == nil
	}
	var undo []func() error
	addr, err := d.AddressReserve(8*page, 0)
	if try(err) {
		undo = append(undo, func() error { return d.AddressFree(addr, 8*page) })
		for i := range uint64(3) {
			h, err := d.MemCreate(2 * page)
			if !try(err) {
				continue
			}
			at := addr + 2*i*page
			if i != 1 { // one is released while it is mapped
				undo = append(undo, func() error { return d.MemRelease(h) })
			}
			if try(d.MemMap(at, 2*page, h)) {
				undo = append(undo, func() error { return d.MemUnmap(at, 2*page) })
				if try(d.MemSetAccess(at, 2*page)) {
					try(d.Write(at, []byte{1, 2, 3}))
					try(d.Read(at, make([]byte, 3)))
					try(d.Fill(at+page, page, 1))
				}
			}
			if i == 1 && !try(d.MemRelease(h)) {
				undo = append(undo, func() error { return d.MemRelease(h) })
			}
		}
	}
	r, err := d.Alloc(page)
	if try(err) {
		undo = append(undo, func() error { return d.Free(r.Addr) })
		try(d.Write(r.Addr, []byte{1}))
	}
	var again []func() error
	for i := len(undo) - 1; i >= 0; i-- {
		if !try(undo[i]()) {
			again = append(again, undo[i])
		}
	}
	for _, f := range again {
		try(f())
	}
	return errs
}

// TestPagesFailCall makes every call of that script fail in turn: nothing else
// fails but what cannot be done without it, and at the end nothing is held,
// written or reserved.
func TestPagesFailCall(t *testing.T) {
	for _, context := range []uint64{0, 100 * mib} {
		cfg := sim.Config{Total: gib, Context: context}
		clean := newDevice(t, cfg)
		errs := pagesScript(clean)
		if errors.Join(errs...) != nil || uint64(len(errs)) != clean.Counters().Calls {
			t.Fatalf("the script makes %d calls, %d counted: %v", len(errs), clean.Counters().Calls, errors.Join(errs...))
		}
		own := errors.New("the tester's own")
		for n := range len(errs) {
			d := newDevice(t, cfg)
			d.SetFaults(sim.Faults{FailAt: uint64(n + 1), Err: own})
			var got int
			for _, err := range pagesScript(d) {
				if errors.Is(err, own) {
					got++
				} else if err != nil && !errors.Is(err, device.ErrInvalidValue) {
					t.Errorf("call %d failed, and another with %v", n+1, err)
				}
			}
			free, total, err := d.MemInfo()
			held, _ := d.Held()
			if got != 1 || free != total-context || err != nil || held != 0 || d.Touched() != 0 {
				t.Errorf("call %d failed (%d did): %d of %d bytes free, %v, %d held, %d touched", n+1, got, free, total, err, held, d.Touched())
			}
			// All addresses can be reserved, so none are.
			if _, err := d.AddressReserve(1<<47, 0); err != nil {
				t.Errorf("call %d failed, and something is reserved: %v", n+1, err)
			}
		}
	}
}

// TestConfigFaults: the faults of the configuration are those of the methods.
func TestConfigFaults(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib, Faults: sim.Faults{FailAt: 2, RefuseAbove: mib, LoseAt: 4, SlowAt: 1, Slow: time.Second}})
	for i, want := range []error{nil, device.ErrOutOfMemory, device.ErrOutOfMemory, device.ErrLost, device.ErrLost} {
		bytes := uint64(mib)
		if i == 2 {
			bytes++
		}
		if _, err := d.Alloc(bytes); !errors.Is(err, want) {
			t.Errorf("call %d: %v, want %v", i+1, err, want)
		}
	}
	if got := d.Counters().Time; got != time.Second+180*time.Microsecond {
		t.Errorf("the calls take %v", got)
	}
}

func TestSlowCall(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	took := func(want time.Duration) {
		t.Helper()
		before := d.Counters().Time
		if _, _, err := d.MemInfo(); err != nil {
			t.Error(err)
		}
		if got := d.Counters().Time - before; got != want {
			t.Errorf("call %d takes %v, want %v", d.Counters().Calls, got, want)
		}
	}
	const asEver = 8 * time.Microsecond
	took(asEver)
	d.SetFaults(sim.Faults{SlowAt: 3, Slow: time.Hour})
	took(asEver)
	took(asEver + time.Hour)
	took(asEver)
	d.SetFaults(sim.Faults{SlowAt: 9, Slow: time.Hour})
	d.SetFaults(sim.Faults{SlowAt: 0, Slow: time.Second}) // in place of it
	took(asEver + time.Second)
	took(asEver + time.Second)
	d.SetFaults(sim.Faults{FailAt: d.Counters().Calls + 1, Slow: time.Second})
	before := d.Counters().Time
	if _, err := d.Alloc(1); err == nil || d.Counters().Time-before != time.Second+5*time.Microsecond {
		t.Errorf("a slow call that fails: %v, %v", err, d.Counters().Time-before)
	}
	d.SetFaults(sim.Faults{})
	took(asEver)
}

// TestOnCall: the hook hears of every call, in its words, and what it says
// counts.
func TestOnCall(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	type heard struct {
		n     uint64
		name  string
		bytes uint64
	}
	var got []heard
	own := errors.New("the hook's own")
	refuse := uint64(0)
	d.OnCall(func(n uint64, name string, bytes uint64) error {
		got = append(got, heard{n, name, bytes})
		if n == refuse {
			return own
		}
		d.Counters() // it may use the device
		return nil
	})
	var want []heard
	for _, call := range everyCall(d) {
		want = append(want, heard{uint64(len(want) + 1), call.name, 0})
		if err := call.do(); err != nil {
			t.Errorf("%s: %v", call.name, err)
		}
	}
	for i, bytes := range map[int]uint64{1: 1, 6: page, 7: page, 8: page, 9: page, 10: page, 12: page, 13: 1} {
		want[i].bytes = bytes
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(heard{})); diff != "" {
		t.Errorf("the hook heard (-want +got):\n%s", diff)
	}

	// A call that it refuses does nothing, is counted, and is before the faults.
	refuse = d.Counters().Calls + 1
	d.SetFaults(sim.Faults{FailAt: refuse})
	_, err := d.Alloc(1)
	refusedAs(t, err, "cuMemAlloc", own)
	if now, _ := d.Held(); now != 0 || d.Counters().Calls != refuse {
		t.Errorf("%d bytes are held after %d calls", now, d.Counters().Calls)
	}

	before := len(got)
	d.OnCall(nil)
	if _, _, err := d.MemInfo(); err != nil || len(got) != before {
		t.Errorf("without a hook: %v, and it heard %d calls", err, len(got)-before)
	}
}

// TestHookHoldsCall: a hook holds one call still while others go on; the call
// then sees what they did, also that the device is lost, or closed.
func TestHookHoldsCall(t *testing.T) {
	for _, tc := range []struct {
		name string
		then func(d *sim.Device) error
		want error
	}{
		{"memory is left", func(d *sim.Device) error { _, err := d.Alloc(gib / 2); return err }, nil},
		{"memory is gone", func(d *sim.Device) error { _, err := d.Alloc(gib/2 + 1); return err }, device.ErrOutOfMemory},
		{"lost", func(d *sim.Device) error { d.SetFaults(sim.Faults{LoseAt: 1}); return nil }, device.ErrLost},
		{"closed", (*sim.Device).Close, device.ErrClosed},
		{"the hook is taken away", func(d *sim.Device) error { d.OnCall(nil); _, err := d.Alloc(1); return err }, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDevice(t, sim.Config{Total: gib})
			held, letGo, done := make(chan bool), make(chan bool), make(chan error)
			d.OnCall(func(n uint64, _ string, _ uint64) error {
				if n == 1 {
					held <- true
					<-letGo
				}
				return nil
			})
			go func() {
				_, err := d.Alloc(gib / 2)
				done <- err
			}()
			<-held
			if err := tc.then(d); err != nil {
				t.Error(err)
			}
			close(letGo)
			if err := <-done; !errors.Is(err, tc.want) {
				t.Errorf("the call that was held: %v, want %v", err, tc.want)
			}
		})
	}
}

// TestHookEndsGoroutine: one that ends the goroutine of the call, as a test
// does that fails in it, leaves the device usable.
func TestHookEndsGoroutine(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	d.OnCall(func(n uint64, _ string, _ uint64) error {
		if n == 1 {
			runtime.Goexit()
		}
		return nil
	})
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = d.Alloc(1) })
	wg.Wait()
	if free, _, err := d.MemInfo(); free != gib || err != nil {
		t.Errorf("%d bytes free, %v", free, err)
	}
}

// TestRefuseAbove: it is the request that counts, not what it is rounded up to.
func TestRefuseAbove(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	d.SetFaults(sim.Faults{RefuseAbove: 100})
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
	// A handle's memory is refused likewise, and managed memory; addresses are no memory, and what
	// goes over memory that is there is no request for it.
	if _, err := d.MemCreate(page); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("MemCreate: %v", err)
	}
	if _, err := d.AllocManaged(101); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("AllocManaged: %v", err)
	}
	if _, err := d.AddressReserve(page, 0); err != nil {
		t.Error(err)
	}
	r, err := d.Alloc(100)
	if err := errors.Join(err, d.Fill(r.Addr, r.Bytes, 1), d.Free(r.Addr)); err != nil {
		t.Error(err)
	}
	d.SetFaults(sim.Faults{})
	if _, err := d.MemCreate(page); err != nil {
		t.Error(err)
	}
	if _, err := d.Alloc(101); err != nil {
		t.Errorf("after the fault was taken away: %v", err)
	}
}
