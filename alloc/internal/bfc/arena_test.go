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
	"gpumem/size"
)

const mib = 1 << 20

// growing is a pool that begins with some MiB and may grow to others, on a device of which
// another program may take a part.
type growing struct {
	t     *testing.T
	dev   *sim.Device
	pool  *bfc.Allocator
	named map[string]alloc.Block
	other []device.Range
	base  uint64
	log   []string
}

func newGrowing(t *testing.T, initial, limit, total uint64) *growing {
	t.Helper()
	dev, err := sim.New(sim.Config{Total: total * mib})
	if err != nil {
		t.Fatal(err)
	}
	g := &growing{t: t, dev: dev, named: map[string]alloc.Block{}}
	g.pool, err = bfc.New(dev, bfc.Config{
		Limit: limit * mib, Initial: initial * mib, Spatial: true, TopDown: true, CollectiveAlign: 2 * mib, RegionUnit: 2 * mib,
		Log: func(m alloc.Message) { g.log = append(g.log, m.Text) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// do runs a line of a case: "A 3", "A 3 collective" and "A 3 align=8" allocate MiB, "free A", "other 5"
// has another program take MiB, "other -" has it release them, all; and returns what came
// of it: where the block lies in MiB, or why not; and after a blank, how much is held.
func (g *growing) do(line string) string {
	g.t.Helper()
	words := strings.Fields(line)
	var n float64
	out := "ok"
	switch words[0] {
	case "free":
		if err := g.pool.Free(g.named[words[1]]); err != nil {
			g.t.Fatal(err)
		}
	case "other":
		if words[1] == "-" {
			for _, r := range g.other {
				if err := g.dev.Free(r.Addr); err != nil {
					g.t.Fatal(err)
				}
			}
			g.other = nil
			break
		}
		if _, err := fmt.Sscan(words[1], &n); err != nil {
			g.t.Fatal(err)
		}
		r, err := g.dev.Alloc(uint64(n * mib))
		if err != nil {
			g.t.Fatal(err)
		}
		g.other = append(g.other, r)
	default:
		if _, err := fmt.Sscan(words[1], &n); err != nil {
			g.t.Fatal(err)
		}
		req := alloc.Request{Bytes: uint64(n * mib)}
		for _, word := range words[2:] {
			switch align, ok := strings.CutPrefix(word, "align="); {
			case word == "collective":
				req.End = alloc.Upper
			case ok:
				if _, err := fmt.Sscan(align, &n); err != nil {
					g.t.Fatal(err)
				}
				req.Align = uint64(n * mib)
			default:
				g.t.Fatalf("what is %q?", word)
			}
		}
		b, err := g.pool.Alloc(req)
		switch {
		case errors.Is(err, alloc.ErrNever):
			out = "never"
		case errors.Is(err, alloc.ErrNoMemory):
			out = "no"
		case err != nil:
			g.t.Fatal(err)
		default:
			g.named[words[0]] = b
			if g.base == 0 {
				g.pool.Walk(func(c alloc.Chunk) bool { g.base = c.Addr; return false })
			}
			out = fmt.Sprint(float64(b.Addr-g.base)/mib, "-", float64(b.Addr-g.base+b.Size)/mib)
		}
	}
	if err := g.pool.Check(); err != nil {
		g.t.Fatal(err)
	}
	return fmt.Sprintf("%s; %d", out, g.pool.Stats().PoolBytes/mib)
}

// TestGrowthInReservedAddresses has a case for each rule of the design that arena.go
// names. There is no release to ask; TestDifferential compares with a slow model.
func TestGrowthInReservedAddresses(t *testing.T) {
	for _, tc := range []struct {
		name                  string
		initial, limit, total uint64 // MiB
		lines                 []string
	}{
		{"the initial size is taken at the first request and nothing else", 8, 12, 64, []string{
			"A 1 -> 7-8; 8", "B 7 -> 0-7; 8",
		}},
		{"a miss asks for all that the usual size allows", 8, 12, 64, []string{
			"A 4 -> 4-8; 8", "B 4 -> 0-4; 8", "C 2 -> 10-12; 12",
		}},
		{"the usual size doubles, and bounds what is asked for", 4, 64, 64, []string{
			"A 4 -> 0-4; 4", "B 1 -> 11-12; 12", "C 8 -> 20-28; 28", // 16 more, since a free chunk of 7 is too small
		}},
		{"a block spans the old boundary", 8, 16, 64, []string{
			"A 3 -> 5-8; 8", "B 1 -> 4-5; 8", "free A -> ok; 8", "C 9 -> 5-16; 16", // the rest of 2 is not worth a cut
		}},
		{"the gap at the end grows when nothing ordinary lives", 8, 12, 64, []string{
			"A 2 collective -> 0-2; 8", "B 9 -> 2-12; 12",
		}},
		{"at the limit the request is refused", 8, 12, 64, []string{
			"A 8 -> 0-8; 8", "B 4 -> 8-12; 12", "C 1 -> no; 12", "free B -> ok; 12", "C 1 -> 11-12; 12",
		}},
		{"above the limit it is never served", 8, 12, 64, []string{"A 13 -> never; 8"}},
		{"a first request above the initial size grows at once", 8, 32, 64, []string{"A 20 -> 0-32; 32"}},
		{"collective memory never makes the pool grow", 8, 64, 64, []string{
			"A 4 -> 4-8; 8", "B 2 collective -> 0-2; 8", "C 2 -> 2-4; 8", "D 2 collective -> no; 8",
		}},
		{"collective memory of more than the initial size is never served", 8, 64, 64, []string{
			"A 10 collective -> never; 0", "B 1 -> 7-8; 8", "A 10 collective -> never; 8",
		}},
		{"collective memory of just the initial size is", 8, 16, 64, []string{"A 8 collective -> 0-8; 8", "B 1 -> 15-16; 16"}},
		{"collective memory stays below the old boundary in a gap that crosses it", 8, 16, 64, []string{
			"A 8 -> 0-8; 8", "B 1 -> 15-16; 16", "free A -> ok; 16", "free B -> ok; 16",
			"C 6 collective -> 0-6; 16", "D 4 collective -> no; 16", "E 2 collective -> 6-8; 16", "F 8 -> 8-16; 16",
		}},
		{"collective padding stays below it, too", 7, 16, 64, []string{ // 8 MiB in whole pages
			"A 8 -> 0-8; 8", "B 8 -> 8-16; 16", "free A -> ok; 16", "free B -> ok; 16",
			"C 1 collective -> 0-1; 16", "D 5 collective -> 2-7; 16", "E 1 collective -> no; 16",
		}},
		{"where less is free the initial region shrinks", 32, 48, 20, []string{
			"A 1 -> 19-20; 20", "B 16 collective -> 0-16; 20", "C 4 collective -> no; 20",
		}},
		{"where memory is missing it backs off in whole pages", 8, 64, 32, []string{
			"A 8 -> 0-8; 8", "other 20 -> ok; 8", "B 1 -> 11-12; 12", "C 1 -> 10-11; 12",
		}},
		{"what completes the free tail is enough", 8, 64, 32, []string{
			"A 4 -> 4-8; 8", "B 4 -> 0-4; 8", "free A -> ok; 8", "other 22 -> ok; 8", "C 6 -> 4-10; 10",
		}},
		{"not even that is free", 8, 64, 32, []string{
			"A 4 -> 4-8; 8", "B 4 -> 0-4; 8", "free A -> ok; 8", "other 24 -> ok; 8", "C 6 -> no; 8",
			"other - -> ok; 8", "C 6 -> 18-24; 24",
		}},
		{"that is tried, too, where steps pass it by", 8, 128, 128, []string{
			"A 8 -> 0-8; 8", "other 84 -> ok; 8", "B 36 -> 8-44; 44", // after 64, 56, 50, 44 and 38
		}},
		{"an alignment may need more than the usual size", 2, 64, 64, []string{
			"A 2 -> 0-2; 2", "B 3 align=8 -> 8-11; 12", "C 6 -> 2-8; 12",
		}},
		{"the initial size is cut to pages, too", 13, 13, 64, []string{"A 1 -> 11-12; 12", "B 13 -> never; 12"}},
		{"a limit below a page gives nothing", 1, 1, 64, []string{"A 1 -> never; 0"}},
		{"a freed extension stays mapped", 8, 12, 64, []string{
			"A 8 -> 0-8; 8", "B 4 -> 8-12; 12", "free B -> ok; 12", "free A -> ok; 12", "C 12 -> 0-12; 12",
		}},
		{"the limit is rounded down to pages", 8, 13, 64, []string{"A 8 -> 0-8; 8", "B 4 -> 8-12; 12", "C 1 -> no; 12"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newGrowing(t, tc.initial, tc.limit, tc.total)
			for _, line := range tc.lines {
				line, want, _ := strings.Cut(line, " -> ")
				if got := g.do(line); got != want {
					t.Fatalf("%s: got %s, want %s\nlog: %s", line, got, want, strings.Join(g.log, "\n"))
				}
			}
			before := g.dev.Counters()
			if err := g.pool.Close(); err != nil {
				t.Fatal(err)
			}
			for _, r := range g.other {
				if err := g.dev.Free(r.Addr); err != nil {
					t.Fatal(err)
				}
			}
			if free, total, err := g.dev.MemInfo(); err != nil || free != total {
				t.Errorf("after Close %d of %d bytes are free (%v); %+v", free, total, err, before)
			}
		})
	}
}

// TestGrowthNeedsItsDevice: settings that contradict each other, and a device without
// pages, are refused before anything is taken.
func TestGrowthNeedsItsDevice(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 64 * mib})
	if err != nil {
		t.Fatal(err)
	}
	grows := bfc.Config{Limit: 64 * mib, Initial: 32 * mib, Spatial: true, TopDown: true}
	for name, change := range map[string]func(*bfc.Config){
		"without two ends":              func(c *bfc.Config) { c.Spatial, c.TopDown = false, false },
		"ordinary memory at the bottom": func(c *bfc.Config) { c.TopDown = false },
		"with collection":               func(c *bfc.Config) { c.GC = true },
		"with regions that coalesce":    func(c *bfc.Config) { c.Coalesce = true },
		"beginning above the limit":     func(c *bfc.Config) { c.Initial = 65 * mib },
	} {
		cfg := grows
		change(&cfg)
		if _, err := bfc.New(dev, cfg); !errors.Is(err, alloc.ErrBadRequest) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	type plain struct{ device.Device }
	if _, err := bfc.New(plain{dev}, grows); !errors.Is(err, device.ErrNotSupported) {
		t.Errorf("a device without pages: got %v", err)
	}
}

// failing is a device one of whose calls fails as often as left says, and which counts the
// reservations that are not freed.
type failing struct {
	*sim.Device
	left     map[string]int
	reserved int
}

func (d *failing) fail(call string) error {
	if d.left[call]--; d.left[call] >= 0 {
		return errors.New(call + " failed")
	}
	return nil
}

func (d *failing) AddressReserve(n, align uint64) (uint64, error) {
	if err := d.fail("AddressReserve"); err != nil {
		return 0, fmt.Errorf("%w: %w", device.ErrOutOfMemory, err)
	}
	d.reserved++
	return d.Device.AddressReserve(n, align)
}

func (d *failing) AddressFree(addr, n uint64) error {
	if err := d.fail("AddressFree"); err != nil {
		return err
	}
	d.reserved--
	return d.Device.AddressFree(addr, n)
}

func (d *failing) MemCreate(n uint64) (device.Handle, error) {
	if err := d.fail("MemCreate"); err != nil {
		return 0, err
	}
	return d.Device.MemCreate(n)
}

func (d *failing) MemMap(addr, n uint64, h device.Handle) error {
	if err := d.fail("MemMap"); err != nil {
		return err
	}
	return d.Device.MemMap(addr, n, h)
}

func (d *failing) MemSetAccess(addr, n uint64) error {
	if err := d.fail("MemSetAccess"); err != nil {
		return err
	}
	return d.Device.MemSetAccess(addr, n)
}

func (d *failing) MemUnmap(addr, n uint64) error {
	if err := d.fail("MemUnmap"); err != nil {
		return err
	}
	return d.Device.MemUnmap(addr, n)
}

func (d *failing) MemRelease(h device.Handle) error {
	if err := d.fail("MemRelease"); err != nil {
		return err
	}
	return d.Device.MemRelease(h)
}

// TestGrowthThatFailsLeavesThePool: a call that fails while the pool grows is the request's
// error, and no refusal; memory that was taken is released at once, or, where that fails,
// counts until it is; the next request grows the pool; and Close leaves nothing.
func TestGrowthThatFailsLeavesThePool(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fails map[string]int
		held  uint64 // MiB after the failed growth, of which 8 are the pool's
	}{
		{"no memory is created", map[string]int{"MemCreate": 1}, 8},
		{"it is not mapped", map[string]int{"MemMap": 1}, 8},
		{"it has no access", map[string]int{"MemSetAccess": 1}, 8},
		{"it has no access, and stays mapped", map[string]int{"MemSetAccess": 1, "MemUnmap": 1}, 24},
		{"it has no access, and is not released", map[string]int{"MemSetAccess": 1, "MemRelease": 1}, 24},
		{"it is not mapped, and not released for a while", map[string]int{"MemMap": 1, "MemRelease": 2}, 24},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dev, err := sim.New(sim.Config{Total: 64 * mib})
			if err != nil {
				t.Fatal(err)
			}
			d := &failing{Device: dev, left: map[string]int{}}
			a, err := bfc.New(d, bfc.Config{Limit: 64 * mib, Initial: 8 * mib, Spatial: true, TopDown: true})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := a.Alloc(alloc.Request{Bytes: 8 * mib}); err != nil {
				t.Fatal(err)
			}
			d.left = tc.fails
			if _, err := a.Alloc(alloc.Request{Bytes: 4 * mib}); err == nil || errors.Is(err, alloc.ErrNoMemory) {
				t.Errorf("the request whose growth fails: %v", err)
			}
			free, _, _ := dev.MemInfo()
			if s := a.Stats(); s.PoolBytes != tc.held*mib || 64*mib-free != tc.held*mib {
				t.Errorf("the pool says %d bytes, the device %d; want %d MiB", s.PoolBytes, 64*mib-free, tc.held)
			}
			if err := a.Check(); err != nil {
				t.Error(err)
			}
			b, err := a.Alloc(alloc.Request{Bytes: 4 * mib})
			for range 2 { // while the device fails
				if err != nil {
					b, err = a.Alloc(alloc.Request{Bytes: 4 * mib})
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			if s := a.Stats(); b.Size != 4*mib || s.PoolBytes != 24*mib {
				t.Errorf("then %v in a pool of %d bytes", b, s.PoolBytes)
			}
			if err := a.Check(); err != nil {
				t.Error(err)
			}
			if err := a.Close(); err != nil {
				t.Error(err)
			}
			if free, total, _ := dev.MemInfo(); free != total || d.reserved != 0 {
				t.Errorf("after Close %d of %d bytes are free, and %d reservations are left", free, total, d.reserved)
			}
		})
	}
}

// TestReservationThatFailsIsNoRefusal: addresses that cannot be had are an error, since to
// ask for less memory would not help; nothing is taken, and the next request tries again.
func TestReservationThatFailsIsNoRefusal(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 64 * mib})
	if err != nil {
		t.Fatal(err)
	}
	d := &failing{Device: dev, left: map[string]int{"AddressReserve": 1}}
	a, err := bfc.New(d, bfc.Config{Limit: 64 * mib, Initial: 8 * mib, Spatial: true, TopDown: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Alloc(alloc.Request{Bytes: mib}); err == nil || errors.Is(err, alloc.ErrNoMemory) {
		t.Errorf("got %v", err)
	}
	if s := a.Stats(); s.PoolBytes != 0 {
		t.Errorf("%d bytes are held", s.PoolBytes)
	}
	if _, err := a.Alloc(alloc.Request{Bytes: mib}); err != nil {
		t.Error(err)
	}
}

// TestCloseThatFailsKeepsTheAddresses: what the device does not take back counts, and its
// addresses are not freed under it.
func TestCloseThatFailsKeepsTheAddresses(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 64 * mib})
	if err != nil {
		t.Fatal(err)
	}
	d := &failing{Device: dev, left: map[string]int{}}
	a, err := bfc.New(d, bfc.Config{Limit: 64 * mib, Initial: 8 * mib, Spatial: true, TopDown: true})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := a.Alloc(alloc.Request{Bytes: 8 * mib}); err != nil {
			t.Fatal(err)
		}
	}
	d.left["MemUnmap"] = 1
	if err := a.Close(); err == nil {
		t.Error("Close says nothing")
	}
	if s := a.Stats(); s.PoolBytes != 8*mib || d.reserved != 1 {
		t.Errorf("%d bytes are held, in %d reservations", s.PoolBytes, d.reserved)
	}
}

