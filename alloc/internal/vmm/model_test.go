package vmm_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"gpumem/alloc"
	"gpumem/alloc/internal/vmm"
	"gpumem/device"
	"gpumem/device/sim"
	"pgregory.net/rapid"
)

// model is the allocator by its rules and nothing else: one list of what is
// pending, in the order of the frees, that is looked through for everything. It
// is told when the work of each stream ends.
type model struct {
	budget, device uint64 // bytes; what others leave of the device
	held           uint64
	pending        []*piece
	batch          *batch // the open one; nil: none
	ends           map[device.Stream]time.Duration
	marks          int // that were recorded, so far
}

type piece struct {
	block   alloc.Block
	size    uint64
	end     alloc.End
	streams []device.Stream
	batch   *batch
}

type batch struct {
	closed bool
	at     time.Duration // when it is done; closed
}

// closeBatch marks the end of the open batch.
func (m *model) closeBatch() {
	if m.batch == nil {
		return
	}
	used := map[device.Stream]bool{}
	for _, p := range m.pending {
		if p.batch == m.batch {
			for _, s := range p.streams {
				used[s] = true
			}
		}
	}
	m.batch.closed = true
	for s := range used {
		m.batch.at = max(m.batch.at, m.ends[s])
		m.marks++
	}
	m.batch = nil
}

func (m *model) free(p *piece) {
	var blocks int
	var bytes uint64
	for _, q := range m.pending {
		if m.batch != nil && q.batch == m.batch {
			blocks++
			bytes += q.size
		}
	}
	if blocks == 64 || blocks > 0 && bytes+p.size > 64*mib {
		m.closeBatch()
	}
	if m.batch == nil || blocks == 0 {
		m.batch = &batch{}
	}
	p.batch = m.batch
	m.pending = append(m.pending, p)
}

// alloc is the piece that is handed out again, or nil and whether a fresh one
// is. now is the time when it is asked.
func (m *model) alloc(size uint64, end alloc.End, now time.Duration) (again *piece, fresh bool) {
	if size > m.budget {
		return nil, false
	}
	for i, p := range m.pending {
		if p.size == size && p.end == end {
			m.pending = slices.Delete(m.pending, i, i+1)
			if b := p.batch; b == m.batch && !slices.ContainsFunc(m.pending, func(q *piece) bool { return q.batch == b }) {
				m.batch = nil
			}
			return p, false
		}
	}
	take := func() bool {
		if m.held+size > min(m.budget, m.device) {
			return false
		}
		m.held += size
		return true
	}
	if take() {
		return nil, true
	}
	m.closeBatch()
	m.retire(func(p *piece) bool { return p.end == alloc.Lower && p.batch.at <= now })
	if take() {
		return nil, true
	}
	m.reclaim(size+size/10, false)
	return nil, take()
}

// reclaim gives the first pieces back that have so many bytes together.
func (m *model) reclaim(bytes uint64, upper bool) {
	var sum uint64
	m.closeBatch()
	m.retire(func(p *piece) bool {
		if sum >= bytes || p.end == alloc.Upper && !upper {
			return false
		}
		sum += p.size
		return true
	})
}

func (m *model) retire(goes func(*piece) bool) {
	m.pending = slices.DeleteFunc(m.pending, func(p *piece) bool {
		if !goes(p) {
			return false
		}
		m.held -= p.size
		return true
	})
}

