package sim_test

import (
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gpumem/device"
	"gpumem/device/sim"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

func newDevice(t testing.TB, cfg sim.Config) *sim.Device {
	t.Helper()
	d, err := sim.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestNew(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  sim.Config
		want device.Info
	}{
		{
			"plain", sim.Config{Total: 80 * gib},
			device.Info{Name: "sim:80GiB", Total: 80 * gib, Granularity: 2 * mib, CCMajor: 9, Oversubscribes: true},
		},
		{
			"everything",
			sim.Config{Total: gib, Granularity: 512, Used: 1, Display: 2, Context: 3, CCMajor: 12, CCMinor: 1, Unified: true, MIG: "1g.10gb", Name: "mine"},
			device.Info{Name: "mine", Total: gib, Granularity: 512, Context: 3, CCMajor: 12, CCMinor: 1, Display: true, Unified: true, MIG: "1g.10gb"},
		},
		{
			"minor alone", sim.Config{Total: 1, CCMinor: 5},
			device.Info{Name: "sim:1B", Total: 1, Granularity: 2 * mib, CCMinor: 5},
		},
		{
			"full", sim.Config{Total: 3 * kib / 2, Used: kib, Display: kib / 2},
			device.Info{Name: "sim:1.50KiB", Total: 3 * kib / 2, Granularity: 2 * mib, CCMajor: 9, Display: true, Oversubscribes: true},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.want.Simulated, tc.want.Base = true, sim.Base
			tc.want.Page, tc.want.HasPages, tc.want.HasPools, tc.want.HasManaged = 2*mib, true, true, true
			d := newDevice(t, tc.cfg)
			if diff := cmp.Diff(tc.want, d.Info()); diff != "" {
				t.Errorf("Info differs (-want +got):\n%s", diff)
			}
			if d.Counters() != (device.Counters{}) {
				t.Errorf("a new device has counted %+v", d.Counters())
			}
		})
	}
}

func TestNewErrors(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  sim.Config
		want string
	}{
		{"nothing", sim.Config{}, "0 bytes"},
		{"used", sim.Config{Total: gib, Used: gib + 1}, "used 1.00 GiB and display 0 B are more than the device's 1 GiB"},
		{"display", sim.Config{Total: gib, Display: 2 * gib}, "display 2 GiB"},
		{"both", sim.Config{Total: gib, Used: gib, Display: 1}, "display 1 B"},
		{"a sum past 2^64", sim.Config{Total: gib, Used: math.MaxUint64, Display: 2}, "used 16.00 EiB"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := sim.New(tc.cfg)
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, tc.want)
			}
		})
	}
}

// TestPlacement: where grants lie, relative to the first, and how large they
// are.
func TestPlacement(t *testing.T) {
	type grant struct{ ask, offset, bytes uint64 }
	for _, tc := range []struct {
		name        string
		granularity uint64
		grants      []grant
	}{
		{"default", 0, []grant{{1, 0, 2 * mib}, {2 * mib, 2 * mib, 2 * mib}, {2*mib + 1, 4 * mib, 4 * mib}, {1, 8 * mib, 2 * mib}}},
		{"granularity 1", 1, []grant{{1, 0, 1}, {2 * mib, 2 * mib, 2 * mib}, {2*mib + 1, 4 * mib, 2*mib + 1}, {5, 8 * mib, 5}}},
		{"granularity 512", 512, []grant{{1, 0, 512}, {512, 2 * mib, 512}, {513, 4 * mib, 1024}}},
		{"granularity 3 MiB", 3 * mib, []grant{{1, 0, 3 * mib}, {1, 4 * mib, 3 * mib}, {4 * mib, 8 * mib, 6 * mib}, {1, 14 * mib, 3 * mib}}},
	} {
		for _, freeAtOnce := range []bool{false, true} {
			name := tc.name
			if freeAtOnce {
				name += ", freed at once" // addresses are not used again
			}
			t.Run(name, func(t *testing.T) {
				d := newDevice(t, sim.Config{Total: gib, Granularity: tc.granularity})
				for _, g := range tc.grants {
					got, err := d.Alloc(g.ask)
					if want := (device.Range{Addr: 0x7f0000000000 + g.offset, Bytes: g.bytes}); err != nil || got != want {
						t.Fatalf("Alloc(%d) = %+v, %v; want %+v", g.ask, got, err, want)
					}
					if freeAtOnce {
						if err := d.Free(got.Addr); err != nil {
							t.Fatal(err)
						}
					}
				}
			})
		}
	}
}

