package sim_test

import (
	"fmt"
	"testing"
	"time"

	"gpumem/device"
	"gpumem/device/sim"
)

// TestTimes: the modelled time of each call in a row of them. The figures are
// those of the default cost table.
func TestTimes(t *testing.T) {
	type call struct {
		do   string // a: allocate n bytes, m: managed ones; f: free the n-th grant, from 0; i: ask what is free
		n    uint64
		want time.Duration // microseconds
	}
	for _, tc := range []struct {
		name        string
		granularity uint64
		calls       []call
	}{
		{"ask", 0, []call{{"i", 0, 8}, {"i", 0, 8}}},
		{"one block", 0, []call{{"a", 1, 160}, {"f", 0, 160}}},
		{"64 MiB", 0, []call{{"a", 64 * mib, 222}, {"f", 0, 222}}},
		{"rounded up to the granularity", 0, []call{{"a", 62*mib + 1, 222}, {"f", 0, 222}}},
		{"rounded up to a block", 1, []call{{"a", 62*mib + 1, 222}, {"a", 3 * mib, 162}, {"a", 2*mib + 1, 162}, {"f", 2, 162}}},
		{"just a block", 1, []call{{"a", 2 * mib, 160}, {"a", 1, 160}, {"f", 0, 160}, {"a", 1, 5}}},
		{
			"4 KiB share a block", 512,
			[]call{{"a", 4 * kib, 160}, {"a", 4 * kib, 5}, {"f", 0, 5}, {"f", 1, 160}, {"a", 4 * kib, 160}},
		},
		{"with the default granularity they do not", 0, []call{{"a", 4 * kib, 160}, {"a", 4 * kib, 160}}},
		{
			"a full block", 512,
			[]call{{"a", 2*mib - 512, 160}, {"a", 512, 5}, {"a", 512, 160}, {"f", 1, 5}, {"a", 512, 5}, {"a", 512, 5}, {"f", 2, 5}},
		},
		{"a byte takes 512", 1, []call{{"a", 2*mib - 1024, 160}, {"a", 1, 5}, {"a", 1, 5}, {"a", 1, 160}}},
		{"just less than a block", 1, []call{{"a", 2*mib - 1, 160}, {"a", 1, 160}, {"f", 0, 160}}},
		{
			"the room of a block that another one hid", 512,
			[]call{{"a", mib, 160}, {"a", mib + 512, 160}, {"f", 1, 160}, {"a", mib, 5}, {"f", 0, 5}, {"f", 2, 160}},
		},
		{
			"two blocks with the same room", 512,
			[]call{{"a", 1536 * kib, 160}, {"a", 1536 * kib, 160}, {"f", 0, 160}, {"a", 512 * kib, 5}, {"f", 1, 5}, {"f", 2, 160}},
		},
		{"refused", 0, []call{{"a", 2 * gib, 5}, {"a", 0, 5}, {"f", 99, 5}, {"m", 0, 5}, {"m", 300 * gib, 5}}},
		{"managed", 512, []call{{"m", 64 * mib, 222}, {"f", 0, 222}, {"m", 4 * kib, 160}, {"m", 4 * kib, 5}, {"f", 1, 5}, {"f", 2, 160}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDevice(t, sim.Config{Total: gib, Granularity: tc.granularity})
			var addrs []uint64
			for i, c := range tc.calls {
				before := d.Counters()
				switch c.do {
				case "a":
					if r, err := d.Alloc(c.n); err == nil {
						addrs = append(addrs, r.Addr)
					}
				case "m":
					if r, err := d.AllocManaged(c.n); err == nil {
						addrs = append(addrs, r.Addr)
					}
				case "f":
					addr := uint64(1)
					if c.n < uint64(len(addrs)) {
						addr = addrs[c.n]
					}
					_ = d.Free(addr) // refused in one row
				case "i":
					if _, _, err := d.MemInfo(); err != nil {
						t.Fatal(err)
					}
				}
				after := d.Counters()
				if got := after.Time - before.Time; got != c.want*time.Microsecond {
					t.Errorf("call %d, %s %d: %v, want %d µs", i, c.do, c.n, got, c.want)
				}
				if after.Calls != before.Calls+1 {
					t.Errorf("call %d counted as %d", i, after.Calls-before.Calls)
				}
			}
		})
	}
}

// TestLoopTimes: allocating and freeing 4 KiB over and over is cheap as long as
// something else holds the block open, and dear otherwise. The driver-cost
// study names both as what a model has to reproduce.
func TestLoopTimes(t *testing.T) {
	for _, tc := range []struct {
		name string
		hold uint64 // bytes granted all the while
		want time.Duration
	}{
		{"alone", 0, 320 * time.Microsecond},
		{"with a neighbour", 4 * kib, 10 * time.Microsecond},
		{"with a neighbour that fills the block", 2*mib - 512, 320 * time.Microsecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDevice(t, sim.Config{Total: gib, Granularity: 512})
			if tc.hold > 0 {
				if _, err := d.Alloc(tc.hold); err != nil {
					t.Fatal(err)
				}
			}
			// More rounds than a block has steps of 4 KiB.
			for i := range 2000 {
				before := d.Counters().Time
				r, err := d.Alloc(4 * kib)
				if err != nil {
					t.Fatal(err)
				}
				if err := d.Free(r.Addr); err != nil {
					t.Fatal(err)
				}
				if got := d.Counters().Time - before; got != tc.want {
					t.Fatalf("round %d took %v, want %v", i, got, tc.want)
				}
			}
		})
	}
}

