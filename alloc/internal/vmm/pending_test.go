package vmm_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"gpumem/alloc"
	"gpumem/alloc/internal/vmm"
	"gpumem/device"
	"gpumem/device/sim"
)

// TestReuse: what is pending serves the first request that rounds to the same
// pages in the same end, in the order of the frees, without a driver call.
// TestPressure: what a request does when the budget, or the device, has no room
// for it.
func TestPressure(t *testing.T) {
	const gib = 1 << 30
	for _, tc := range []struct {
		name    string
		upper   []int    // of the blocks, these are of the upper end
		blocks  []uint64 // pages; they fill the budget of 100
		done    []int    // of these the work is done; they are freed first, and those above 32 pages have a batch of their own
		running []int    // of these it runs in a stream of their own; they are freed next, in this order
		ask     uint64   // pages
		refused bool
		waits   bool
		gone    []int // which went back
	}{
		{"what is done goes back, all of it", nil, []uint64{10, 10, 80}, []int{0, 1}, nil, 5, false, false, []int{0, 1}},
		{"what runs stays, if that was enough", nil, []uint64{40, 10, 50}, []int{0}, []int{1}, 15, false, false, []int{0}},
		{"what runs is waited for, if it was not", nil, []uint64{40, 10, 50}, []int{0}, []int{1}, 45, false, true, []int{0, 1}},
		{"what shares a batch with it runs, too", nil, []uint64{10, 10, 80}, []int{0}, []int{1}, 5, false, true, []int{0}},
		{"the first freed, 1.1 times the request", nil, []uint64{9, 1, 1, 1, 88}, nil, []int{0, 1, 2, 3}, 10, false, true, []int{0, 1, 2}},
		{"no more than that", nil, []uint64{11, 1, 88}, nil, []int{0, 1}, 10, false, true, []int{0}},
		{"in the order of the frees", nil, []uint64{10, 20, 70}, nil, []int{1, 0}, 15, false, true, []int{1}},
		{"all, if that is less", nil, []uint64{10, 10, 80}, nil, []int{1, 0}, 20, false, true, []int{1, 0}},
		{"a refusal gives back, too", nil, []uint64{10, 10, 80}, nil, []int{1, 0}, 21, true, true, []int{1, 0}},
		{"nothing is pending", nil, []uint64{10, 90}, nil, nil, 1, true, false, nil},
		{"the upper end stays", []int{0}, []uint64{50, 10, 40}, nil, []int{0, 1}, 8, false, true, []int{1}},
		{"even where it is done, and to no avail", []int{0}, []uint64{50, 50}, []int{0}, nil, 8, true, false, nil},
	} {
		for _, short := range []string{"budget", "device"} {
			t.Run(tc.name+", "+short, func(t *testing.T) {
				cfg := vmm.Config{Budget: 101*page - 1}
				dev := sim.Config{Total: gib}
				if short == "device" {
					cfg.Budget, dev.Used = gib, gib-101*page+1
				}
				b := open(t, dev, cfg)
				var blocks []alloc.Block
				for i, n := range tc.blocks {
					r := alloc.Request{Bytes: n * page}
					if slices.Contains(tc.running, i) {
						r.Stream = 1
					}
					if slices.Contains(tc.upper, i) {
						r.End = alloc.Upper
					}
					blocks = append(blocks, b.alloc(r))
				}
				for _, i := range tc.done {
					b.free(blocks[i])
				}
				for _, i := range tc.running {
					b.work(1, blocks[i])
					b.free(blocks[i])
				}
				b.called()
				before := b.dev.Now()
				_, err := b.a.Alloc(alloc.Request{Bytes: tc.ask * page})
				b.check()
				if tc.refused != errors.Is(err, alloc.ErrNoMemory) || !tc.refused && err != nil {
					t.Fatalf("%v; want refused: %v", err, tc.refused)
				}
				if waited := b.dev.Now()-before > time.Minute; waited != tc.waits {
					t.Errorf("waited: %v, want %v; calls %q", waited, tc.waits, b.called())
				}
				left := b.pending()
				for _, i := range append(slices.Clone(tc.running), tc.done...) {
					if gone := !slices.Contains(left, blocks[i].Addr); gone != slices.Contains(tc.gone, i) {
						t.Errorf("block %d went back: %v", i, gone)
					}
				}
			})
		}
	}
}

