package bfc_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/internal/bfc"
	"gpumem/device"
	"gpumem/device/sim"
)

// The contract is checked by package alloctest, the placements by the golden
// and differential tests; here is what is bfc's own.

func pool(t *testing.T, total uint64, cfg bfc.Config) (*bfc.Allocator, *sim.Device) {
	t.Helper()
	dev, err := sim.New(sim.Config{Total: total, Granularity: 1})
	if err != nil {
		t.Fatal(err)
	}
	a, err := bfc.New(dev, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a, dev
}

func take(t *testing.T, a *bfc.Allocator, r alloc.Request) alloc.Block {
	t.Helper()
	b, err := a.Alloc(r)
	if err != nil {
		t.Fatalf("Alloc(%+v): %v", r, err)
	}
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBadConfigurations(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]bfc.Config{
		"partitioned and growing":   {Limit: 1 << 20, Spatial: true, Growth: true},
		"odd alignment":             {Limit: 1 << 20, Align: 768},
		"odd collective alignment":  {Limit: 1 << 20, Spatial: true, CollectiveAlign: 768},
		"top down, not partitioned": {Limit: 1 << 20, TopDown: true},
	} {
		if _, err := bfc.New(dev, cfg); !errors.Is(err, alloc.ErrBadRequest) {
			t.Errorf("%s: %v, want ErrBadRequest", name, err)
		}
	}
}

// TestFullDeviceIsRefused: the original asks a full device for 2,304 bytes for
// ever, for 0.9 of that rounds up to it again.
func TestFullDeviceIsRefused(t *testing.T) {
	for n := uint64(1); n <= 3000; n += 100 {
		a, _ := pool(t, 2<<20, bfc.Config{Limit: 4 << 20, Growth: true})
		take(t, a, alloc.Request{Bytes: 2 << 20})
		if _, err := a.Alloc(alloc.Request{Bytes: n}); !errors.Is(err, alloc.ErrNoMemory) {
			t.Fatalf("%d bytes of a full device: %v", n, err)
		}
	}
}

// TestSecondRegionWhileGap is the program on which the original aborts: a
// partitioned pool of 1 GiB on a device of 960 MiB takes a second region while
// there is a gap.
func TestSecondRegionWhileGap(t *testing.T) {
	const mb = 1048576
	a, _ := pool(t, 960*mb, bfc.Config{Limit: 1024 * mb, Spatial: true})
	var blocks []alloc.Block
	for range 8 {
		blocks = append(blocks, take(t, a, alloc.Request{Bytes: 104857600}))
	}
	for range 3 {
		blocks = append(blocks, take(t, a, alloc.Request{Bytes: 31457280}))
	}
	blocks = append(blocks, take(t, a, alloc.Request{Bytes: 36000000}))
	regions := map[int]bool{}
	a.Walk(func(c alloc.Chunk) bool { regions[c.Region] = true; return true })
	if len(regions) != 2 {
		t.Fatalf("%d regions, want 2", len(regions))
	}
	for _, b := range blocks {
		if err := a.Free(b); err != nil {
			t.Fatal(err)
		}
		if err := a.Check(); err != nil {
			t.Fatal(err)
		}
	}
	// One gap only, however the regions empty; and both ends work.
	gaps := 0
	a.Walk(func(c alloc.Chunk) bool {
		if c.Tag == "central_gap" {
			gaps++
		}
		return true
	})
	if gaps != 1 {
		t.Errorf("%d gaps, want 1", gaps)
	}
	take(t, a, alloc.Request{Bytes: 1000, End: alloc.Upper})
	take(t, a, alloc.Request{Bytes: 1000})
}

// TestUpperEnd: collective memory comes from the upper end, exactly cut, and a
// hole is preferred to the gap.
func TestUpperEnd(t *testing.T) {
	a, _ := pool(t, 1<<20, bfc.Config{Limit: 1 << 20, Spatial: true})
	end := func(b alloc.Block) uint64 { return b.Addr + b.Size - sim.Base }
	u1 := take(t, a, alloc.Request{Bytes: 100 << 10, End: alloc.Upper})
	u2 := take(t, a, alloc.Request{Bytes: 300, End: alloc.Upper})
	l1 := take(t, a, alloc.Request{Bytes: 1000})
	if end(u1) != 1<<20 || end(u2) != u1.Addr-sim.Base || u2.Size != 512 || l1.Addr != sim.Base {
		t.Fatalf("u1 %v, u2 %v, l1 %v", u1, u2, l1)
	}
	if err := a.Free(u1); err != nil {
		t.Fatal(err)
	}
	// The hole of u1 is the upper end's: a lower request does not get it, an
	// upper one does, at its top.
	if b := take(t, a, alloc.Request{Bytes: 90 << 10}); b.Addr >= u1.Addr {
		t.Errorf("a lower request got the upper hole: %v", b)
	}
	if b := take(t, a, alloc.Request{Bytes: 90 << 10, End: alloc.Upper}); end(b) != 1<<20 {
		t.Errorf("an upper request did not get the hole's top: %v", b)
	}
	rep := a.Report(alloc.Request{Bytes: 10 << 20, End: alloc.Upper}).String()
	for _, want := range []string{
		"from the upper end requested by op", " tag central_gap next ", " tag upper next ",
		"Spatial partitioning summary for upper end: central gap ",
		"largest same-end binned free chunk 10.0KiB",
	} {
		if !strings.Contains(rep, want) {
			t.Errorf("report lacks %q:\n%s", want, rep)
		}
	}
}

func TestIgnoreAlign(t *testing.T) {
	a, _ := pool(t, 1<<20, bfc.Config{Limit: 1 << 20, Align: 4096, IgnoreAlign: true})
	take(t, a, alloc.Request{Bytes: 256})
	if b := take(t, a, alloc.Request{Bytes: 256, Align: 4096}); b.Addr != sim.Base+256 {
		t.Errorf("at %#x: the alignment was honoured", b.Addr)
	}
}

// TestGarbageCollectionLogs: the original's warning comes once a collection.
func TestGarbageCollectionLogs(t *testing.T) {
	var log []string
	a, _ := pool(t, 8<<20, bfc.Config{Limit: 8 << 20, Growth: true, GC: true, Log: func(m alloc.Message) {
		log = append(log, string(m.Severity)+" "+m.Text)
	}})
	b := take(t, a, alloc.Request{Bytes: 1 << 20})
	if err := a.Free(b); err != nil {
		t.Fatal(err)
	}
	take(t, a, alloc.Request{Bytes: 7 << 20})
	if len(log) != 1 || !strings.HasPrefix(log[0], "W Garbage collection: deallocate free memory regions") {
		t.Errorf("%q", log)
	}
}

func TestAlignment(t *testing.T) {
	const mib = 1 << 20
	pooled := bfc.Config{Limit: 8 * mib}
	for _, tc := range []struct {
		name   string
		cfg    bfc.Config
		align  uint64
		before bool // a block is live already
		want   error
	}{
		{"of 3 is a bad request", pooled, 3, false, alloc.ErrBadRequest},
		{"of 257 is a bad request", pooled, 257, false, alloc.ErrBadRequest},
		{"of 3 is a bad request where alignment is ignored", bfc.Config{Limit: 8 * mib, IgnoreAlign: true}, 3, false, alloc.ErrBadRequest},
		{"of 1 is served", pooled, 1, false, nil},
		{"of 4 MiB is served", pooled, 4 * mib, true, nil},
		{"of 2^62 is never served", pooled, 1 << 62, false, alloc.ErrNever},
		{"of 2^62 is never served by a growing pool", bfc.Config{Limit: 8 * mib, Growth: true}, 1 << 62, false, alloc.ErrNever},
		{"of 2^62 is served where alignment is ignored", bfc.Config{Limit: 8 * mib, IgnoreAlign: true}, 1 << 62, false, nil},
		{"of 2^45 is never served by a pool that lies elsewhere", pooled, 1 << 45, true, alloc.ErrNever},
		{"of 8 MiB is refused while the one place is taken", pooled, 8 * mib, true, alloc.ErrNoMemory},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, dev := pool(t, 8*mib, tc.cfg)
			if tc.before {
				take(t, a, alloc.Request{Bytes: 1})
			}
			_, err := a.Alloc(alloc.Request{Bytes: 1000, Align: tc.align})
			if !errors.Is(err, tc.want) || errors.Is(err, alloc.ErrNever) != errors.Is(tc.want, alloc.ErrNever) {
				t.Errorf("alignment %d: %v, want %v", tc.align, err, tc.want)
			}
			if held, _ := dev.Held(); tc.want != nil && !tc.before && held != 0 {
				t.Errorf("%d bytes were taken for a request that cannot be served", held)
			}
		})
	}
}

