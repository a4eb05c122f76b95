package sim_test

import (
	"fmt"
	"testing"
	"time"

	"gpumem/device/sim"
)

// TestTimes: the modelled time of each call in a row of them. The figures are
// those of the default cost table.
func TestTimes(t *testing.T) {
	type call struct {
		do   string // a: allocate n bytes; f: free the n-th grant, from 0; i: ask what is free
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
		{"refused", 0, []call{{"a", 2 * gib, 5}, {"a", 0, 5}, {"f", 99, 5}}},
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
