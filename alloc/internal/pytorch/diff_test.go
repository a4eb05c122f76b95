package pytorch_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/internal/pytorch"
	"gpumem/alloc/streams"
	"gpumem/device"
	"gpumem/device/sim"
)

// modelStreams is how many streams the random programs have.
const modelStreams = 3

// addresses is a rule for the addresses of grants and reservations.
type addresses struct {
	rule string // rising, falling, or reuse: the lowest hole
	next uint64
	held map[uint64]uint64 // in units of 2 MiB
}

func newAddresses(rule string) *addresses {
	return &addresses{rule: rule, next: 1 << 40, held: map[uint64]uint64{}}
}

func (a *addresses) place(bytes uint64) uint64 {
	bytes = up(bytes, 2<<20)
	at := a.next
	switch a.rule {
	case "rising":
		a.next += bytes
	case "falling":
		a.next -= bytes
		at = a.next
	case "reuse":
		for again := true; again; {
			again = false
			for lo, n := range a.held {
				if at < lo+n && lo < at+bytes {
					at, again = lo+n, true
				}
			}
		}
	}
	a.held[at] = bytes
	return at
}

func (a *addresses) gone(addr uint64) { delete(a.held, addr) }

// counter is a device that is a count of bytes and a rule for addresses, as the model
// has it. Its events pass when a test says so.
type counter struct {
	*sim.Device
	*addresses
	total, granted uint64
	size           map[uint64]uint64
	pages          map[device.Handle]uint64
	last           device.Handle
	log            []string

	marks    map[device.Event]mark
	recorded map[device.Stream]int
	passed   map[device.Stream]int
}

type mark struct {
	stream device.Stream
	n      int
}

func newCounter(t testing.TB, total uint64, rule string) *counter {
	t.Helper()
	dev, err := sim.New(sim.Config{Total: total})
	if err != nil {
		t.Fatal(err)
	}
	return &counter{
		Device: dev, addresses: newAddresses(rule), total: total, size: map[uint64]uint64{}, pages: map[device.Handle]uint64{},
		marks: map[device.Event]mark{}, recorded: map[device.Stream]int{}, passed: map[device.Stream]int{},
	}
}

func (c *counter) call(format string, args ...any) {
	c.log = append(c.log, fmt.Sprintf(format, args...))
}

func (c *counter) take(n uint64) error {
	if c.granted+n > c.total {
		c.call("X %d", n)
		return device.ErrOutOfMemory
	}
	c.granted += n
	return nil
}

func (c *counter) Alloc(n uint64) (device.Range, error) {
	if err := c.take(n); err != nil {
		return device.Range{}, err
	}
	addr := c.place(n)
	c.size[addr] = n
	c.call("M %#x %d", addr, n)
	return device.Range{Addr: addr, Bytes: n}, nil
}

func (c *counter) Free(addr uint64) error {
	c.call("F %#x", addr)
	c.granted -= c.size[addr]
	delete(c.size, addr)
	c.gone(addr)
	return nil
}

func (c *counter) AddressReserve(n, _ uint64) (uint64, error) {
	addr := c.place(n)
	c.call("V %#x %d", addr, n)
	return addr, nil
}

func (c *counter) AddressFree(addr, _ uint64) error {
	c.call("A %#x", addr)
	c.gone(addr)
	return nil
}

func (c *counter) MemCreate(n uint64) (device.Handle, error) {
	if err := c.take(n); err != nil {
		return 0, err
	}
	c.last++
	c.pages[c.last] = n
	return c.last, nil
}

func (c *counter) MemRelease(h device.Handle) error {
	c.granted -= c.pages[h]
	delete(c.pages, h)
	return nil
}

func (c *counter) MemMap(addr, _ uint64, _ device.Handle) error {
	c.call("m %#x", addr)
	return nil
}
func (c *counter) MemSetAccess(_, _ uint64) error { return nil }
func (c *counter) MemUnmap(addr, _ uint64) error {
	c.call("u %#x", addr)
	return nil
}

func (c *counter) EventRecord(e device.Event, s device.Stream) error {
	c.recorded[s]++
	c.marks[e] = mark{s, c.recorded[s]}
	return nil
}

func (c *counter) EventQuery(e device.Event) (bool, error) {
	m := c.marks[e]
	return m.n <= c.passed[m.stream], nil
}

func (c *counter) EventSynchronize(e device.Event) error {
	m := c.marks[e]
	c.passed[m.stream] = max(c.passed[m.stream], m.n)
	return nil
}

// randomConfig draws settings. Every one of them is off half of the time.
func randomConfig(r *rand.Rand, total uint64) pytorch.Config {
	cfg := pytorch.Config{
		Tie: pytorch.Tie(r.IntN(3)), KeepSizes: r.IntN(8) == 0, Expandable: r.IntN(3) == 0,
		CaptureEvents: r.IntN(4) == 0, PoolCaptures: r.IntN(2) == 0, PrivateGrants: r.IntN(4) == 0,
	}
	maybe := func(set func()) {
		if r.IntN(2) == 0 {
			set()
		}
	}
	maybe(func() { cfg.Slack = (20 + r.Uint64N(40)) << 20 })
	maybe(func() { cfg.Segment = (12 + 2*r.Uint64N(10)) << 20 })
	maybe(func() { cfg.MaxSplit = max(20<<20, cfg.Segment) + r.Uint64N(40)<<20 })
	maybe(func() { cfg.Limit = total/2 + r.Uint64N(total/2) })
	maybe(func() { cfg.GC = 0.1 + 0.8*r.Float64() })
	maybe(func() {
		for i := range cfg.Divisions {
			cfg.Divisions[i] = 1 << r.IntN(5)
		}
	})
	maybe(func() { cfg.Addresses = total/2 + r.Uint64N(total) })
	return cfg
}