// badDevice grants memory at an odd address.
type badDevice struct{ device.Device }

func (d badDevice) Alloc(n uint64) (device.Range, error) {
	r, err := d.Device.Alloc(n)
	r.Addr += 8
	return r, err
}

func (d badDevice) Free(addr uint64) error { return d.Device.Free(addr - 8) }

func TestOddGrant(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 1 << 20, Granularity: 1})
	if err != nil {
		t.Fatal(err)
	}
	a, err := bfc.New(badDevice{dev}, bfc.Config{Limit: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for _, free := range []error{nil, device.ErrInvalidValue} {
		dev.OnCall(func(_ uint64, name string, _ uint64) error {
			if strings.Contains(name, "Free") {
				return free
			}
			return nil
		})
		if _, err := a.Alloc(alloc.Request{Bytes: 1}); err == nil || errors.Is(err, alloc.ErrNoMemory) || !errors.Is(err, free) && free != nil {
			t.Errorf("%v, want an error about the device", err)
		}
	}
	dev.OnCall(nil)
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if held, _ := dev.Held(); held != 0 {
		t.Errorf("%d bytes are held after Close", held)
	}
}

func TestNoMemoryMap(t *testing.T) {
	a, dev := pool(t, 1<<20, bfc.Config{Limit: 1 << 20})
	dev.SetFaults(sim.Faults{RefuseAbove: 1})
	r := alloc.Request{Bytes: 100}
	if _, err := a.Alloc(r); !errors.Is(err, alloc.ErrNoMemory) {
		t.Fatal(err)
	}
	if rep := a.Report(r).String(); !strings.HasSuffix(rep, "W <allocator contains no memory>\n") {
		t.Error(rep)
	}
}

// TestReportShowsNeighbours: a free chunk of the request's bin is listed with what lies
// below and above it, which is what keeps it from being larger.
func TestReportShowsNeighbours(t *testing.T) {
	a, _ := pool(t, 1<<20, bfc.Config{Limit: 1 << 20})
	take(t, a, alloc.Request{Bytes: 200 << 10})
	free := take(t, a, alloc.Request{Bytes: 300 << 10})
	take(t, a, alloc.Request{Bytes: 524 << 10})
	if err := a.Free(free); err != nil {
		t.Fatal(err)
	}
	want := "  Size: 300.0KiB | Requested Size: 300.0KiB | in_use: 0 | bin_num: 10" +
		", prev:   Size: 200.0KiB | Requested Size: 200.0KiB | in_use: 1 | bin_num: -1" +
		", next:   Size: 524.0KiB | Requested Size: 524.0KiB | in_use: 1 | bin_num: -1\n"
	if text := a.Report(alloc.Request{Bytes: 400 << 10}).String(); !strings.Contains(text, want) {
		t.Errorf("the report is\n%swant in it\n%s", text, want)
	}
}

// TestPackageComment runs the case that the package comment walks through.
func TestPackageComment(t *testing.T) {
	a, _ := pool(t, 1<<20, bfc.Config{Limit: 1 << 20})
	at := func(b alloc.Block, addr, size uint64) {
		t.Helper()
		if b.Addr-sim.Base != addr || b.Size != size {
			t.Errorf("[%d, %d), want [%d, %d)", b.Addr-sim.Base, b.Addr-sim.Base+b.Size, addr, addr+size)
		}
	}
	r := alloc.Request{Bytes: 300_000}
	x, y, z := take(t, a, r), take(t, a, r), take(t, a, r)
	at(x, 0, 300_032)
	at(y, 300_032, 300_032)
	at(z, 600_064, 448_512)
	if err := errors.Join(a.Free(x), a.Free(z)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Alloc(alloc.Request{Bytes: 500_000}); !errors.Is(err, alloc.ErrNoMemory) || a.Stats().LargestFreeBlock != 448_512 {
		t.Errorf("D: %v; the largest free block has %d bytes", err, a.Stats().LargestFreeBlock)
	}
	if text := a.Report(alloc.Request{Bytes: 500_000}).String(); !strings.Contains(text, "\nI Free  at 7f0000000000 of size 300032 tag lower next 1\n") {
		t.Error(text)
	}
	if err := a.Free(y); err != nil || a.Stats().LargestFreeBlock != 1<<20 {
		t.Errorf("%v; the largest free block has %d bytes", err, a.Stats().LargestFreeBlock)
	}
}

// TestTwoEnds runs the case at the head of carve.go, in units of 0.5 MiB.
func TestTwoEnds(t *testing.T) {
	const half = 512 << 10
	a, _ := pool(t, 8*half, bfc.Config{Limit: 8 * half, Spatial: true})
	var got []string
	walk := func(want string) {
		t.Helper()
		got = nil
		for c := range a.Walk {
			state := "free"
			if c.Live {
				state = "live"
			}
			got = append(got, fmt.Sprintf("%s %s %d", state, c.Tag, c.Size/half))
		}
		if text := strings.Join(got, ", "); text != want {
			t.Errorf("%s\nwant %s", text, want)
		}
	}
	x := take(t, a, alloc.Request{Bytes: 2 * half})
	walk("live lower 2, free central_gap 6")
	take(t, a, alloc.Request{Bytes: 2 * half, End: alloc.Upper})
	walk("live lower 2, free central_gap 4, live upper 2")
	y := take(t, a, alloc.Request{Bytes: 3 * half})
	walk("live lower 2, live lower 4, live upper 2")
	if err := a.Free(x); err != nil {
		t.Fatal(err)
	}
	walk("free lower 2, live lower 4, live upper 2")
	if _, err := a.Alloc(alloc.Request{Bytes: 2 * half, End: alloc.Upper}); !errors.Is(err, alloc.ErrNoMemory) {
		t.Errorf("collective memory: %v", err)
	}
	if err := a.Free(y); err != nil {
		t.Fatal(err)
	}
	walk("free central_gap 6, live upper 2")
}
