package sim_test

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"gpumem/device"
	"gpumem/device/sim"
)

// More is granted than the device has, and all of the device is still there for
// plain grants.
func ExampleDevice_AllocManaged() {
	d, err := sim.New(sim.Config{Total: 24 << 30, Host: 64 << 30, Name: "card"})
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := d.AllocManaged(48 << 30)
	fmt.Printf("%d GiB, %v\n", r.Bytes>>30, err)
	free, _, err := d.MemInfo()
	fmt.Printf("%d GiB are free, %v\n", free>>30, err)

	_, err = d.AllocManaged(41 << 30) // the device and the host have 88
	fmt.Println(err)
	fmt.Println(d.Free(r.Addr))
	// Output:
	// 48 GiB, <nil>
	// 24 GiB are free, <nil>
	// cuMemAllocManaged of 44023414784 bytes on card: CUDA_ERROR_OUT_OF_MEMORY: out of memory
	// <nil>
}

// TestManagedBound: what the device and the host have is granted, and a byte
// more is not, whatever plain grants and others hold.
func TestManagedBound(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  sim.Config
		fits uint64
		free uint64 // afterwards; a plain grant of 1 MiB is there
	}{
		{"default host", sim.Config{Total: gib}, 257 * gib, 1022 * mib},
		{"a host of a byte", sim.Config{Total: gib, Granularity: 1, Host: 1}, gib + 1, 1023 * mib},
		{"rounded up", sim.Config{Total: gib, Host: 3 * mib}, gib + 2*mib, 1022 * mib},
		{"others on it", sim.Config{Total: gib, Granularity: 1, Host: mib, Used: 100 * mib, Display: mib, Context: 22 * mib}, gib + mib, 900 * mib},
		{"Pascal", sim.Config{Total: gib, Granularity: 1, Host: 5, CCMajor: 6}, gib + 5, 1023 * mib},
		{"Maxwell", sim.Config{Total: gib, Granularity: 1, Host: 5, CCMajor: 5, CCMinor: 3}, 1023 * mib, 0},
		{"Maxwell, others on it", sim.Config{Total: gib, Granularity: 1, Used: 20 * mib, CCMajor: 5}, 1003 * mib, 0},
		{"memory of the host", sim.Config{Total: gib, Granularity: 1, Unified: true}, 1023 * mib, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDevice(t, tc.cfg)
			if _, err := d.Alloc(mib); err != nil {
				t.Fatal(err)
			}
			before, _, _ := d.MemInfo()
			if r, err := d.AllocManaged(tc.fits + 1); !errors.Is(err, device.ErrOutOfMemory) {
				t.Errorf("a byte too many: %+v, %v", r, err)
			}
			// In two pieces, the first of which goes and comes again.
			var last device.Range
			for i := range 2 {
				r, err := d.AllocManaged(tc.fits / 2)
				if err != nil {
					t.Fatal(err)
				}
				if last, err = d.AllocManaged(tc.fits - r.Bytes); err != nil {
					t.Fatal(err)
				}
				if more, err := d.AllocManaged(1); !errors.Is(err, device.ErrOutOfMemory) {
					t.Errorf("past the end: %+v, %v", more, err)
				}
				if i == 0 {
					if err := errors.Join(d.Free(r.Addr), d.Free(last.Addr)); err != nil {
						t.Fatal(err)
					}
					if free, _, err := d.MemInfo(); free != before || err != nil || d.HeldManaged() != 0 {
						t.Errorf("%d free, %d before, %d managed, %v", free, before, d.HeldManaged(), err)
					}
				}
			}
			if free, _, err := d.MemInfo(); free != tc.free || err != nil {
				t.Errorf("%d free, want %d, %v", free, tc.free, err)
			}
			if want := tc.fits; d.Info().Oversubscribes != (d.HeldManaged() == want) {
				t.Errorf("%d managed of %d, oversubscribes %v", d.HeldManaged(), want, d.Info().Oversubscribes)
			}
			if err := d.Close(); err != nil || d.HeldManaged() != 0 {
				t.Errorf("closed, %d managed, %v", d.HeldManaged(), err)
			}
		})
	}
}