// TestAgainstModel runs random programs of several streams, with events and private
// pools, in random configurations and on devices with three rules for addresses. Each
// placement, each refusal and each call of the device is the model's.
func TestAgainstModel(t *testing.T) {
	seeds := 600
	if testing.Short() {
		seeds = 100
	}
	refused, waited, private := 0, 0, 0
	for seed := range seeds {
		r := rand.New(rand.NewPCG(uint64(seed), 42))
		total := (60 + 2*r.Uint64N(200)) << 20
		cfg := randomConfig(r, total)
		rule := []string{"rising", "falling", "reuse"}[seed%3]
		dev := newCounter(t, total, rule)
		m := newModel(cfg, total)
		place := newAddresses(rule)
		m.place, m.gone = place.place, place.gone
		name := fmt.Sprintf("seed %d: %s, %d bytes, %+v", seed, rule, total, cfg)
		tracker := streams.Creating(dev)
		cfg.Streams = tracker
		a, err := pytorch.New(dev, cfg)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		type pair struct {
			b alloc.Block
			m *mBlock
		}
		var live []pair
		pool := 0 // the private pool that serves requests; 0: none
		several := 1 + r.IntN(modelStreams)
		for i := range 300 {
			what := ""
			switch k := r.IntN(40); {
			case k < 20 || len(live) == 0:
				n := uint64(math.Exp(r.Float64() * math.Log(float64(total)/4)))
				if r.IntN(2) == 0 {
					n = up(n, 1<<r.IntN(22)) // equal sizes, for the ties
				}
				stream := uint32(r.IntN(several))
				what = fmt.Sprintf("event %d: alloc of %d in %d", i, n, stream)
				b, err := a.Alloc(alloc.Request{Bytes: n, Stream: stream})
				want := m.alloc(n, stream)
				switch {
				case err != nil && !errors.Is(err, alloc.ErrNoMemory), (err == nil) != (want != nil):
					t.Fatalf("%s: %s: %v, the model has %+v", name, what, err, want)
				case want == nil:
					refused++
				case b.Addr != want.addr || b.Size != want.size:
					t.Fatalf("%s: %s: %v, the model has %d bytes at %#x", name, what, b, want.size, want.addr)
				default:
					live = append(live, pair{b, want})
				}
			case k < 36:
				at := r.IntN(len(live))
				if k < 24 {
					at = len(live) - 1
				}
				what = fmt.Sprintf("event %d: free of %v", i, live[at].b)
				if err := a.Free(live[at].b); err != nil {
					t.Fatalf("%s: %s: %v", name, what, err)
				}
				m.free(live[at].m)
				live = slices.Delete(live, at, at+1)
			case k == 36:
				if several < 2 {
					continue
				}
				other := uint32(r.IntN(several))
				p := live[r.IntN(len(live))]
				what = fmt.Sprintf("event %d: record %v in %d", i, p.b, other)
				if err := a.Record(p.b, other); err != nil {
					t.Fatalf("%s: %s: %v", name, what, err)
				}
				m.record(p.m, other)
				waited++
			case k == 37:
				for number := range uint32(several) {
					if h, ok, err := tracker.Handle(number); err == nil && ok {
						dev.passed[h] = dev.recorded[h]
						m.passed[number] = len(m.events[number])
					}
				}
				what = fmt.Sprintf("event %d: all pass", i)
			case k == 38:
				what = fmt.Sprintf("event %d: private pool %d", i, pool)
				if pool == 0 {
					pool = 1 + r.IntN(2)
					err = a.BeginPool(uint64(pool), nil)
					x := m.arena(pool)
					x.users++
					m.routes = append(m.routes, x)
					private++
					if cfg.PoolCaptures || r.IntN(2) == 0 {
						m.capturing++
						err = errors.Join(err, a.BeginCapture())
					}
				} else {
					if m.capturing > 0 {
						m.capturing--
						err = a.EndCapture()
					}
					err = errors.Join(err, a.EndPool(uint64(pool)))
					m.routes = nil
					pool = 0
				}
			case k == 39:
				what = fmt.Sprintf("event %d: release, trim", i)
				for id, x := range m.arenas {
					if id != 0 && x.users > 0 && (pool != id || x.users > 1) {
						err = errors.Join(err, a.ReleasePool(uint64(id)))
						x.users--
					}
				}
				_, trim := a.Trim(0)
				err = errors.Join(err, trim)
				if m.granted > 0 && m.capturing == 0 {
					m.releaseAll()
				}
			}
			if err != nil && !errors.Is(err, alloc.ErrNoMemory) {
				t.Fatalf("%s: %s: %v", name, what, err)
			}
			err = nil
			if err := a.Check(); err != nil {
				t.Fatalf("%s: after %s: %v", name, what, err)
			}
			if !slices.Equal(dev.log, m.log) {
				t.Fatalf("%s: %s: calls %v, the model's %v", name, what, dev.log, m.log)
			}
			dev.log, m.log = nil, nil
		}
		if s := a.MemoryStats(); s.OOMs != uint64(m.ooms) || s.Retries != uint64(m.retries) || s.Reserved != m.reserved {
			t.Fatalf("%s: %+v; the model has %d, %d, %d", name, s, m.ooms, m.retries, m.reserved)
		}
		if err := a.Close(); err != nil || dev.granted != 0 {
			t.Fatalf("%s: Close: %v, %d bytes are held", name, err, dev.granted)
		}
	}
	if refused < seeds || waited < seeds || private < seeds {
		t.Errorf("%d requests refused, %d blocks recorded, %d private pools: the programs do not show much", refused, waited, private)
	}
}
