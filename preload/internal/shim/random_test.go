package shim_test

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"gpumem"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/preload/internal/shim"
)

// everyPolicy has one of each kind of pool.
var everyPolicy = []string{"elastic", "vmm", "jax", "jax:preallocate=false", "platform", "async", "pytorch", "address"}

// TestRandomPrograms runs correct programs: plain and stream-ordered memory in several
// streams, handed from one to another by events, with frees of either kind, waits, graphs
// that are captured, streams that end while their blocks live, and memory taken past the
// pool. A pool that hands out memory too early makes the simulated GPU report a hazard; a
// pool that counts wrongly is found after each step.
func TestRandomPrograms(t *testing.T) {
	for _, spec := range everyPolicy {
		for _, ordered := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, ordered %v", spec, ordered), func(t *testing.T) {
				for seed := range uint64(100) {
					newProgram(t, spec, ordered, seed).run(400)
				}
			})
		}
	}
}

// TestRandomProgramsWhenDriverCallsFail refuses a pool that loses a block, or miscounts one,
// or hands it out too early, because a driver call of its own failed.
func TestRandomProgramsWhenDriverCallsFail(t *testing.T) {
	for _, spec := range everyPolicy {
		t.Run(spec, func(t *testing.T) {
			for seed := range uint64(100) {
				p := newProgram(t, spec, seed%4 == 3, seed)
				p.faulty, p.failing = true, true
				p.run(300)
			}
		})
	}
}

// buffer is a live block of a program.
type buffer struct {
	addr, bytes uint64
	plain       bool // of cuMemAlloc
	in          int  // the stream that comes after all of its uses; -1: every stream does
}

// taken is memory that a program took past the pool.
type taken struct {
	key   shim.Key
	bytes uint64
	at    uint64 // where the handle is mapped; 0: nowhere
	users int    // releases of the handle to come
}

// program is one program at random, and what it knows of its own memory.
type program struct {
	t       *testing.T
	r       *rand.Rand
	name    string
	spec    string
	ordered bool // it uses plain memory in stream 0 alone
	faulty  bool // driver calls fail at random
	failing bool // they do so now

	d       *driver
	account *account
	charges *shim.Charges
	pool    *shim.Pool

	streams   [4]device.Stream
	marks     [4]device.Event // for order, one for each stream
	seen      [4]bool         // the pool knows the stream
	live      []buffer
	taken     []taken
	gave      []uint64     // addresses that were a block's
	low, high uint64       // the range of Config.Addresses
	pending   uint64       // of Config.Pending
	most      shim.Figures // the peaks so far
	step      int
}

const outside = 3 * mib

func newProgram(t *testing.T, spec string, ordered bool, seed uint64) *program {
	t.Helper()
	name := fmt.Sprintf("%s, ordered %v, seed %d", spec, ordered, seed)
	p := &program{t: t, r: rand.New(rand.NewPCG(seed, 1)), spec: spec, ordered: ordered, name: name}
	p.d = newDriver(t, sim.Config{Total: 256 * mib, ReuseStreams: seed%4 < 2})
	p.account = newAccount(t, []uint64{200 * mib, unlimited}[seed%2])
	var err error
	if p.charges, err = shim.NewCharges(p.account, shim.Process{Outside: outside}); err != nil {
		t.Fatal(err)
	}
	p.pool = openOn(t, p.d, spec, shim.Config{
		Account: p.account, Charges: p.charges, Ordered: ordered,
		Addresses: func(low, high uint64) { p.low, p.high = low, high },
		Pending:   func(bytes uint64) { p.pending = bytes },
	})
	for i := range p.streams {
		p.streams[i] = p.d.stream(t)
		if p.marks[i], err = p.d.EventCreate(); err != nil {
			t.Fatal(err)
		}
	}
	if spec != "async" { // only the driver knows by how much its own pool grows
		p.d.OnCall(p.countedBefore)
	}
	return p
}

// countedBefore fails the test if the device grants more than the account has.
func (p *program) countedBefore(_ uint64, call string, bytes uint64) error {
	if call != "cuMemAlloc" && call != "cuMemCreate" {
		bytes = 0
	}
	holds, _ := p.d.Held()
	if held, charged, _ := p.account.counts(); holds+bytes > held+charged {
		p.fatalf("%s: the device grants %d bytes beside %d, and %d are counted", call, bytes, holds, held+charged)
	}
	return nil
}