// TestCostsOfAnySize: a device of exabytes does not make the time overflow, even
// at a second for each MiB.
func TestCostsOfAnySize(t *testing.T) {
	costs := sim.Costs{BlockAlloc: 1, AllocPerMiB: time.Second, BlockFree: 1, FreePerMiB: time.Second}
	last := time.Duration(0)
	for shift := range 63 {
		t.Run(fmt.Sprintf("2^%d", shift), func(t *testing.T) {
			d := newDevice(t, sim.Config{Total: 1 << 63, Granularity: 1, Costs: costs})
			r, err := d.Alloc(1 << shift)
			if err != nil {
				t.Fatal(err)
			}
			now := d.Counters().Time
			if now < last {
				t.Errorf("Alloc takes %v, and of half the size %v", now, last)
			}
			last = now
			if err := d.Free(r.Addr); err != nil {
				t.Fatal(err)
			}
			if got := d.Counters().Time; got != 2*now {
				t.Errorf("Alloc takes %v, Free %v", now, got-now)
			}
		})
	}
}

// TestPageTimes: the modelled time of what programs do with pages. The first
// rows are what a model of an H100 has to reproduce: growing by a page takes 67
// us, giving it back 48 us, and a GiB is some 30 times dearer in pages than as
// one handle.
func TestPageTimes(t *testing.T) {
	const us = time.Microsecond
	// grow makes handles of bytes each and maps them from addr on.
	grow := func(d *sim.Device, addr, bytes, number uint64) (handles []device.Handle, err error) {
		for i := range number {
			h, err := d.MemCreate(bytes)
			if err != nil {
				return nil, err
			}
			if err := d.MemMap(addr+i*bytes, bytes, h); err != nil {
				return nil, err
			}
			handles = append(handles, h)
		}
		return handles, d.MemSetAccess(addr, number*bytes)
	}
	for _, tc := range []struct {
		name          string
		bytes, number uint64 // of handles
		grow, shrink  time.Duration
	}{
		{"a page", 2 * mib, 1, 67*us + 200, 48*us + 200},
		{"1 GiB in pages", 2 * mib, 512, 34_406*us + 400, 24_678*us + 400},
		{"1 GiB in one handle", gib, 1, 1191*us + 400, 1683*us + 400},
		{"20 MiB in one handle", 20 * mib, 1, 87 * us, 77 * us},
		{"40 MiB in two", 20 * mib, 2, 174 * us, 154 * us},
	} {
		for _, early := range []bool{false, true} {
			name := tc.name
			if early {
				name += ", released while mapped" // costs the same in the end
			}
			t.Run(name, func(t *testing.T) {
				d := newDevice(t, sim.Config{Total: 4 * gib})
				addr, err := d.AddressReserve(2*gib, 0)
				if err != nil {
					t.Fatal(err)
				}
				start := d.Counters().Time
				handles, err := grow(d, addr, tc.bytes, tc.number)
				if err != nil {
					t.Fatal(err)
				}
				if got := d.Counters().Time - start; got != tc.grow {
					t.Errorf("growing takes %v, want %v", got, tc.grow)
				}
				start = d.Counters().Time
				unmap := func() {
					if err := d.MemUnmap(addr, tc.number*tc.bytes); err != nil {
						t.Error(err)
					}
				}
				if !early {
					unmap()
				}
				for _, h := range handles {
					if err := d.MemRelease(h); err != nil {
						t.Error(err)
					}
				}
				if early {
					unmap()
				}
				if got := d.Counters().Time - start; got != tc.shrink {
					t.Errorf("giving back takes %v, want %v", got, tc.shrink)
				}
			})
		}
	}
}

// TestPageCallTimes: single calls, taken and refused.
func TestPageCallTimes(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	var small, large uint64
	for _, tc := range []struct {
		name string
		do   func() error
		ok   bool
		want time.Duration // nanoseconds
	}{
		{"reserve less than a GiB", func() (err error) { small, err = d.AddressReserve(gib-2*mib, 0); return err }, true, 2_000},
		{"reserve a GiB", func() (err error) { large, err = d.AddressReserve(gib, 0); return err }, true, 15_000},
		{"reserve refused", func() error { _, err := d.AddressReserve(1, 0); return err }, false, 2_000},
		{"free addresses", func() error { return d.AddressFree(small, gib-2*mib) }, true, 1_500},
		{"free addresses refused", func() error { return d.AddressFree(small, gib-2*mib) }, false, 1_500},
		{"create", func() error { _, err := d.MemCreate(100 * mib); return err }, true, 35_000},
		{"create refused", func() error { _, err := d.MemCreate(gib); return err }, false, 25_000},
		{"map", func() error { return d.MemMap(large, 100*mib, 1) }, true, 2_000},
		{"map again", func() error { return d.MemMap(large+100*mib, 100*mib, 1) }, true, 2_000},
		{"map refused", func() error { return d.MemMap(large, 100*mib, 1) }, false, 2_000},
		{"access", func() error { return d.MemSetAccess(large, 200*mib) }, true, 276_000},
		{"access refused", func() error { return d.MemSetAccess(large, 300*mib) }, false, 40_000},
		{"unmap", func() error { return d.MemUnmap(large, 100*mib) }, true, 175_000},
		{"unmap refused", func() error { return d.MemUnmap(large, 100*mib) }, false, 28_000},
		{"release, mapped", func() error { return d.MemRelease(1) }, true, 20_000},
		{"release refused", func() error { return d.MemRelease(1) }, false, 20_000},
		{"unmap the last", func() error { return d.MemUnmap(large+100*mib, 100*mib) }, true, 185_000},
	} {
		before := d.Counters().Time
		if err := tc.do(); (err == nil) != tc.ok {
			t.Errorf("%s: %v", tc.name, err)
		}
		if got := d.Counters().Time - before; got != tc.want {
			t.Errorf("%s takes %v, want %v", tc.name, got, tc.want)
		}
	}
}