// TestBatches: a mark for 64 MiB or 64 blocks, whichever comes first, and no
// other driver call by a free.
func TestBatches(t *testing.T) {
	for _, tc := range []struct {
		name  string
		unit  uint64   // the device's page, in bytes
		frees []uint64 // units
		marks int
	}{
		{"one block", page, []uint64{1}, 0},
		{"64 MiB", page, slices.Repeat([]uint64{1}, 32), 0},
		{"more", page, slices.Repeat([]uint64{1}, 33), 1},
		{"twice that", page, slices.Repeat([]uint64{1}, 65), 2},
		{"what would pass 64 MiB is in the next", page, []uint64{31, 2, 30, 1}, 2},
		{"a large one, alone", page, []uint64{100}, 0},
		{"a large one has its own", page, []uint64{1, 100, 1}, 2},
		{"64 small ones", 4096, slices.Repeat([]uint64{1}, 64), 0},
		{"65 small ones", 4096, slices.Repeat([]uint64{1}, 65), 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dev, err := sim.New(sim.Config{Total: 1 << 30})
			if err != nil {
				t.Fatal(err)
			}
			a, err := vmm.New(small{dev, page / tc.unit}, vmm.Config{})
			if err != nil {
				t.Fatal(err)
			}
			var blocks []alloc.Block
			for _, n := range tc.frees {
				b, err := a.Alloc(alloc.Request{Bytes: n * tc.unit})
				if err != nil {
					t.Fatal(err)
				}
				blocks = append(blocks, b)
			}
			marks, others := 0, 0
			dev.OnCall(func(_ uint64, name string, _ uint64) error {
				switch name {
				case "cuEventRecord":
					marks++
				case "cuEventCreate":
				default:
					others++
				}
				return nil
			})
			for _, b := range blocks {
				if err := a.Free(b); err != nil {
					t.Fatal(err)
				}
				if err := a.Check(); err != nil {
					t.Fatal(err)
				}
			}
			if marks != tc.marks || others > 0 {
				t.Errorf("%d marks and %d other calls, want %d and none", marks, others, tc.marks)
			}
		})
	}
}

// small is a device whose pages are a part of the simulated one's.
type small struct {
	*sim.Device
	part uint64
}

func (d small) Info() device.Info {
	i := d.Device.Info()
	i.Page /= d.part
	return i
}

func (d small) MemCreate(n uint64) (device.Handle, error) { return d.Device.MemCreate(n * d.part) }

func (d small) AddressReserve(n, align uint64) (uint64, error) {
	return d.Device.AddressReserve(n*d.part, align)
}

func (d small) MemMap(addr, n uint64, h device.Handle) error {
	return d.Device.MemMap(addr, n*d.part, h)
}

func (d small) MemSetAccess(addr, n uint64) error { return d.Device.MemSetAccess(addr, n*d.part) }

// TestOpenBatch: a block that is handed out again makes room in the open batch,
// so that a program which reuses what it frees never closes one.
func TestOpenBatch(t *testing.T) {
	b := open(t, sim.Config{Total: 1 << 30}, vmm.Config{})
	k := b.pages(20)
	other := b.pages(1)
	b.free(other)
	b.called()
	for range 1000 {
		b.free(k)
		k = b.pages(20)
	}
	if calls := b.called(); calls != "" {
		t.Errorf("calls %q", calls)
	}
	// In a closed batch it does not: the mark stands.
	b.free(k)
	big := b.pages(40)
	b.called()
	b.free(big)
	if calls := b.called(); calls != "cuEventCreate cuEventRecord" {
		t.Errorf("calls %q, want a mark", calls)
	}
	b.pages(20) // out of the closed batch,
	b.pages(1)  // which is empty now: its event is recorded again
	b.free(b.pages(1))
	if calls := b.called(); calls != callsFresh+" cuEventRecord" {
		t.Errorf("calls %q, want a fresh page, and the event recorded again", calls)
	}
}

// TestStreams: memory does not go back before every stream that it was used in
// is past it. The device finds it out if it does.
// TestOneWait: of one stream only the last mark that matters is waited for.
// TestManyStreams: more than there are bits.
// TestTrim: ours alone. It takes the upper end, too.
// TestNoGarbage: handing out what is pending allocates nothing on the Go heap.