// TestManagedOfAnySize: sizes near 2^64 do not make the bound wrap around.
func TestManagedOfAnySize(t *testing.T) {
	d := newDevice(t, sim.Config{Total: math.MaxUint64 - 5, Host: math.MaxUint64, Granularity: 1})
	if r, err := d.AllocManaged(1 << 62); err != nil || r.Bytes != 1<<62 {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := d.AllocManaged(math.MaxUint64 - 1<<62 + 1); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestNoManaged(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib, NoManaged: true})
	if info := d.Info(); info.HasManaged || info.Oversubscribes {
		t.Errorf("%+v", info)
	}
	for _, n := range []uint64{0, 1, gib} {
		_, err := d.AllocManaged(n)
		refusedAs(t, err, "cuMemAllocManaged", device.ErrNotSupported)
	}
	if _, err := d.Alloc(1); err != nil {
		t.Error(err)
	}
}

// TestManagedContents: it is kept as sparsely as plain memory, and goes with the
// grant.
func TestManagedContents(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	r := must[device.Range](t)(d.AllocManaged(100 * gib))
	ok(t, d.Fill(r.Addr, 100*gib, 0), d.Write(r.Addr+99*gib, []byte("end")))
	got := make([]byte, 5)
	ok(t, d.Read(r.Addr+99*gib-1, got))
	if string(got) != "\x00end\x00" || d.Touched() == 0 || d.Touched() > mib {
		t.Errorf("%q is there, %d bytes touched", got, d.Touched())
	}
	ok(t, d.Free(r.Addr))
	if d.Touched() != 0 {
		t.Errorf("%d bytes are left of it", d.Touched())
	}
}

// managedScript makes every call with managed memory and then takes it down,
// what fails a second time, too. It returns each call's error.
func managedScript(d *sim.Device) (errs []error) {
	try := func(err error) bool {
		errs = append(errs, err)
		return err == nil
	}
	for _, bytes := range []uint64{1, 3 * mib, 600 * mib} {
		r, err := d.AllocManaged(bytes)
		if !try(err) {
			continue
		}
		try(d.Write(r.Addr, []byte{1}))
		try(d.Read(r.Addr, make([]byte, 1)))
		try(d.Fill(r.Addr, 1, 2))
		try(d.FillAsync(r.Addr, 1, 2, 0))
		try(d.Synchronize())
		if !try(d.Free(r.Addr)) {
			try(d.Free(r.Addr))
		}
	}
	return errs
}

// TestManagedFailCall makes every call of that script fail in turn, or the
// device be lost by it: nothing else fails, and nothing is held at the end.
func TestManagedFailCall(t *testing.T) {
	own := errors.New("the tester's own")
	for _, major := range []int{5, 9} {
		cfg := sim.Config{Total: gib, CCMajor: major, Context: mib}
		clean := newDevice(t, cfg)
		errs := managedScript(clean)
		if errors.Join(errs...) != nil || uint64(len(errs)) != clean.Counters().Calls {
			t.Fatalf("the script makes %d calls, %d counted: %v", len(errs), clean.Counters().Calls, errors.Join(errs...))
		}
		for n := range uint64(len(errs)) {
			d := newDevice(t, cfg)
			d.SetFaults(sim.Faults{FailAt: n + 1, Err: own})
			failed := 0
			for _, err := range managedScript(d) {
				if errors.Is(err, own) {
					failed++
				} else if err != nil {
					t.Errorf("call %d failed, and another with %v", n+1, err)
				}
			}
			free, _, err := d.MemInfo()
			if held, _ := d.Held(); failed != 1 || free != gib-mib || err != nil || held != 0 || d.HeldManaged() != 0 || d.Touched() != 0 {
				t.Errorf("call %d failed (%d did): %d free, %v, %d held, %d managed, %d touched", n+1, failed, free, err, held, d.HeldManaged(), d.Touched())
			}

			d = newDevice(t, cfg)
			d.SetFaults(sim.Faults{LoseAt: n + 1})
			for i, err := range managedScript(d) {
				if got, want := errors.Is(err, device.ErrLost), uint64(i) >= n; got != want || !want && err != nil {
					t.Errorf("lost at call %d, call %d: %v", n+1, i+1, err)
				}
			}
		}
	}
}