// TestCollectiveMemoryWithoutAlignment: a request above the initial size is never served,
// before the pool has taken anything, too.
func TestCollectiveMemoryWithoutAlignment(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 64 * mib})
	if err != nil {
		t.Fatal(err)
	}
	a, err := bfc.New(dev, bfc.Config{Limit: 64 * mib, Initial: 8 * mib, Spatial: true, TopDown: true})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := a.Alloc(alloc.Request{Bytes: 9 * mib, End: alloc.Upper}); !errors.Is(err, alloc.ErrNever) {
			t.Errorf("got %v", err)
		}
		if _, err := a.Alloc(alloc.Request{Bytes: mib}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRefusalOfCollectiveMemorySaysWhatIsUsable: neither the account nor the report counts
// what lies above the old boundary, or speaks of growth that never comes.
func TestRefusalOfCollectiveMemorySaysWhatIsUsable(t *testing.T) {
	for _, tc := range []struct {
		name  string
		lines []string
		want  uint64 // usable, MiB
	}{
		{"a gap that crosses the boundary", []string{"A 8", "B 1", "free A", "free B", "C 6 collective"}, 2},
		{"a gap above it", []string{"A 8", "B 8", "free A", "free B", "C 8 collective"}, 0},
		{"a gap below it", []string{"A 4", "B 2 collective"}, 2},
		{"no gap", []string{"A 4", "B 4"}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newGrowing(t, 8, 16, 64)
			for _, line := range tc.lines {
				g.do(line)
			}
			r := alloc.Request{Bytes: 4 * mib, End: alloc.Upper}
			if _, err := g.pool.Alloc(r); !errors.Is(err, alloc.ErrNoMemory) {
				t.Fatal(err)
			}
			c := alloc.Explain(g.pool, r, 48*mib)
			if text := c.Text(nil); !strings.Contains(text, "stays in the first 8 MiB of the pool") || !strings.Contains(text, "can serve it is "+size.Format(tc.want*mib)+".") || strings.Contains(text, "growth") {
				t.Errorf("want %d MiB usable:\n%s", tc.want, text)
			}
			report := g.pool.Report(r).String()
			if !strings.Contains(report, fmt.Sprintf("usable by lower end %s,", map[uint64]string{0: "0B", 2: "2.00MiB"}[tc.want])) || !strings.Contains(report, "(growth enabled)") {
				t.Errorf("want %d MiB usable:\n%s", tc.want, report)
			}
			if words := g.pool.Why(alloc.Request{Bytes: 64 * mib}, 48*mib); words != nil {
				t.Errorf("of an ordinary request: %q", words)
			}
		})
	}
}