// TestRefusal: what fits exactly is granted and one byte more is not.
func TestRefusal(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  sim.Config
		held uint64 // granted before
		fits uint64
	}{
		{"empty", sim.Config{Total: gib, Granularity: 1}, 0, gib},
		{"used", sim.Config{Total: gib, Granularity: 1, Used: 100}, 0, gib - 100},
		{"display", sim.Config{Total: gib, Granularity: 1, Display: 7}, 0, gib - 7},
		{"held", sim.Config{Total: gib, Granularity: 1}, 3, gib - 3},
		{"all three", sim.Config{Total: gib, Granularity: 1, Used: 100, Display: 7}, 3, gib - 110},
		{"rounded up", sim.Config{Total: 5*mib - 1}, 0, 4 * mib},
		{"rounded up after rounding up", sim.Config{Total: 5*mib - 1}, 1, 2 * mib},
		{"less than the granularity", sim.Config{Total: mib}, 0, 0},
		{"full", sim.Config{Total: mib, Used: mib, Granularity: 1}, 0, 0},
		{"largest", sim.Config{Total: math.MaxUint64 - sim.Base - 2*mib, Granularity: 1}, 0, math.MaxUint64 - sim.Base - 2*mib},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDevice(t, tc.cfg)
			if tc.held > 0 {
				if _, err := d.Alloc(tc.held); err != nil {
					t.Fatal(err)
				}
			}
			before, _, _ := d.MemInfo()
			if got, err := d.Alloc(tc.fits + 1); !errors.Is(err, device.ErrOutOfMemory) || got != (device.Range{}) {
				t.Errorf("Alloc(%d) = %+v, %v", tc.fits+1, got, err)
			}
			if after, _, _ := d.MemInfo(); after != before {
				t.Errorf("a refusal changed what is free from %d to %d", before, after)
			}
			if tc.fits > 0 {
				if got, err := d.Alloc(tc.fits); err != nil || got.Bytes != tc.fits {
					t.Errorf("Alloc(%d) = %+v, %v", tc.fits, got, err)
				}
			}
		})
	}
}

// TestBadCalls: what makes no sense fails with the driver's error, and changes
// nothing but the counters.
func TestBadCalls(t *testing.T) {
	const name = "mine"
	d := newDevice(t, sim.Config{Total: gib, Name: name})
	live, err := d.Alloc(4 * mib)
	if err != nil {
		t.Fatal(err)
	}
	gone, err := d.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Free(gone.Addr); err != nil {
		t.Fatal(err)
	}
	alloc := func(n uint64) func() error {
		return func() error { _, err := d.Alloc(n); return err }
	}
	free := func(addr uint64) func() error {
		return func() error { return d.Free(addr) }
	}
	for _, tc := range []struct {
		name string
		call func() error
		want device.CallError
	}{
		{"nothing", alloc(0), device.CallError{Call: "cuMemAlloc", Err: device.ErrInvalidValue}},
		{"2^64-1", alloc(math.MaxUint64), device.CallError{Call: "cuMemAlloc", Bytes: math.MaxUint64, Err: device.ErrOutOfMemory}},
		{"2^63", alloc(1 << 63), device.CallError{Call: "cuMemAlloc", Bytes: 1 << 63, Err: device.ErrOutOfMemory}},
		{"0", free(0), device.CallError{Call: "cuMemFree", Err: device.ErrInvalidValue}},
		{"never granted", free(live.Addr - 2*mib), device.CallError{Call: "cuMemFree", Err: device.ErrInvalidValue}},
		{"inside a grant", free(live.Addr + 2*mib), device.CallError{Call: "cuMemFree", Err: device.ErrInvalidValue}},
		{"the next address", free(gone.Addr + 2*mib), device.CallError{Call: "cuMemFree", Err: device.ErrInvalidValue}},
		{"a second time", free(gone.Addr), device.CallError{Call: "cuMemFree", Err: device.ErrInvalidValue}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := d.Counters()
			err := tc.call()
			tc.want.Device = name
			var got *device.CallError
			if !errors.As(err, &got) || *got != tc.want {
				t.Errorf("%v, want %v", err, &tc.want)
			}
			after := d.Counters()
			if after.Calls != before.Calls+1 || after.Time != before.Time+5*time.Microsecond {
				t.Errorf("counters went from %+v to %+v", before, after)
			}
			if now, peak := d.Held(); now != 4*mib || peak != 6*mib {
				t.Errorf("Held() = %d, %d", now, peak)
			}
		})
	}
}