func (p *program) fatalf(format string, args ...any) {
	p.t.Helper()
	p.t.Fatalf("%s, step %d: %s", p.name, p.step, fmt.Sprintf(format, args...))
}

// must reports whether a call went well. Only where driver calls fail may it not.
func (p *program) must(err error) bool {
	p.t.Helper()
	var h *sim.Hazard
	if err != nil && (!p.failing || errors.As(err, &h)) {
		p.fatalf("%v", err)
	}
	return err == nil
}

// fails reports whether a call failed, and fails the test if it may not: for lack of memory, for
// a capture, and where driver calls fail it may.
func (p *program) fails(err error) bool {
	p.t.Helper()
	full := errors.Is(err, gpumem.ErrOutOfMemory) || errors.Is(err, device.ErrOutOfMemory)
	waits := errors.Is(err, shim.ErrCapturing) && len(p.d.captured) > 0
	return full || waits || !p.must(err)
}

func (p *program) run(steps int) {
	p.t.Helper()
	for p.step = range steps {
		if p.failing && p.r.IntN(3) == 0 {
			p.d.SetFaults(sim.Faults{
				FailAt: p.d.Counters().Calls + 1 + p.r.Uint64N(10),
				Err:    []error{device.ErrInvalidValue, device.ErrOutOfMemory}[p.r.IntN(2)],
			})
		}
		p.act()
		p.d.SetFaults(sim.Faults{})
		p.check()
	}
	p.end()
}

// act is one step of the program.
func (p *program) act() {
	switch k := p.r.IntN(40); {
	case k < 10:
		p.alloc()
	case k < 20:
		p.free(p.r.IntN(max(len(p.live), 1)))
	case k < 27:
		p.handOver()
	case k < 28:
		p.waitForContext()
	case k < 30:
		if s := p.anyStream(); s >= 0 {
			p.must(p.d.StreamSynchronize(p.streams[s])) // the pool does not hear of it
		}
	case k < 31:
		p.d.Advance(time.Duration(p.r.IntN(100)) * time.Microsecond)
	case k < 33:
		p.replaceStream()
	case k < 34:
		p.fails(p.pool.Trim())
	case k < 35:
		p.capture()
	case k < 37:
		p.takePast()
	case k < 40:
		p.releasePast()
	}
}

// anyStream returns a stream in which no graph is being captured; -1 if there is none.
func (p *program) anyStream() int {
	s := p.r.IntN(len(p.streams))
	for range p.streams {
		if !p.d.captured[p.streams[s]] {
			return s
		}
		s = (s + 1) % len(p.streams)
	}
	return -1
}

func (p *program) alloc() {
	b := buffer{bytes: 1 + p.r.Uint64N([]uint64{4096, 8 * mib, 8 * mib, 60 * mib}[p.r.IntN(4)]), plain: p.r.IntN(2) == 0, in: -1}
	var err error
	if b.plain {
		b.addr, err = p.pool.Alloc(b.bytes)
	} else {
		if b.in = p.anyStream(); b.in < 0 {
			return
		}
		b.addr, err = p.pool.AllocAsync(b.bytes, uint64(p.streams[b.in]))
		p.seen[b.in] = true
	}
	if p.fails(err) {
		p.refused(b.bytes, err)
		return
	}
	if b.addr < p.low || b.addr+b.bytes > p.high || !p.pool.Contains(b.addr) || !p.pool.Contains(b.addr+b.bytes-1) {
		p.fatalf("%d bytes at %#x are not in the pool's range [%#x, %#x)", b.bytes, b.addr, p.low, p.high)
	}
	if b.plain && p.ordered {
		b.in = 0
	}
	p.use(&b)
	p.live = append(p.live, b)
	p.gave = append(p.gave, b.addr)
}

// refused checks that a refusal for lack of memory was the last resort.
func (p *program) refused(bytes uint64, err error) {
	if p.failing || len(p.d.captured) > 0 || !errors.Is(err, gpumem.ErrOutOfMemory) {
		return
	}
	if n := p.pool.Pending(); n != 0 {
		p.fatalf("a request of %d bytes is refused while %d are pending", bytes, n)
	}
	if p.spec != "platform" {
		return
	}
	sum := (bytes + 2*mib - 1) &^ (2*mib - 1) // in units of a grant
	for _, b := range p.live {
		sum += (b.bytes + 2*mib - 1) &^ (2*mib - 1)
	}
	_, charged, outside := p.account.counts()
	if sum+charged+outside <= p.account.limit && sum+charged <= p.d.Info().Total {
		p.fatalf("a request of %d bytes is refused, and there is room", bytes)
	}
}