// TestAccountOfAPoolThatGrows: whether growth would have served a request goes by what
// completes the free tail, and a hole that another end has is none.
func TestAccountOfAPoolThatGrows(t *testing.T) {
	for _, tc := range []struct {
		name  string
		limit uint64
		lines []string
		r     alloc.Request
		want  []string
	}{
		{"the cap forbids what would complete the tail", 8, []string{"A 4", "B 4", "free A"}, alloc.Request{Bytes: 6 * mib},
			[]string{"The largest hole is 4 MiB", "2 MiB larger", "growth        yes: the device has 2 MiB free, the limit of 8 MiB forbids it"}},
		{"the device has not even that", 64, []string{"A 4", "B 4", "free A"}, alloc.Request{Bytes: 9 * mib},
			[]string{"growth        no: the device has 2 MiB free\n"}},
		{"the hole is collective memory's", 8, []string{"A 2 collective", "B 2 collective", "C 4", "free A"}, alloc.Request{Bytes: 2 * mib},
			[]string{"The largest hole is 0 B", "2 MiB larger", "splitting     no"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newGrowing(t, 8, tc.limit, 10)
			for _, line := range tc.lines {
				g.do(line)
			}
			if tc.limit > 10 {
				g.do("other 2")
				defer g.do("other -")
			}
			if _, err := g.pool.Alloc(tc.r); !errors.Is(err, alloc.ErrNoMemory) {
				t.Fatal(err)
			}
			text := alloc.Explain(g.pool, tc.r, 2*mib).Text(nil)
			for _, want := range tc.want {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in\n%s", want, text)
				}
			}
		})
	}
}