// TestModel drives an allocator and the model by the same operations, with work
// in three streams that takes simulated minutes.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const total = 512 * mib
		budget := rapid.Uint64Range(60*mib, 600*mib).Draw(rt, "budget")
		b := open(t, sim.Config{Total: total}, vmm.Config{Budget: budget})
		b.TB = nil // what is wrong is rt's to say
		m := &model{budget: budget, device: total, ends: map[device.Stream]time.Duration{}}
		var live []*piece
		for range rapid.IntRange(1, 500).Draw(rt, "operations") {
			m.clear(b.dev)
			b.called()
			quiet := false // no driver call is expected
			pick := func() (i int, p *piece) {
				i = rapid.IntRange(0, len(live)-1).Draw(rt, "block")
				return i, live[i]
			}
			op := rapid.SampledFrom([]string{"alloc", "alloc", "alloc", "free", "free", "free", "work", "use", "advance", "trim", "others"}).Draw(rt, "operation")
			if len(live) == 0 && (op == "free" || op == "work" || op == "use") {
				continue
			}
			switch op {
			case "alloc":
				n := rapid.SampledFrom([]uint64{1, 1, 2, 3, 3, 10, 20, 33, 40}).Draw(rt, "pages") * page
				r := alloc.Request{
					Bytes:  n - rapid.Uint64Range(0, page-1).Draw(rt, "less"),
					Stream: uint32(rapid.IntRange(0, 2).Draw(rt, "stream")),
				}
				if rapid.IntRange(0, 9).Draw(rt, "end") == 0 {
					r.End = alloc.Upper
				}
				again, fresh := m.alloc(n, r.End, b.dev.Now())
				got, err := b.a.Alloc(r)
				switch {
				case n > budget && !errors.Is(err, alloc.ErrNever):
					rt.Fatalf("%+v: %v, %v; want ErrNever", r, got, err)
				case again == nil && !fresh:
					if !errors.Is(err, alloc.ErrNoMemory) {
						rt.Fatalf("%+v: %v, %v; want it refused", r, got, err)
					}
				case err != nil || got.Size != n:
					rt.Fatalf("%+v: %v, %v; want a block", r, got, err)
				case fresh:
					live = append(live, &piece{block: got, size: n, end: r.End, streams: []device.Stream{device.Stream(r.Stream)}})
				case got.Addr != again.block.Addr:
					rt.Fatalf("%+v: %v; want the one at %#x again", r, got, again.block.Addr)
				default:
					again.block, quiet = got, true
					again.use(device.Stream(r.Stream))
					live = append(live, again)
				}
			case "free":
				i, p := pick()
				live = slices.Delete(live, i, i+1)
				before := m.marks
				m.free(p)
				quiet = m.marks == before
				if err := b.a.Free(p.block); err != nil {
					rt.Fatal(err)
				}
			case "use":
				_, p := pick()
				s := rapid.IntRange(0, 2).Draw(rt, "stream")
				p.use(device.Stream(s))
				if err := b.a.Record(p.block, uint32(s)); err != nil {
					rt.Fatal(err)
				}
				quiet = true
			case "work": // that only reads, so that streams need not be ordered
				_, p := pick()
				s := rapid.SampledFrom(p.streams).Draw(rt, "stream")
				takes := time.Duration(rapid.IntRange(1, 60).Draw(rt, "minutes")) * time.Minute
				if err := b.dev.Work(s, takes, []device.Range{{Addr: p.block.Addr, Bytes: p.block.Size}}, nil); err != nil {
					rt.Fatal(err)
				}
				m.ends[s] = max(m.ends[s], b.dev.Now()) + takes
			case "advance":
				b.dev.Advance(time.Duration(rapid.IntRange(1, 60).Draw(rt, "minutes")) * time.Minute)
			case "trim":
				keep := rapid.Uint64Range(0, budget).Draw(rt, "keep")
				before := m.held
				if m.held > keep && len(m.pending) > 0 {
					m.reclaim(m.held-keep, true)
				}
				got, err := b.a.Trim(keep)
				if err != nil || got != before-m.held {
					rt.Fatalf("Trim(%d) = %d, %v; want %d", keep, got, err, before-m.held)
				}
			case "others":
				used := rapid.Uint64Range(0, total).Draw(rt, "used")
				b.dev.SetUsed(used)
				m.device = max(total-used, m.held)
			}
			if quiet && len(b.calls) > 0 {
				rt.Fatalf("%s made calls: %s", op, b.called())
			}
			m.compare(rt, b, live, op)
		}
		if err := b.a.Close(); err != nil {
			rt.Fatal(err)
		}
		if held, _ := b.dev.Held(); held != 0 || len(b.dev.Hazards()) > 0 {
			rt.Fatalf("%d bytes are held after Close; hazards %v", held, b.dev.Hazards())
		}
	})
}

// use adds a stream.
func (p *piece) use(s device.Stream) {
	if !slices.Contains(p.streams, s) {
		p.streams = append(p.streams, s)
	}
}

// clear lets time pass until no mark's time is so near that the time which the
// calls themselves take decides whether it has passed.
func (m *model) clear(dev *sim.Device) {
	var at []time.Duration
	for _, p := range m.pending {
		if p.batch.closed {
			at = append(at, p.batch.at)
		}
	}
	for _, end := range m.ends {
		at = append(at, end)
	}
	slices.Sort(at)
	for _, t := range at {
		if now := dev.Now(); t > now-time.Second && t < now+time.Second {
			dev.Advance(t + time.Second - now)
		}
	}
}

// compare compares all that can be seen.
func (m *model) compare(rt *rapid.T, b *bench, live []*piece, op string) {
	if err := b.a.Check(); err != nil {
		rt.Fatalf("after %s: %v", op, err)
	}
	var inUse, largest uint64
	want := map[uint64]string{}
	for _, p := range live {
		inUse += p.size
		want[p.block.Addr] = fmt.Sprintf("live %d %v", p.size, p.end)
	}
	for _, p := range m.pending {
		largest = max(largest, p.size)
		want[p.block.Addr] = fmt.Sprintf("pending %d %v", p.size, p.end)
	}
	s := b.a.Stats()
	held, _ := b.dev.Held()
	largest = min(max(largest, m.budget-m.held), m.held-inUse)
	if b.marks != m.marks {
		rt.Fatalf("after %s: %d marks, want %d", op, b.marks, m.marks)
	}
	if held != m.held || s.PoolBytes != m.held || s.BytesInUse != inUse || s.LargestFreeBlock != largest {
		rt.Fatalf("after %s: %d bytes are held, statistics %+v; want %d held, %d in use, %d the largest free", op, held, s, m.held, inUse, largest)
	}
	b.a.Walk(func(c alloc.Chunk) bool {
		state := "pending"
		if c.Live {
			state = "live"
		}
		if got := fmt.Sprintf("%s %d %s", state, c.Size, c.Tag); got != want[c.Addr] {
			rt.Fatalf("after %s: at %#x is %s, want %q", op, c.Addr, got, want[c.Addr])
		}
		delete(want, c.Addr)
		return true
	})
	if len(want) > 0 {
		rt.Fatalf("after %s: missing %v", op, want)
	}
}