// TestAddressesRunOut: the addresses below 2^64 are used once; a device that is
// large enough gets there.
func TestAddressesRunOut(t *testing.T) {
	d := newDevice(t, sim.Config{Total: math.MaxUint64, Granularity: 1})
	var granted uint64
	for i := range 3 {
		r, err := d.Alloc(6 << 60)
		if i == 2 {
			if !errors.Is(err, device.ErrOutOfMemory) {
				t.Errorf("third grant of 6 EiB: %+v, %v", r, err)
			}
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		granted = r.Addr + r.Bytes
		if err := d.Free(r.Addr); err != nil {
			t.Fatal(err)
		}
	}
	// The rest, up to the last boundary below 2^64.
	if r, err := d.Alloc(-granted); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("up to 2^64: %+v, %v", r, err)
	}
	if r, err := d.Alloc(-granted - 2*mib + 1); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("past the last boundary: %+v, %v", r, err)
	}
	if _, err := d.Alloc(-granted - 2*mib); err != nil {
		t.Errorf("up to the last boundary: %v", err)
	}
	if r, err := d.Alloc(1); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("past the end: %+v, %v", r, err)
	}
	if now, _ := d.Held(); now != -granted-2*mib {
		t.Errorf("%d bytes held", now)
	}
}

// TestContext: the first driver call takes the context's bytes, and is refused
// if they are not free; then the next one tries.
func TestContext(t *testing.T) {
	const context = 300 * mib
	t.Run("fits", func(t *testing.T) {
		d := newDevice(t, sim.Config{Total: gib, Context: context, Display: mib})
		for range 2 {
			if free, total, err := d.MemInfo(); free != 723*mib || total != gib || err != nil {
				t.Errorf("MemInfo() = %d, %d, %v", free, total, err)
			}
		}
		if _, err := d.Alloc(724 * mib); !errors.Is(err, device.ErrOutOfMemory) {
			t.Errorf("more than the context leaves: %v", err)
		}
		if _, err := d.Alloc(722 * mib); err != nil {
			t.Error(err)
		}
		if now, _ := d.Held(); now != 722*mib {
			t.Errorf("%d bytes are held beside the context", now)
		}
	})
	t.Run("does not fit at first", func(t *testing.T) {
		d := newDevice(t, sim.Config{Total: gib, Context: context, Used: gib - context + 1})
		for i := range 3 {
			if _, err := d.Alloc(mib); !errors.Is(err, device.ErrOutOfMemory) {
				t.Errorf("call %d: %v", i, err)
			}
		}
		d.SetUsed(gib - context - 2*mib)
		if r, err := d.Alloc(mib); err != nil || r.Addr != sim.Base {
			t.Errorf("it fits now: %+v, %v", r, err)
		}
		if free, _, err := d.MemInfo(); free != 0 || err != nil {
			t.Errorf("%d bytes free, %v", free, err)
		}
		if d.Counters().Calls != 5 {
			t.Errorf("%d calls", d.Counters().Calls)
		}
	})
	t.Run("not by a call that fails", func(t *testing.T) {
		d := newDevice(t, sim.Config{Total: gib, Context: context, Faults: sim.Faults{FailAt: 1}})
		if _, _, err := d.MemInfo(); err == nil {
			t.Error("no fault")
		}
		d.SetUsed(gib)
		if _, _, err := d.MemInfo(); !errors.Is(err, device.ErrOutOfMemory) {
			t.Errorf("it was taken by a call that failed: %v", err)
		}
		d.SetUsed(0)
		if free, _, err := d.MemInfo(); free != gib-context || err != nil {
			t.Errorf("%d bytes free, %v", free, err)
		}
	})
}