// use writes a buffer in its stream, and a new plain one in any stream.
func (p *program) use(b *buffer) {
	s := b.in
	if s < 0 {
		s = p.anyStream()
	}
	if s < 0 || p.d.captured[p.streams[s]] {
		return // it becomes a node of the graph
	}
	if p.must(p.d.Work(p.streams[s], time.Duration(p.r.IntN(50))*time.Microsecond, nil, []device.Range{{Addr: b.addr, Bytes: b.bytes}})) {
		b.in = s
	}
}

// after makes one stream wait for all that is in another. It reports whether it could.
func (p *program) after(to, from int) bool {
	if to == from || from < 0 {
		return true
	}
	if p.d.captured[p.streams[to]] || p.d.captured[p.streams[from]] {
		return false
	}
	return p.must(p.d.EventRecord(p.marks[from], p.streams[from])) && p.must(p.d.StreamWaitEvent(p.streams[to], p.marks[from]))
}

// handOver uses a live block in a stream, after its uses in another.
func (p *program) handOver() {
	if len(p.live) == 0 {
		return
	}
	b := &p.live[p.r.IntN(len(p.live))]
	if b.plain && p.ordered {
		p.use(b)
		return
	}
	s := p.anyStream()
	if s < 0 || !p.after(s, b.in) {
		return
	}
	b.in = s
	p.use(b)
}

func (p *program) free(i int) {
	if i >= len(p.live) {
		return
	}
	b := p.live[i]
	var err error
	if p.r.IntN(2) == 0 {
		if p.ordered && p.d.captured[p.streams[0]] {
			return
		}
		before := p.pool.Pending()
		err = p.pool.Free(b.addr)
		in, _ := p.pool.Used()
		if n := p.pool.Pending(); err == nil && len(p.d.captured) == 0 && n > max(before, 32*mib, in/8) {
			p.fatalf("%d bytes are pending beside %d in use", n, in)
		}
	} else {
		s := p.anyStream()
		if b.plain && p.ordered {
			s = 0
		}
		if s < 0 || p.d.captured[p.streams[s]] || !p.after(s, b.in) {
			return
		}
		b.in = s
		err = p.pool.FreeAsync(b.addr, uint64(p.streams[s]))
		p.seen[s] = true
	}
	if p.failed(err) {
		if _, _, gone := p.pool.Range(b.addr); gone == nil { // as it was
			p.live[i].in = b.in
			return
		}
	}
	p.live = slices.Delete(p.live, i, i+1)
}

// failed reports whether a call failed that may fail only with the driver's.
func (p *program) failed(err error) bool { return !p.must(err) }

func (p *program) waitForContext() {
	if len(p.d.captured) > 0 {
		return
	}
	n := p.pool.Synchronizing()
	err := p.d.Synchronize()
	if p.r.IntN(2) == 0 { // what another thread does meanwhile
		p.alloc()
		p.free(p.r.IntN(max(len(p.live), 1)))
	}
	if p.failed(err) {
		return
	}
	p.must(p.pool.Synchronized(n))
}

// replaceStream ends a stream, whose buffers another one takes over, and makes a new one.
func (p *program) replaceStream() {
	s, heir := p.r.IntN(len(p.streams)), p.anyStream()
	if s == heir || heir < 0 || p.d.captured[p.streams[s]] || p.ordered && s == 0 {
		return
	}
	if !p.after(heir, s) {
		return
	}
	for i := range p.live {
		if p.live[i].in == s {
			p.live[i].in = heir
		}
	}
	if p.failed(p.pool.StreamDestroyed(uint64(p.streams[s]))) {
		// The program ends the stream all the same.
		p.d.SetFaults(sim.Faults{})
		p.must(p.pool.StreamDestroyed(uint64(p.streams[s])))
	}
	p.d.SetFaults(sim.Faults{})
	if err := p.d.StreamDestroy(p.streams[s]); err != nil {
		p.fatalf("%v", err)
	}
	p.streams[s], p.seen[s] = p.d.stream(p.t), false
}

// capture begins or ends a graph in a stream. A stream that does not wait for the legacy
// stream is captured only where the pool knows it, which notices no other.
func (p *program) capture() {
	s := p.r.IntN(len(p.streams))
	h := p.streams[s]
	switch {
	case p.d.captured[h]:
		delete(p.d.captured, h)
	case p.r.IntN(2) == 0:
		delete(p.d.nonBlocking, h)
		if p.seen[s] && p.r.IntN(2) == 0 {
			p.d.nonBlocking[h] = true
		}
		p.d.captured[h] = true
	}
}