// shifted is a device whose reservations begin a page above what is well aligned.
type shifted struct{ *sim.Device }

func (d shifted) AddressReserve(n, align uint64) (uint64, error) {
	addr, err := d.Device.AddressReserve(n+2*mib, align)
	return addr + 2*mib, err
}

func (d shifted) AddressFree(addr, n uint64) error {
	return d.Device.AddressFree(addr-2*mib, n+2*mib)
}

// TestAlignmentThatOneEndReaches: the next address that is a multiple of 64 MiB lies above
// what the pool began with, so that collective memory never has it and ordinary memory does.
func TestAlignmentThatOneEndReaches(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 128 * mib})
	if err != nil {
		t.Fatal(err)
	}
	a, err := bfc.New(shifted{dev}, bfc.Config{Limit: 64 * mib, Initial: 32 * mib, Spatial: true, TopDown: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Alloc(alloc.Request{Bytes: mib}); err != nil {
		t.Fatal(err)
	}
	r := alloc.Request{Bytes: mib, Align: 64 * mib, End: alloc.Upper}
	if _, err := a.Alloc(r); !errors.Is(err, alloc.ErrNever) {
		t.Errorf("collective memory: %v", err)
	}
	r.End = alloc.Lower
	if b, err := a.Alloc(r); err != nil || b.Addr%(64*mib) != 0 {
		t.Errorf("ordinary memory: %v, %v", b, err)
	}
	r.Align = 1 << 56 // no address of a device is a multiple of it
	if _, err := a.Alloc(r); !errors.Is(err, alloc.ErrNever) {
		t.Errorf("an alignment that nothing has: %v", err)
	}
	if err := a.Check(); err != nil {
		t.Error(err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}