func TestSetUsed(t *testing.T) {
	d := newDevice(t, sim.Config{Total: 10 * mib, Granularity: 1, Display: mib})
	if _, err := d.Alloc(4 * mib); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ used, free uint64 }{
		{2 * mib, 3 * mib}, {0, 5 * mib}, {5 * mib, 0}, {5*mib + 1, 0}, {math.MaxUint64, 0}, {mib, 4 * mib},
	} {
		d.SetUsed(tc.used)
		if free, total, err := d.MemInfo(); free != tc.free || total != 10*mib || err != nil {
			t.Errorf("with %d used: MemInfo() = %d, %d, %v; want %d free", tc.used, free, total, err, tc.free)
		}
	}
}

// TestModel runs random calls on a device and on the rules in the package's
// comment, followed naively.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := sim.Config{
			Total:       rapid.Uint64Range(1, 64*mib).Draw(t, "total"),
			Granularity: rapid.SampledFrom([]uint64{1, 256, 512, 4096, 2 * mib, 3*mib + 1}).Draw(t, "granularity"),
			Costs:       sim.Costs{SmallAlloc: 1, BlockAlloc: 1e2, AllocPerMiB: 1e4, SmallFree: 1e6, BlockFree: 1e8, FreePerMiB: 1e10, MemInfo: 1e13},
		}
		cfg.Used = rapid.Uint64Range(0, cfg.Total/2).Draw(t, "used")
		cfg.Display = rapid.Uint64Range(0, cfg.Total/4).Draw(t, "display")
		cfg.Host = rapid.Uint64Range(1, 64*mib).Draw(t, "host")
		cfg.CCMajor = rapid.SampledFrom([]int{5, 6}).Draw(t, "compute capability")
		d, err := sim.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		type grant struct {
			device.Range
			block int  // the shared block that it lies in; -1: it has its own
			apart bool // it takes nothing of the device
		}
		var (
			grants      []grant
			room        []uint64 // of each shared block that ever was; a whole block: it is closed
			next        = uint64(sim.Base)
			held, peak  uint64
			managed     uint64
			count       device.Counters
			blocksAbove = func(n uint64) time.Duration { return time.Duration((n+2*mib-1)/(2*mib)-1) * 2 }
		)
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				n := rapid.OneOf(rapid.Uint64Range(1, 8*kib), rapid.Uint64Range(1, 3*mib), rapid.Uint64Range(1, 64*mib)).Draw(t, "bytes")
				rounded := n
				for rounded%cfg.Granularity != 0 {
					rounded += cfg.Granularity - rounded%cfg.Granularity
				}
				alloc, apart := d.Alloc, false
				if rapid.Bool().Draw(t, "managed") {
					alloc, apart = d.AllocManaged, cfg.CCMajor >= 6
				}
				got, err := alloc(n)
				count.Calls++
				fits := cfg.Used+cfg.Display+held+rounded <= cfg.Total
				if apart {
					fits = managed+rounded <= cfg.Total+cfg.Host
				}
				if !fits {
					count.Time += cfg.Costs.SmallAlloc
					if !errors.Is(err, device.ErrOutOfMemory) {
						t.Fatalf("%d bytes, apart %v, with %d held and %d managed: %v", n, apart, held, managed, err)
					}
					return
				}
				want := grant{device.Range{Addr: next, Bytes: rounded}, -1, apart}
				if err != nil || got != want.Range {
					t.Fatalf("%d bytes, apart %v: %+v, %v; want %+v", n, apart, got, err, want)
				}
				for next < want.Addr+rounded {
					next += 2 * mib
				}
				if apart {
					managed += rounded
				} else {
					held += rounded
				}
				peak = max(peak, held)
				if rounded >= 2*mib {
					count.Time += cfg.Costs.BlockAlloc + blocksAbove(rounded)*cfg.Costs.AllocPerMiB
					grants = append(grants, want)
					return
				}
				// The open block with the least room that is enough, the first such.
				step := (rounded + 511) / 512 * 512
				for i, r := range room {
					if r < 2*mib && r >= step && (want.block < 0 || r < room[want.block]) {
						want.block = i
					}
				}
				count.Time += cfg.Costs.SmallAlloc
				if want.block < 0 {
					count.Time += cfg.Costs.BlockAlloc - cfg.Costs.SmallAlloc
					want.block = len(room)
					room = append(room, 2*mib)
				}
				room[want.block] -= step
				grants = append(grants, want)
			},
			"free": func(t *rapid.T) {
				if len(grants) == 0 {
					t.Skip("nothing granted")
				}
				i := rapid.IntRange(0, len(grants)-1).Draw(t, "which")
				g := grants[i]
				grants = append(grants[:i], grants[i+1:]...)
				if err := d.Free(g.Addr); err != nil {
					t.Fatal(err)
				}
				if g.apart {
					managed -= g.Bytes
				} else {
					held -= g.Bytes
				}
				count.Calls++
				if g.block < 0 {
					count.Time += cfg.Costs.BlockFree + blocksAbove(g.Bytes)*cfg.Costs.FreePerMiB
					return
				}
				if room[g.block] += (g.Bytes + 511) / 512 * 512; room[g.block] == 2*mib {
					count.Time += cfg.Costs.BlockFree
				} else {
					count.Time += cfg.Costs.SmallFree
				}
			},
			"info": func(t *rapid.T) {
				free, total, err := d.MemInfo()
				if want := cfg.Total - cfg.Used - cfg.Display - held; free != want || total != cfg.Total || err != nil {
					t.Fatalf("MemInfo() = %d, %d, %v; want %d, %d", free, total, err, want, cfg.Total)
				}
				count.Calls++
				count.Time += cfg.Costs.MemInfo
			},
			"": func(t *rapid.T) {
				if now, most := d.Held(); now != held || most != peak || d.HeldManaged() != managed {
					t.Fatalf("Held() = %d, %d and %d managed; want %d, %d and %d", now, most, d.HeldManaged(), held, peak, managed)
				}
				if got := d.Counters(); got != count {
					t.Fatalf("counters are %+v, want %+v", got, count)
				}
			},
		})
	})
}