// contextOf returns the context with which memory past the pool ends; 0 for none.
func contextOf(k shim.Key) uint64 {
	if k.Kind == shim.Handle {
		return 0
	}
	return 1
}

// takePast takes memory past the pool: a plain grant, or a handle, which may be mapped and
// retained.
func (p *program) takePast() {
	m := taken{bytes: (1 + p.r.Uint64N(8)) * 2 * mib, users: 1}
	plain := p.r.IntN(2) == 0
	if plain { // the driver grants more than that
		m.bytes -= p.r.Uint64N(2 * mib)
	}
	if p.fails(p.charges.Take(m.bytes)) {
		return
	}
	if plain {
		got, err := p.d.Alloc(m.bytes)
		if p.fails(err) {
			p.charges.Failed(m.bytes)
			return
		}
		m.key = shim.Key{Kind: shim.Plain, Value: got.Addr}
		p.charges.Done(m.key, m.bytes, contextOf(m.key))
		p.taken = append(p.taken, m)
		return
	}
	h, err := p.d.MemCreate(m.bytes)
	if p.fails(err) {
		p.charges.Failed(m.bytes)
		return
	}
	m.key = shim.Key{Kind: shim.Handle, Value: uint64(h)}
	p.charges.Done(m.key, m.bytes, contextOf(m.key))
	if at, err := p.d.AddressReserve(m.bytes, 0); err == nil && p.d.MemMap(at, m.bytes, h) == nil {
		m.at = at
		p.charges.Mapped(at, m.bytes, m.key)
	}
	if p.r.IntN(2) == 0 {
		m.users++
		p.charges.Retained(m.key)
	}
	p.taken = append(p.taken, m)
}

// releasePast releases one use of memory past the pool.
func (p *program) releasePast() {
	if len(p.taken) == 0 {
		return
	}
	i := p.r.IntN(len(p.taken))
	m := &p.taken[i]
	if m.at != 0 && (m.users == 0 || p.r.IntN(2) == 0) {
		if p.must(p.d.MemUnmap(m.at, m.bytes)) {
			p.charges.Unmapped(m.at, m.bytes)
			m.at = 0
		}
	} else {
		p.releaseUse(m)
	}
	if m.users == 0 && m.at == 0 {
		p.taken = slices.Delete(p.taken, i, i+1)
	}
}

// releaseUse releases what a key names once, as the library's front does.
func (p *program) releaseUse(m *taken) {
	token := p.charges.Remove(m.key)
	if token == 0 {
		p.fatalf("%v is not charged", m.key)
	}
	var err error
	switch {
	case m.key.Kind == shim.Plain:
		err = p.d.Free(m.key.Value)
	case m.users == 1:
		err = p.d.MemRelease(device.Handle(m.key.Value))
	}
	p.charges.Removed(token, !p.failed(err))
	if err == nil {
		m.users--
	}
}

// check compares what the pool says with what the program and the device know.
func (p *program) check() {
	f := p.pool.Figures()
	now, _ := p.d.Held()
	held, charged, out := p.account.counts()
	if p.faulty && p.spec == "async" { // the growth of the driver's pool counts when it says so
		held = f.Held
	}
	if held != f.Held || charged != f.Charged || out != outside || held+charged != now {
		p.fatalf("%d bytes are counted for the pool, which holds %d; %d are charged, and shown as %d; %d are outside; the device holds %d",
			held, f.Held, charged, f.Charged, out, now)
	}
	slices.SortFunc(p.live, func(a, b buffer) int { return cmp.Compare(a.addr, b.addr) })
	end, sum := uint64(0), uint64(0)
	for _, b := range p.live {
		if b.addr < end {
			p.fatalf("the block at %#x begins inside another one", b.addr)
		}
		end = b.addr + b.bytes
		sum += b.bytes
		if base, n, err := p.pool.Range(b.addr); err != nil || base != b.addr || n != b.bytes {
			p.fatalf("Range(%#x) = %#x, %d, %v; want %d bytes", b.addr, base, n, err, b.bytes)
		}
	}
	if f.InUse < sum || f.InUse > f.Held {
		p.fatalf("%d bytes are in use of %d, want at least the program's %d", f.InUse, f.Held, sum)
	}
	if f.PeakHeld < max(f.Held, p.most.PeakHeld) || f.PeakInUse < max(f.InUse, p.most.PeakInUse) {
		p.fatalf("the peaks of %+v are less than before, %+v", f, p.most)
	}
	p.most = f
	if n := p.pool.Pending(); n != p.pending {
		p.fatalf("%d bytes are pending, and %d are shown", n, p.pending)
	}
}

