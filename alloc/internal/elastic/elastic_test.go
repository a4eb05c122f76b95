package elastic_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/internal/elastic"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/internal/invariants"
)

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestNew(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 64 * page, NoPages: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = elastic.New(dev, elastic.Config{})
	if !errors.Is(err, device.ErrNotSupported) || !strings.Contains(err.Error(), "bfc") {
		t.Errorf("a device without pages: %v", err)
	}
	if dev, err = sim.New(sim.Config{Total: 64 * page, Granularity: 3 * page}); err != nil {
		t.Fatal(err)
	}
	if _, err = elastic.New(dev, elastic.Config{}); err == nil || !strings.Contains(err.Error(), "power of two") {
		t.Errorf("a page of 6 MiB: %v", err)
	}
	if a := newPool(t, newSim(t, 4), elastic.Config{}); a.Name() != "GPU_0_elastic" {
		t.Errorf("name %q", a.Name())
	}
}

// TestLargePages: other pages than 2 MiB work the same.
func TestLargePages(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 256 * page, Granularity: 8 * page})
	if err != nil {
		t.Fatal(err)
	}
	a := newPool(t, dev, elastic.Config{})
	x := must[alloc.Block](t)(a.Alloc(alloc.Request{Bytes: 9 * page}))
	if s := a.Stats(); s.PoolBytes != 16*page || s.BytesInUse != 9*page {
		t.Errorf("%+v", s)
	}
	if err := errors.Join(a.Check(), a.Free(x), a.Check(), a.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestLimit: the limit holds exactly, in whole pages, and never past the device.
func TestLimit(t *testing.T) {
	for _, tc := range []struct {
		limit uint64
		want  uint64 // pages
	}{{0, 20}, {1, 0}, {page, 1}, {7*page - 1, 6}, {7 * page, 7}, {100 * page, 20}, {math.MaxUint64, 20}} {
		a := newPool(t, newSim(t, 20), elastic.Config{Limit: tc.limit})
		if s := a.Stats(); s.BytesLimit != tc.want*page {
			t.Errorf("limit %d: %d bytes", tc.limit, s.BytesLimit)
		}
		n := uint64(0)
		for {
			_, err := a.Alloc(alloc.Request{Bytes: page})
			if err != nil {
				if !errors.Is(err, alloc.ErrNoMemory) {
					t.Fatal(err)
				}
				break
			}
			n++
		}
		if n != tc.want {
			t.Errorf("limit %d: %d pages were handed out, want %d", tc.limit, n, tc.want)
		}
		if _, err := a.Alloc(alloc.Request{Bytes: (tc.want + 1) * page}); !errors.Is(err, alloc.ErrNever) {
			t.Errorf("limit %d: one page more: %v", tc.limit, err)
		}
	}
}

// TestOddEnds: large blocks share the pages at their edges with each other, and
// not with small ones.
func TestOddEnds(t *testing.T) {
	a := newPool(t, newSim(t, 100), elastic.Config{})
	for range 8 {
		must[alloc.Block](t)(a.Alloc(alloc.Request{Bytes: 5 * page / 4}))
	}
	if n := a.Owned(); n != 10 {
		t.Errorf("8 blocks of a page and a quarter hold %d pages, want 10", n)
	}
	must[alloc.Block](t)(a.Alloc(alloc.Request{Bytes: 4}))
	if n := a.Owned(); n != 11 {
		t.Errorf("4 bytes more hold %d pages, want 11", n)
	}
}

// TestHolesServe: what is free serves a block of its size, in whatever pieces
// it is, and what lives stays where and what it is.
func TestHolesServe(t *testing.T) {
	w := newWorld(t, 64, elastic.Config{})
	for range 64 {
		w.alloc(alloc.Request{Bytes: page})
	}
	for i := range 32 {
		w.free(i, false)
	}
	if !w.alloc(alloc.Request{Bytes: 32 * page}) {
		t.Fatal("32 holes of a page do not serve a block of 32")
	}
	if m := w.a.Moves(); m.Mapped != 96-1 || m.Remapped != 32-1 {
		t.Errorf("%+v; one page was in the right place", m)
	}
	w.check()
	w.close()
}

func TestOneHandle(t *testing.T) {
	w := newWorld(t, 32, elastic.Config{})
	w.alloc(alloc.Request{Bytes: 30 * page})
	w.free(0, false) // 30 idle pages are in the way
	creates, sizes := 0, uint64(0)
	w.dev.OnCall(func(_ uint64, name string, bytes uint64) error {
		if name == "cuMemCreate" {
			creates++
			sizes += bytes
		}
		return nil
	})
	if !w.alloc(alloc.Request{Bytes: 20*page + 1, OneHandle: true}) {
		t.Fatal("refused")
	}
	if creates != 1 || sizes != 21*page {
		t.Errorf("%d handles of %d bytes", creates, sizes)
	}
	b := w.live[0].b
	if b.Size != 21*page {
		t.Errorf("%v", b)
	}
	// Nobody shares its last page.
	w.alloc(alloc.Request{Bytes: 3 * page / 2})
	w.check()
	before := w.a.Owned()
	w.free(0, true)
	if n := before - w.a.Owned(); n != 21 {
		t.Errorf("%d pages went back", n)
	}
	// Others take what it would need.
	w.dev.SetUsed(20 * page)
	if w.alloc(alloc.Request{Bytes: 11 * page, OneHandle: true}) {
		t.Error("served although the device has not that much")
	}
	if !w.alloc(alloc.Request{Bytes: 10 * page, OneHandle: true}) {
		t.Error("refused although the device has it")
	}
	w.check()
	w.close()
}

// TestOthers: a device that has less than the limit because others use it is
// asked again when they have gone.
func TestOthers(t *testing.T) {
	w := newWorld(t, 40, elastic.Config{})
	w.dev.SetUsed(20 * page)
	for range 12 {
		w.alloc(alloc.Request{Bytes: 3 * page / 2})
	}
	w.check()
	if w.alloc(alloc.Request{Bytes: 3 * page}) {
		t.Fatal("served although others use the device")
	}
	w.dev.SetUsed(0)
	if !w.alloc(alloc.Request{Bytes: 3 * page}) {
		t.Fatal("refused although others have gone")
	}
	w.check()
	w.close()
}

// TestTables: a driver that maps no more pages is as one that has no more.
func TestTables(t *testing.T) {
	dev := newSim(t, 64)
	log := 0
	a := newPool(t, dev, elastic.Config{Log: func(m alloc.Message) {
		if log++; !strings.Contains(m.Text, "maps no more than 2") {
			t.Errorf("%s", m.Text)
		}
	}})
	r := rand.New(rand.NewPCG(1, 1))
	mapped, calls := uint64(0), 0 // pages with access, as the driver would count them, if it counted here
	refused := false              // so that what is unmapped next has no access
	dev.OnCall(func(_ uint64, name string, bytes uint64) error {
		if calls++; calls > 1_000_000 {
			return device.ErrLost // a pool that asks the same for ever
		}
		switch name {
		case "cuMemSetAccess":
			if refused = mapped+bytes/page > 24; refused {
				return device.ErrOutOfMemory
			}
			mapped += bytes / page
		case "cuMemUnmap":
			if !refused {
				mapped -= bytes / page
			}
			refused = false
		}
		return nil
	})
	var live []alloc.Block
	served := 0
	for i := range 400 {
		if len(live) > 0 && r.IntN(2) == 0 {
			k := r.IntN(len(live))
			if err := a.Free(live[k]); err != nil {
				t.Fatal(err)
			}
			live[k] = live[len(live)-1]
			live = live[:len(live)-1]
			continue
		}
		b, err := a.Alloc(alloc.Request{Bytes: 1 + r.Uint64N(8*page), OneHandle: i%7 == 0})
		if err != nil {
			if !errors.Is(err, alloc.ErrNoMemory) {
				t.Fatal(err)
			}
			continue
		}
		served++
		live = append(live, b)
		if err := a.Check(); err != nil {
			t.Fatal(err)
		}
	}
	if served < 100 || log != 1 {
		t.Errorf("%d requests were served, %d messages", served, log)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if held, _ := dev.Held(); held != 0 {
		t.Errorf("%d bytes are held", held)
	}
}

// TestFewAddresses: a driver that reserves few addresses makes placing harder.
// Idle pages make way, and where that is not enough the refusal says so.
func TestFewAddresses(t *testing.T) {
	for seed := range uint64(60) {
		w := newWorld(t, 60, elastic.Config{})
		w.few = true
		asked := 0
		w.dev.OnCall(func(_ uint64, name string, bytes uint64) error {
			if name == "cuMemAddressReserve" && bytes > 256*page {
				asked++
				return device.ErrOutOfMemory
			}
			return nil
		})
		r := rand.New(rand.NewPCG(seed, 4))
		for range 300 {
			if len(w.live) > 0 && r.IntN(5) < 2 {
				w.free(r.IntN(len(w.live)), false)
			} else {
				bytes := 1 + r.Uint64N(2*page)
				if r.IntN(4) == 0 {
					bytes = r.Uint64N(40 * page)
				}
				w.alloc(alloc.Request{Bytes: bytes + 1, OneHandle: r.IntN(5) == 0})
			}
			w.check()
		}
		if asked == 0 {
			t.Fatal("addresses were reserved at the first go")
		}
		w.close()
	}
}

// TestAddressesInPieces: with four times as many addresses as pages, single pages all over
// leave no run that 40 pages can be aligned in to 128. Idle ones among them make way.
func TestAddressesInPieces(t *testing.T) {
	for _, one := range []bool{false, true} {
		w := newWorld(t, 60, elastic.Config{})
		w.few = true
		w.dev.OnCall(func(_ uint64, name string, bytes uint64) error {
			if name == "cuMemAddressReserve" && bytes > 256*page {
				return device.ErrOutOfMemory
			}
			return nil
		})
		for range 12 {
			w.alloc(alloc.Request{Bytes: page})
		}
		big := alloc.Request{Bytes: 40 * page, OneHandle: one, Align: 128 * page}
		served := 0
		for served == 0 && len(w.live) > 0 {
			if _, err := w.a.Alloc(big); err == nil {
				served = len(w.live)
			} else if !strings.Contains(err.Error(), "no addresses in one piece") {
				t.Fatal(err)
			} else {
				w.free(0, false)
			}
		}
		if served == 0 || served == 12 {
			t.Errorf("one handle %v: served beside %d blocks", one, served)
		}
		if err := errors.Join(w.a.Check(), w.a.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBlocksAllOverLeaveAddresses: when blocks of a few pages fill the device, each with
// air, and most are freed, or none is, a block of all that is free finds addresses.
func TestBlocksAllOverLeaveAddresses(t *testing.T) {
	const pages = 1024
	for _, size := range []uint64{page, page + 256, 3 * page, 10*page + 256} {
		for _, keep := range []uint64{1, 4, 16} { // one block in keep stays
			a := newPool(t, newSim(t, pages), elastic.Config{})
			each := (size-1)/page + 1
			var live []alloc.Block
			for n := uint64(0); (n+1)*each <= pages-pages/16; n++ {
				b, err := a.Alloc(alloc.Request{Bytes: size})
				if err != nil {
					t.Fatal(err)
				}
				live = append(live, b)
			}
			for i, b := range live {
				if uint64(i)%keep != 0 {
					if err := a.Free(b); err != nil {
						t.Fatal(err)
					}
				}
			}
			if _, err := a.Alloc(alloc.Request{Bytes: (pages - a.Held()) * page}); err != nil {
				t.Errorf("1 of %d blocks of %d bytes is live: %d of %d pages are held, and the rest is refused: %v", keep, size, a.Held(), pages, err)
			}
		}
	}
}

// TestSmallBlocksAreDense: equal blocks below a page lie across the ends of pages.
func TestSmallBlocksAreDense(t *testing.T) {
	for _, size := range []uint64{600 << 10, 1 << 20, 1<<20 + 256, 5 << 18, 7 << 18, page - 256} {
		a := newPool(t, newSim(t, 4096), elastic.Config{})
		for range 1000 {
			if _, err := a.Alloc(alloc.Request{Bytes: size}); err != nil {
				t.Fatal(err)
			}
		}
		if most := 1000*size*102/100/page + 1; a.Held() > most {
			t.Errorf("1,000 blocks of %d bytes hold %d pages, want at most %d", size, a.Held(), most)
		}
	}
}

// TestOwnedIsBounded: a program that runs once owns at most an eighth and 32 MiB more than it
// held at most, however its holes lie, and although nothing waits for the device.
func TestOwnedIsBounded(t *testing.T) {
	for _, name := range []string{"peers/minimalloc_A", "peers/minimalloc_B", "peers/minimalloc_C", "peers/minimalloc_D", "peers/minimalloc_E"} {
		tr := readTrace(t, name)
		a := newPool(t, newSim(t, 40<<9), elastic.Config{})
		held := uint64(0)
		if !tr.replay(t, a, func(int) { held = max(held, a.Held()) }) {
			t.Fatalf("%s is refused", name)
		}
		if most := held + max(held/8, 16); a.Stats().PeakPoolBytes/page > most {
			t.Errorf("%s: at most %d pages are held and %d owned, want %d", name, held, a.Stats().PeakPoolBytes/page, most)
		}
	}
}

func TestNoAddresses(t *testing.T) {
	dev := newSim(t, 40)
	a := newPool(t, dev, elastic.Config{})
	dev.OnCall(func(_ uint64, name string, _ uint64) error {
		if name == "cuMemAddressReserve" {
			return device.ErrOutOfMemory
		}
		return nil
	})
	if _, err := a.Alloc(alloc.Request{Bytes: 1}); !errors.Is(err, device.ErrOutOfMemory) || !strings.Contains(err.Error(), "addresses") {
		t.Errorf("%v", err)
	}
	dev.OnCall(nil)
	if _, err := a.Alloc(alloc.Request{Bytes: 1}); err != nil {
		t.Error(err)
	}
}

// TestTrim: Trim(0) leaves what the blocks hold, and the reserve.
func TestTrim(t *testing.T) {
	for _, reserve := range []uint64{0, 5} {
		w := newWorld(t, 64, elastic.Config{Reserve: reserve * page})
		for range 10 {
			w.alloc(alloc.Request{Bytes: 4 * page})
		}
		for range 7 {
			w.free(1, false)
		}
		for _, keep := range []uint64{35 * page, 30*page + 1, 20 * page, 0, 0} {
			w.trim(keep, reserve*page)
			w.check()
		}
		if n := w.a.Owned(); n != 12+reserve {
			t.Errorf("%d pages are held after Trim(0)", n)
		}
		w.close()
	}
}

func TestEagerHoldsWhatLives(t *testing.T) {
	w := newWorld(t, 64, elastic.Config{Eager: true, Reserve: 2 * page})
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		if len(w.live) > 0 && r.IntN(2) == 0 {
			w.free(r.IntN(len(w.live)), false)
			if n := w.a.Owned(); n > w.a.Held()+2 {
				t.Fatalf("%d pages are held, blocks hold %d", n, w.a.Held())
			}
		} else {
			w.alloc(alloc.Request{Bytes: 1 + r.Uint64N(6*page)})
		}
		w.check()
	}
	w.close()
}

// TestFreeCallsNoDriver: nor does an allocation that fits where memory is.
func TestFreeCallsNoDriver(t *testing.T) {
	dev := newSim(t, 64)
	a := newPool(t, dev, elastic.Config{})
	get := must[alloc.Block](t)
	x, y := get(a.Alloc(alloc.Request{Bytes: 7 * page})), get(a.Alloc(alloc.Request{Bytes: 500}))
	calls := dev.Counters().Calls
	if err := errors.Join(a.Free(x), a.FreeAddr(y.Addr)); err != nil {
		t.Fatal(err)
	}
	get(a.Alloc(alloc.Request{Bytes: 3 * page}))
	get(a.Alloc(alloc.Request{Bytes: 4 * page}))
	get(a.Alloc(alloc.Request{Bytes: page / 2}))
	if n := dev.Counters().Calls - calls; n != 0 {
		t.Errorf("%d driver calls", n)
	}
}

// TestThrash: a program that moves pages about all the time is told so, once, and
// again only when it has become twice as bad.
func TestThrash(t *testing.T) {
	var log []alloc.Message
	a := newPool(t, newSim(t, 40), elastic.Config{Log: func(m alloc.Message) { log = append(log, m) }})
	r := rand.New(rand.NewPCG(2, 2))
	busy := func() {
		var live []alloc.Block
		for range 30_000 {
			if b, err := a.Alloc(alloc.Request{Bytes: 1 + r.Uint64N(9*page)}); err == nil {
				live = append(live, b)
			} else if err = a.Free(live[0]); err == nil {
				live = live[1:]
			} else {
				t.Fatal(err)
			}
		}
		for _, b := range live {
			if err := a.Free(b); err != nil {
				t.Fatal(err)
			}
		}
	}
	busy()
	if len(log) != 1 || !strings.Contains(log[0].Text, "remapped in the last 4096 operations") {
		t.Fatalf("%d messages: %v", len(log), log)
	}
	for range 10_000 { // quiet
		b, err := a.Alloc(alloc.Request{Bytes: page})
		if err != nil || a.Free(b) != nil {
			t.Fatal("refused")
		}
	}
	if len(log) != 1 {
		t.Fatalf("%d messages when it is quiet", len(log))
	}
	if busy(); len(log) != 1 {
		t.Fatalf("%d messages when it begins anew, and is no worse", len(log))
	}
}

func TestReport(t *testing.T) {
	dev := newSim(t, 64)
	a := newPool(t, dev, elastic.Config{})
	get := must[alloc.Block](t)
	x := get(a.Alloc(alloc.Request{Bytes: 10 * page}))
	get(a.Alloc(alloc.Request{Bytes: 3 * page / 2}))
	if err := a.Free(x); err != nil {
		t.Fatal(err)
	}
	dev.SetUsed(52 * page)
	r := alloc.Request{Bytes: 60*page + 1}
	if _, err := a.Alloc(r); !errors.Is(err, alloc.ErrNoMemory) {
		t.Fatal(err)
	}
	text := a.Report(r).String()
	for _, want := range []string{"61 pages of 2 MiB", "2 held by blocks", "limit 64", "others hold"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if text := a.Report(alloc.Request{Bytes: math.MaxUint64, OneHandle: true}).String(); !strings.Contains(text, "in one handle") {
		t.Error(text)
	}
}

// TestWalk: regions are runs of pages; what is stuck or unmapped is not shown.
func TestWalk(t *testing.T) {
	a := newPool(t, newSim(t, 64), elastic.Config{})
	get := must[alloc.Block](t)
	get(a.Alloc(alloc.Request{Bytes: 10*page + 1, Site: 7, Stream: 0}))
	get(a.Alloc(alloc.Request{Bytes: 300}))
	var got []string
	a.Walk(func(c alloc.Chunk) bool {
		got = append(got, fmt.Sprint(c.Region, c.Live, c.Size, c.Requested, c.Site))
		return true
	})
	want := []string{
		fmt.Sprint(0, true, 10*page+256, 10*page+1, 7),
		fmt.Sprint(0, false, page-256, 0, 0),
		fmt.Sprint(1, true, 512, 300, 0),
		fmt.Sprint(1, false, page-512, 0, 0),
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
	a.Walk(func(alloc.Chunk) bool { return false })
	if a.MetadataBytes() == 0 || a.PeakChunks() < 4 {
		t.Error("no figures")
	}
}

func TestBadFrees(t *testing.T) {
	a := newPool(t, newSim(t, 64), elastic.Config{})
	get := must[alloc.Block](t)
	x := get(a.Alloc(alloc.Request{Bytes: 10 * page}))
	other := newPool(t, newSim(t, 64), elastic.Config{})
	for name, tc := range map[string]struct {
		err  error
		want error
	}{
		"inside":           {a.FreeAddr(x.Addr + 256), alloc.ErrNotAllocated},
		"free":             {a.FreeAddr(x.Addr + 20*page), alloc.ErrDoubleFree},
		"elsewhere":        {a.FreeAddr(4096), alloc.ErrNotAllocated},
		"another's":        {other.Free(x), alloc.ErrNotAllocated},
		"before anything":  {other.FreeAddr(x.Addr), alloc.ErrNotAllocated},
		"no block there":   {func() error { _, err := a.BlockAt(x.Addr + 256); return err }(), alloc.ErrNotAllocated},
		"empty":            {a.Free(alloc.Block{}), nil},
		"address 0":        {a.FreeAddr(0), nil},
		"bad alignment":    {func() error { _, err := a.Alloc(alloc.Request{Bytes: 1, Align: 3}); return err }(), alloc.ErrBadRequest},
		"larger than 2^64": {func() error { _, err := a.Alloc(alloc.Request{Bytes: math.MaxUint64}); return err }(), alloc.ErrTooLarge},
	} {
		if !errors.Is(tc.err, tc.want) {
			t.Errorf("%s: %v, want %v", name, tc.err, tc.want)
		}
	}
	if err := a.Check(); err != nil {
		t.Error(err)
	}
}

// TestNoGarbage: an operation that needs no driver allocates nothing.
func TestNoGarbage(t *testing.T) {
	if invariants.Enabled {
		t.Skip("the checks of an invariants build allocate")
	}
	a := newPool(t, newSim(t, 512), elastic.Config{})
	var blocks [100]alloc.Block
	turn := func() {
		for i := range blocks {
			blocks[i], _ = a.Alloc(alloc.Request{Bytes: uint64(i*i*700 + 1), Stream: uint32(i % 3)})
		}
		for i := range blocks {
			if k := i * 37 % len(blocks); i%2 == 0 {
				_ = a.Free(blocks[k])
			} else {
				_ = a.FreeAddr(blocks[k].Addr)
			}
		}
	}
	for range 5 {
		turn()
	}
	if n := testing.AllocsPerRun(200, turn); n != 0 {
		t.Errorf("%v allocations on the Go heap for %d operations", n, 2*len(blocks))
	}
}