// TestGoroutines: several at once get memory of their own, and nothing is lost
// or counted twice. The race detector looks on where it is switched on.
func TestGoroutines(t *testing.T) {
	const workers, rounds = 4, 200
	d := newDevice(t, sim.Config{Total: gib, Granularity: 512})
	var mu sync.Mutex
	owner := map[uint64]int{}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range rounds {
				r, err := d.Alloc(uint64(1 + i*777%(3*mib)))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if other, ok := owner[r.Addr]; ok {
					t.Errorf("%#x was granted to %d and then to %d", r.Addr, other, w)
				}
				owner[r.Addr] = w
				mu.Unlock()
				d.SetUsed(uint64(i))
				d.Info()
				d.Held()
				d.Counters()
				if _, _, err := d.MemInfo(); err != nil {
					t.Error(err)
				}
				if err := d.Free(r.Addr); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if now, peak := d.Held(); now != 0 || peak == 0 || len(owner) != workers*rounds {
		t.Errorf("%d bytes are held, at most %d were, in %d grants", now, peak, len(owner))
	}
	if got := d.Counters().Calls; got != 3*workers*rounds {
		t.Errorf("%d calls, want %d", got, 3*workers*rounds)
	}
}

// TestPackageComment runs the request that the package comment walks through.
func TestPackageComment(t *testing.T) {
	d := newDevice(t, sim.Config{Total: 80 << 30})
	r := must[device.Range](t)(d.Alloc(3 * mib))
	c := d.Counters()
	if r != (device.Range{Addr: 0x7f0000000000, Bytes: 4 * mib}) || c.Calls != 1 || c.Time != 162*time.Microsecond { // 160 and 2 of testdata/costs.txt
		t.Errorf("%d bytes at %#x, %d calls of %v", r.Bytes, r.Addr, c.Calls, c.Time)
	}
}