// end ends the program, and checks that nothing is left. It may end with live blocks, and
// without a wait for what is pending.
func (p *program) end() {
	clear(p.d.captured)
	p.failing = false
	if p.r.IntN(2) == 0 {
		for len(p.live) > 0 {
			p.free(p.r.IntN(len(p.live)))
		}
		p.check()
	}
	if p.r.IntN(2) == 0 {
		p.waitForContextAtEnd()
	}
	p.taken = slices.DeleteFunc(p.taken, func(m taken) bool { // what ends with the context
		return m.key.Kind == shim.Plain && p.must(p.d.Free(m.key.Value))
	})
	if err := p.pool.Close(); err != nil {
		p.fatalf("Close = %v", err)
	}
	for len(p.taken) > 0 {
		p.releasePast()
	}
	if f := p.pool.Figures(); f.InUse != 0 || f.Charged != 0 || p.pending != 0 || p.pool.Pending() != 0 {
		p.fatalf("after Close: %+v, %d bytes are pending", f, p.pool.Pending())
	}
	for _, addr := range p.gave {
		if p.pool.Contains(addr) && !p.faulty {
			p.fatalf("%#x is the pool's after Close", addr)
		}
	}
	held, charged, _ := p.account.counts()
	if now, _ := p.d.Held(); held+charged != now || now != 0 && !p.faulty { // what the driver refused to take back is lost
		p.fatalf("after Close %d bytes are counted for the pool, %d are charged, and the device holds %d", held, charged, now)
	}
	if h := p.d.Hazards(); len(h) > 0 {
		p.fatalf("%v", h[0])
	}
}

func (p *program) waitForContextAtEnd() {
	n := p.pool.Synchronizing()
	if err := errors.Join(p.d.Synchronize(), p.pool.Synchronized(n)); err != nil {
		p.fatalf("%v", err)
	}
	if n := p.pool.Pending(); n != 0 {
		p.fatalf("%d bytes are pending after a wait for all work", n)
	}
}

// TestRandomThreads runs threads that share a pool, each with a stream and blocks of its
// own. It refuses a wait of one thread that hides what another one has to wait for.
func TestRandomThreads(t *testing.T) {
	for _, spec := range everyPolicy {
		t.Run(spec, func(t *testing.T) {
			d := newDriver(t, sim.Config{Total: 256 * mib})
			account := newAccount(t, 200*mib)
			pool := openOn(t, d, spec, shim.Config{Account: account})
			var all sync.WaitGroup
			for i := range uint64(4) {
				s := d.stream(t)
				all.Go(func() { thread(t, pool, d, s, i) })
			}
			all.Wait()
			if err := pool.Close(); err != nil {
				t.Error(err)
			}
			if held, _, _ := account.counts(); held != 0 {
				t.Errorf("%d bytes are counted after Close", held)
			}
			if h := d.Hazards(); len(h) > 0 {
				t.Error(h[0])
			}
		})
	}
}

func thread(t *testing.T, pool *shim.Pool, d *driver, s device.Stream, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 2))
	var live []uint64
	check := func(err error) bool {
		if err != nil && !errors.Is(err, gpumem.ErrOutOfMemory) {
			t.Errorf("thread %d: %v", seed, err)
		}
		return err == nil
	}
	free := func(i int) {
		addr := live[i]
		live = slices.Delete(live, i, i+1)
		if r.IntN(2) == 0 {
			check(pool.Free(addr))
		} else {
			check(pool.FreeAsync(addr, uint64(s)))
		}
	}
	for range 300 {
		if len(live) > 0 && r.IntN(2) == 0 {
			free(r.IntN(len(live)))
			continue
		}
		bytes := 1 + r.Uint64N(8*mib)
		addr, err := uint64(0), error(nil)
		if r.IntN(2) == 0 {
			addr, err = pool.Alloc(bytes)
		} else {
			addr, err = pool.AllocAsync(bytes, uint64(s))
		}
		if check(err) {
			live = append(live, addr)
			check(d.Work(s, time.Duration(r.IntN(50))*time.Microsecond, nil, []device.Range{{Addr: addr, Bytes: bytes}}))
		}
	}
	for len(live) > 0 {
		free(0)
	}
}
