package sim_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpumem/device"
	"gpumem/device/sim"
)

const (
	follow   = device.PoolReuseFollowEventDependencies
	lucky    = device.PoolReuseAllowOpportunistic
	internal = device.PoolReuseAllowInternalDependencies
)

func attr(t testing.TB, d *sim.Device, p device.Pool, a device.PoolAttribute) uint64 {
	t.Helper()
	return must[uint64](t)(d.PoolGetAttribute(p, a))
}

func held(d *sim.Device) uint64 {
	now, _ := d.Held()
	return now
}

// TestPoolTimes: rounds of allocating, freeing and waiting. The driver-cost
// study names these figures as what a model has to reproduce: 1 MiB was seen to
// take 0.7 ms on a smaller card, and 1 GiB 32 ms.
func TestPoolTimes(t *testing.T) {
	for _, tc := range []struct {
		name      string
		bytes     uint64
		threshold uint64
		want      time.Duration // ns
	}{
		{"1 MiB", mib, 0, 1300 + 150_000 + 32*15_000 + 1300 + 1000 + 100_000 + 32*10_000},
		{"1 GiB", gib, 0, 1300 + 150_000 + 1024*15_000 + 1300 + 1000 + 100_000 + 1024*10_000},
		{"1 MiB, kept", mib, math.MaxUint64, 2600 + 1000},
		{"1 GiB, kept", gib, gib, 2600 + 1000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDevice(t, sim.Config{Total: 2 * gib})
			p := must[device.Pool](t)(d.DefaultPool())
			ok(t, d.PoolSetAttribute(p, device.PoolReleaseThreshold, tc.threshold))
			for i := range 4 {
				before := d.Counters().Time
				r := must[device.Range](t)(d.AllocAsync(p, tc.bytes, 0))
				ok(t, d.FreeAsync(r.Addr, 0), d.StreamSynchronize(0))
				got := d.Counters().Time - before
				if i > 0 && got != tc.want {
					t.Errorf("round %d took %v, want %v", i, got, tc.want)
				}
			}
			if tc.threshold == 0 && held(d) != 0 {
				t.Errorf("%d bytes are held", held(d))
			}
		})
	}
}

// TestReuse: who gets what stream 1 has freed, by which attribute.
func TestReuse(t *testing.T) {
	const (
		grows = 1 << iota // takes more of the device instead
		late              // it is there only when stream 1 is done
		knows             // stream 2 may use what stream 1 wrote before
	)
	attrs := func(a ...device.PoolAttribute) []device.PoolAttribute { return a }
	for _, tc := range []struct {
		name    string
		on      []device.PoolAttribute
		between string // event: stream 2 waits for it; time: an hour; sync: of the host; early: the event is from before the free
		stream  int
		want    int
	}{
		{"same stream, nothing allowed", nil, "", 1, 0},
		{"other stream, nothing allowed", nil, "", 2, grows},
		{"nothing allowed, event", nil, "event", 2, grows | late | knows},
		{"nothing allowed, done", nil, "time", 2, grows},
		{"nothing allowed, the host knows", nil, "sync", 2, knows},
		{"follow", attrs(follow), "", 2, grows},
		{"follow, event", attrs(follow), "event", 2, late | knows},
		{"follow, event from before the free", attrs(follow), "early", 2, grows | late},
		{"follow, done", attrs(follow), "time", 2, grows},
		{"lucky", attrs(lucky), "", 2, grows},
		{"lucky, done", attrs(lucky), "time", 2, knows},
		{"lucky, event", attrs(lucky), "event", 2, grows | late | knows},
		{"internal", attrs(internal), "", 2, late | knows},
		{"internal, done", attrs(internal), "time", 2, knows},
		{"everything", attrs(follow, lucky, internal), "", 2, late | knows},
		{"everything, done", attrs(follow, lucky, internal), "time", 2, knows},
		{"all but internal", attrs(follow, lucky), "", 2, grows},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDevice(t, sim.Config{Total: gib, Costs: freeCalls})
			p := must[device.Pool](t)(d.DefaultPool())
			for a := follow; a <= internal; a++ {
				on := uint64(0)
				if slices.Contains(tc.on, a) {
					on = 1
				}
				ok(t, d.PoolSetAttribute(p, a, on))
			}
			ok(t, d.PoolSetAttribute(p, device.PoolReleaseThreshold, gib))
			s := []device.Stream{0, must[device.Stream](t)(d.StreamCreate()), must[device.Stream](t)(d.StreamCreate())}
			e := must[device.Event](t)(d.EventCreate())
			other := must[device.Range](t)(d.Alloc(1))
			old := must[device.Range](t)(d.AllocAsync(p, 32*mib, s[1]))
			ok(t, d.Work(s[1], 9*us, nil, []device.Range{old, other}), d.EventRecord(e, s[1]))
			if tc.between == "early" {
				ok(t, d.StreamWaitEvent(s[2], e))
			}
			ok(t, d.FreeAsync(old.Addr, s[1]), d.EventRecord(e, s[1]))
			switch tc.between {
			case "event":
				ok(t, d.StreamWaitEvent(s[2], e))
			case "time":
				d.Advance(time.Hour)
			case "sync":
				ok(t, d.EventSynchronize(e))
			}
			r := must[device.Range](t)(d.AllocAsync(p, 20*mib, s[tc.stream]))
			var got int
			if r.Addr != old.Addr {
				got |= grows
			}
			if done := must[bool](t)(d.StreamQuery(s[2])); !done {
				got |= late
			}
			if d.Work(s[2], 0, []device.Range{other}, nil) == nil {
				got |= knows
			}
			if tc.between == "early" {
				got &^= knows // of what came before the event it does
			}
			if got != tc.want {
				t.Errorf("got %03b, want %03b (knows, late, grows)", got, tc.want)
			}
			// Either way it may use its block, whoever used it before.
			ok(t, d.Work(s[tc.stream], 0, []device.Range{r}, []device.Range{r}))
		})
	}
}

// TestGentlest: of several free blocks a stream gets the one that costs it
// least, though others fit better, and takes more of the device last.
func TestGentlest(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib, Costs: freeCalls})
	p := must[device.Pool](t)(d.DefaultPool())
	var s [4]device.Stream
	var blocks [4]device.Range
	for i := range s {
		// Larger and larger; each has a chunk to itself.
		s[i] = must[device.Stream](t)(d.StreamCreate())
		blocks[i] = must[device.Range](t)(d.AllocAsync(p, uint64(i+1)*32*mib, s[i]))
	}
	me, e := s[3], must[device.Event](t)(d.EventCreate())
	ok(t, d.Work(s[0], time.Hour, nil, nil))
	for i := range s {
		ok(t, d.FreeAsync(blocks[i].Addr, s[i]))
	}
	ok(t, d.EventRecord(e, s[2]), d.StreamWaitEvent(me, e))
	// Its own, the one that the event orders, the one that is done, the one that
	// it has to wait for, and a new one.
	for _, want := range []uint64{blocks[3].Addr, blocks[2].Addr, blocks[1].Addr, blocks[0].Addr, blocks[3].Addr + 128*mib} {
		r := must[device.Range](t)(d.AllocAsync(p, 17*mib, me))
		if r.Addr != want {
			t.Errorf("got %#x, want %#x", r.Addr, want)
		}
		// The rest of that block, so that it is the next one's turn.
		for _, b := range blocks {
			if b.Addr == r.Addr {
				must[device.Range](t)(d.AllocAsync(p, b.Bytes-r.Bytes, me))
			}
		}
		if want == blocks[0].Addr {
			ok(t, d.StreamSynchronize(me))
			if d.Now() != time.Hour {
				t.Errorf("it waited until %v", d.Now())
			}
		}
	}
}

// TestPoolBlocks: where blocks lie in the chunks and how large they are.
func TestPoolBlocks(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	p := must[device.Pool](t)(d.DefaultPool())
	base := must[device.Range](t)(d.AllocAsync(p, 1, 0))
	if base.Bytes != 512 || base.Addr%(2*mib) != 0 || held(d) != 32*mib {
		t.Fatalf("a byte is %+v of %d", base, held(d))
	}
	alloc := func(n uint64) device.Range { t.Helper(); return must[device.Range](t)(d.AllocAsync(p, n, 0)) }
	free := func(r device.Range) { t.Helper(); ok(t, d.FreeAsync(r.Addr, 0)) }
	want := func(r device.Range, off, bytes uint64) {
		t.Helper()
		if r.Addr != base.Addr+off || r.Bytes != bytes {
			t.Errorf("%d bytes at %#x, want %d at %#x", r.Bytes, r.Addr-base.Addr, bytes, off)
		}
	}
	a, b, c, e := alloc(512), alloc(513), alloc(2048), alloc(1)
	want(a, 512, 512)
	want(b, 1024, 1024)
	want(c, 2048, 2048)
	want(e, 4096, 512)
	free(c)
	free(a)
	want(alloc(1), 512, 512)     // fits best in a
	want(alloc(600), 2048, 1024) // c
	free(b)
	want(alloc(1024), 1024, 1024)      // b again
	want(alloc(1025), 3072+1536, 1536) // after e, not the 1024 bytes before it
	want(alloc(1000), 3072, 1024)
	// A chunk of its own, rounded up to 32 MiB, and the rest of it.
	big := alloc(65 * mib)
	if got := held(d); got != 128*mib {
		t.Errorf("%d MiB are held", got/mib)
	}
	if r := alloc(31 * mib); r.Addr != big.Addr+65*mib {
		t.Errorf("31 MiB lie at %#x from the 65", r.Addr-big.Addr)
	}
	for name, v := range map[device.PoolAttribute]uint64{
		device.PoolReservedCurrent: 128 * mib, device.PoolReservedHigh: 128 * mib,
		device.PoolUsedCurrent: 96*mib + 12*512, device.PoolUsedHigh: 96*mib + 12*512,
	} {
		if got := attr(t, d, p, name); got != v {
			t.Errorf("attribute %d is %d, want %d", name, got, v)
		}
	}
}

// TestPoolAttributes: what can be read and set.
func TestPoolAttributes(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	p := must[device.Pool](t)(d.PoolCreate(0))
	for _, a := range []device.PoolAttribute{follow, lucky, internal} {
		if attr(t, d, p, a) != 1 {
			t.Errorf("attribute %d is not 1 at first", a)
		}
		ok(t, d.PoolSetAttribute(p, a, 0))
		invalid(t, d.PoolSetAttribute(p, a, 2))
		if attr(t, d, p, a) != 0 {
			t.Errorf("attribute %d is not 0", a)
		}
	}
	ok(t, d.PoolSetAttribute(p, device.PoolReleaseThreshold, math.MaxUint64))
	if got := attr(t, d, p, device.PoolReleaseThreshold); got != math.MaxUint64 {
		t.Errorf("the threshold is %d", got)
	}
	a, b := must[device.Range](t)(d.AllocAsync(p, mib, 0)), must[device.Range](t)(d.AllocAsync(p, 32*mib, 0))
	ok(t, d.FreeAsync(b.Addr, 0), d.Synchronize(), d.PoolTrim(p, 0))
	for _, step := range []struct {
		set          device.PoolAttribute
		r, rh, u, uh uint64
	}{
		{0, 32 * mib, 64 * mib, mib, 33 * mib},
		{device.PoolReservedHigh, 32 * mib, 32 * mib, mib, 33 * mib},
		{device.PoolUsedHigh, 32 * mib, 32 * mib, mib, mib},
	} {
		if step.set != 0 {
			ok(t, d.PoolSetAttribute(p, step.set, 0))
		}
		for i, want := range []uint64{step.r, step.rh, step.u, step.uh} {
			if got := attr(t, d, p, device.PoolReservedCurrent+device.PoolAttribute(i)); got != want {
				t.Errorf("after %d is set: attribute %d is %d, want %d", step.set, int(device.PoolReservedCurrent)+i, got, want)
			}
		}
	}
	_, low := d.PoolGetAttribute(p, 0)
	_, high := d.PoolGetAttribute(p, 9)
	_, minus := d.PoolGetAttribute(p, -1)
	invalid(t, low, high, minus, d.PoolSetAttribute(p, 0, 0), d.PoolSetAttribute(p, 9, 0), d.PoolSetAttribute(p, -1, 0),
		d.PoolSetAttribute(p, device.PoolReservedHigh, 1), d.PoolSetAttribute(p, device.PoolUsedHigh, 1),
		d.PoolSetAttribute(p, device.PoolReservedCurrent, 0), d.PoolSetAttribute(p, device.PoolUsedCurrent, 0))
	ok(t, d.FreeAsync(a.Addr, 0))
}

// TestPoolRelease: what is held after three chunks of 32, 64 and 96 MiB were
// filled, and some of them freed.
func TestPoolRelease(t *testing.T) {
	for _, tc := range []struct {
		name      string
		free      []int
		threshold uint64
		then      string
		want      uint64 // MiB
	}{
		{"nothing freed", nil, 0, "sync", 192},
		{"all freed", []int{0, 1, 2}, 0, "sync", 0},
		{"all freed, the host does not know", []int{0, 1, 2}, 0, "", 192},
		{"all freed, the host asks", []int{0, 1, 2}, 0, "query", 192},
		{"all freed, by an event", []int{0, 1, 2}, 0, "event", 0},
		{"all freed, by everything", []int{0, 1, 2}, 0, "all", 0},
		{"all freed, of another stream", []int{0, 1, 2}, 0, "other", 192},
		{"a part of each chunk", []int{3}, 0, "sync", 192},
		{"one chunk", []int{1}, 0, "sync", 128},
		{"all above the threshold", []int{0, 1, 2}, 100 * mib, "sync", 192 - 64},
		{"no chunk fits above the threshold", []int{2}, 97 * mib, "sync", 192},
		{"just one", []int{2}, 96 * mib, "sync", 96},
		{"huge threshold", []int{0, 1, 2}, math.MaxUint64, "sync", 192},
		{"trim knows no more than the host", []int{0, 1, 2}, gib, "trim 0", 192},
		{"trim", []int{0, 1, 2}, gib, "sync, trim 0", 0},
		{"trim keeps as much as it says", []int{0, 1, 2}, gib, "sync, trim 33", 64},
		{"trim keeps what is used", []int{0, 1}, gib, "sync, trim 0", 96},
		{"trim to what there is", []int{0, 1, 2}, gib, "sync, trim 192", 192},
		{"trim to more than there is", []int{0, 1, 2}, gib, "sync, trim 999", 192},
		{"query, trim", []int{0, 1, 2}, gib, "query, trim 0", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDevice(t, sim.Config{Total: gib, Costs: freeCalls})
			p := must[device.Pool](t)(d.DefaultPool())
			e, other := must[device.Event](t)(d.EventCreate()), must[device.Stream](t)(d.StreamCreate())
			ok(t, d.PoolSetAttribute(p, device.PoolReleaseThreshold, tc.threshold))
			var blocks []device.Range
			for _, n := range []uint64{32, 64, 95, 1} {
				blocks = append(blocks, must[device.Range](t)(d.AllocAsync(p, n*mib, 0)))
			}
			for _, i := range tc.free {
				ok(t, d.FreeAsync(blocks[i].Addr, 0))
				if i == 2 { // with the one beside it
					ok(t, d.FreeAsync(blocks[3].Addr, 0))
				}
			}
			ok(t, d.EventRecord(e, 0))
			var keep uint64
			switch n, _ := fmt.Sscanf(tc.then, "sync, trim %d", &keep); {
			case n == 1:
				ok(t, d.StreamSynchronize(0), d.PoolTrim(p, keep*mib))
			case tc.then == "sync":
				ok(t, d.StreamSynchronize(0))
			case tc.then == "other":
				ok(t, d.StreamSynchronize(other))
			case tc.then == "all":
				ok(t, d.Synchronize())
			case tc.then == "event":
				ok(t, d.EventSynchronize(e))
			case tc.then == "trim 0":
				ok(t, d.PoolTrim(p, 0))
			case tc.then == "query":
				must[bool](t)(d.StreamQuery(0))
			case tc.then == "query, trim 0":
				must[bool](t)(d.StreamQuery(0))
				ok(t, d.PoolTrim(p, 0))
			}
			if got := held(d); got != tc.want*mib || attr(t, d, p, device.PoolReservedCurrent) != got {
				t.Errorf("%d MiB are held, %d by the pool; want %d", got/mib, attr(t, d, p, device.PoolReservedCurrent)/mib, tc.want)
			}
		})
	}
}

// TestPoolLimits: how far a pool grows.
func TestPoolLimits(t *testing.T) {
	for _, tc := range []struct {
		name       string
		total, max uint64
		asks       []uint64
		want       []uint64 // bytes held after each; 0: refused
	}{
		{"32 MiB at a time", gib, 0, []uint64{1, 32 * mib, 32*mib + 1}, []uint64{32 * mib, 64 * mib, 128 * mib}},
		{"2 MiB where 32 do not fit", 35 * mib, 0, []uint64{32 * mib, mib, mib, 1}, []uint64{32 * mib, 34 * mib, 34 * mib, 0}},
		{"less than 2 MiB left", 2*mib - 1, 0, []uint64{1}, []uint64{0}},
		{"a limit", gib, 33 * mib, []uint64{1, 32 * mib}, []uint64{32 * mib, 0}},
		{"a limit below a chunk", gib, 7 * mib, []uint64{6*mib + 1, 6 * mib, 1}, []uint64{0, 6 * mib, 0}},
		{"a limit below anything", gib, mib, []uint64{1}, []uint64{0}},
		{"too large", gib, 0, []uint64{gib + 1, math.MaxUint64, math.MaxUint64 - 1023, gib}, []uint64{0, 0, 0, gib}},
		{"too large for a limit", gib, math.MaxUint64, []uint64{math.MaxUint64, math.MaxUint64 - 1023}, []uint64{0, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDevice(t, sim.Config{Total: tc.total})
			p := must[device.Pool](t)(d.PoolCreate(tc.max))
			var now uint64
			for i, n := range tc.asks {
				r, err := d.AllocAsync(p, n, 0)
				if tc.want[i] == 0 {
					var call *device.CallError
					if !errors.Is(err, device.ErrOutOfMemory) || !errors.As(err, &call) || call.Bytes != n {
						t.Errorf("AllocAsync(%d) = %+v, %v", n, r, err)
					}
				} else if now = tc.want[i]; err != nil || r.Bytes < n {
					t.Errorf("AllocAsync(%d) = %+v, %v", n, r, err)
				}
				if held(d) != now {
					t.Errorf("after %d bytes %d are held, want %d", n, held(d), now)
				}
			}
		})
	}
}

// TestPoolsApart: a pool's unused memory is no other's, and not the device's.
func TestPoolsApart(t *testing.T) {
	d := newDevice(t, sim.Config{Total: 33 * mib})
	p, q := must[device.Pool](t)(d.DefaultPool()), must[device.Pool](t)(d.PoolCreate(0))
	r := must[device.Range](t)(d.AllocAsync(p, 1, 0))
	ok(t, d.FreeAsync(r.Addr, 0))
	for i, err := range []error{
		func() error { _, err := d.AllocAsync(q, 1, 0); return err }(),
		func() error { _, err := d.Alloc(2 * mib); return err }(),
		func() error { _, err := d.MemCreate(2 * mib); return err }(),
	} {
		if !errors.Is(err, device.ErrOutOfMemory) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	ok(t, d.StreamSynchronize(0))
	must[device.Range](t)(d.AllocAsync(q, 32*mib, 0))
}

// TestPoolDestroy: the handle ends at once, the memory as it is freed.
func TestPoolDestroy(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	p := must[device.Pool](t)(d.DefaultPool())
	q := must[device.Pool](t)(d.PoolCreate(0))
	ok(t, d.PoolSetAttribute(q, device.PoolReleaseThreshold, gib))
	a, b := must[device.Range](t)(d.AllocAsync(q, 32*mib, 0)), must[device.Range](t)(d.AllocAsync(q, 64*mib, 0))
	c := must[device.Range](t)(d.AllocAsync(q, 96*mib, 0))
	ok(t, d.FreeAsync(a.Addr, 0), d.Synchronize(), d.FreeAsync(b.Addr, 0), d.PoolDestroy(q))
	if held(d) != (64+96)*mib { // the host does not know of b
		t.Errorf("%d MiB are held", held(d)/mib)
	}
	_, get := d.PoolGetAttribute(q, follow)
	_, alloc := d.AllocAsync(q, 1, 0)
	invalid(t, get, alloc, d.PoolSetAttribute(q, follow, 0), d.PoolTrim(q, 0), d.PoolDestroy(q), d.PoolDestroy(p), d.PoolDestroy(0), d.PoolDestroy(99))
	ok(t, d.FillAsync(c.Addr, c.Bytes, 1, 0), d.FreeAsync(c.Addr, 0))
	if next := must[device.Pool](t)(d.PoolCreate(0)); next == q || next == p {
		t.Errorf("the handle %d comes again", next)
	}
	ok(t, d.Synchronize())
	if held(d) != 0 {
		t.Errorf("%d MiB are held", held(d)/mib)
	}
	if own := must[device.Pool](t)(d.DefaultPool()); own != p {
		t.Errorf("the default pool is %d and was %d", own, p)
	}
}

// TestFreeAsyncErrors: what cannot be freed so is refused and stays.
func TestFreeAsyncErrors(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	p := must[device.Pool](t)(d.DefaultPool())
	r := must[device.Range](t)(d.AllocAsync(p, mib, 0))
	plain := must[device.Range](t)(d.Alloc(1))
	va, h := must[uint64](t)(d.AddressReserve(2*mib, 0)), must[device.Handle](t)(d.MemCreate(2*mib))
	ok(t, d.MemMap(va, 2*mib, h))
	_, none := d.AllocAsync(p, 0, 0)
	_, stream := d.AllocAsync(p, 1, 99)
	_, pool := d.AllocAsync(0, 1, 0)
	invalid(t, none, stream, pool, d.FreeAsync(r.Addr+512, 0), d.FreeAsync(r.Addr, 99), d.FreeAsync(0, 0), d.FreeAsync(va, 0), d.FreeAsync(plain.Addr+512, 0), d.Free(r.Addr))
	ok(t, d.FreeAsync(r.Addr, 0), d.FreeAsync(plain.Addr, 0))
	invalid(t, d.FreeAsync(r.Addr, 0), d.FreeAsync(plain.Addr, 0), d.Free(plain.Addr))
	if held(d) != (32+2+2)*mib {
		t.Errorf("%d MiB are held", held(d)/mib)
	}
	ok(t, d.StreamSynchronize(0))
	if held(d) != 2*mib {
		t.Errorf("%d MiB are held", held(d)/mib)
	}
	if h := d.Hazards(); len(h) != 0 {
		t.Errorf("hazards: %v", h)
	}
}

// TestPlainFreeAsync: a plain grant goes back when the host knows, and costs
// then what a plain free does.
func TestPlainFreeAsync(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	s := must[device.Stream](t)(d.StreamCreate())
	a, b := must[device.Range](t)(d.Alloc(64*mib)), must[device.Range](t)(d.Alloc(2*mib))
	ok(t, d.FillAsync(a.Addr, 1, 1, s), d.FreeAsync(a.Addr, s), d.FreeAsync(b.Addr, 0), d.StreamSynchronize(0))
	if held(d) != 64*mib {
		t.Errorf("%d MiB are held", held(d)/mib)
	}
	before := d.Counters().Time
	ok(t, d.StreamSynchronize(s))
	if got, want := d.Counters().Time-before, us+160*us+62*us-5*us; held(d) != 0 || got != want {
		t.Errorf("%d MiB are held after %v, want %v", held(d)/mib, got, want)
	}
}

// TestNoPools: a device without pools says so to every call.
func TestNoPools(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib, NoPools: true})
	r := must[device.Range](t)(d.Alloc(1))
	_, e1 := d.DefaultPool()
	_, e2 := d.PoolCreate(0)
	_, e3 := d.AllocAsync(1, 1, 0)
	_, e4 := d.PoolGetAttribute(1, follow)
	for i, err := range []error{e1, e2, e3, e4, d.PoolSetAttribute(1, follow, 1), d.PoolTrim(1, 0), d.PoolDestroy(1), d.FreeAsync(r.Addr, 0)} {
		if !errors.Is(err, device.ErrNotSupported) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	ok(t, d.Synchronize(), d.Free(r.Addr))
}

// cell is 256 KiB of a chunk as the model sees them.
type cell struct {
	used  bool
	freed int // node of the last free; 0: none
	by    device.Stream
	at    time.Duration
}

type modelChunk struct {
	addr  uint64
	cells []cell
}

type modelPool struct {
	handle    device.Pool // 0: ended
	max       uint64
	threshold uint64
	on        [4]bool // by attribute
	chunks    []modelChunk
}

func (p *modelPool) reserved() (n uint64) {
	for _, c := range p.chunks {
		n += uint64(len(c.cells)) * 256 * kib
	}
	return n
}

// release is the rule of threshold and trim.
func (p *modelPool) release(keep uint64, known []bool) {
	for i := len(p.chunks) - 1; i >= 0; i-- {
		inUse := slices.ContainsFunc(p.chunks[i].cells, func(c cell) bool { return c.used || !known[c.freed] })
		if size := uint64(len(p.chunks[i].cells)) * 256 * kib; !inUse && p.reserved() >= size && p.reserved()-size >= keep {
			p.chunks = slices.Delete(p.chunks, i, i+1)
		}
	}
}

// TestPoolModel runs random programs on a device with pools and on a model that
// cuts chunks into cells of 256 KiB, looks at each, and asks the graph of all
// that was queued whether a stream may have it. Blocks lie exactly where the
// model says; so no two share a byte, and none is reused where the attributes
// do not allow it, or where a gentler way was open.
func TestPoolModel(t *testing.T) {
	const unit = 256 * kib
	check(t, func(t *rapid.T) {
		// No chunk of 32 MiB fits, so they are of 2 MiB and more.
		const total = 12 * mib
		w := newWorld(t, sim.Config{Total: total, Granularity: unit, Costs: sim.Costs{Async: sim.AsyncCosts{PoolRelease: us}}})
		d := w.d
		own, err1 := d.DefaultPool()
		second, err2 := d.PoolCreate(5 * mib)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		pools := []*modelPool{{handle: own, on: [4]bool{1: true, 2: true, 3: true}}, {handle: second, max: 5 * mib, on: [4]bool{1: true, 2: true, 3: true}}}
		type block struct {
			device.Range
			plain bool
			freed int // node, of a plain grant
		}
		var (
			live, dead []block // allocated; freed, of which plain grants wait to go back
			reserved   = func() (n uint64) {
				for _, p := range pools {
					n += p.reserved()
				}
				for _, list := range [][]block{live, dead} {
					for _, b := range list {
						if b.plain {
							n += b.Bytes
						}
					}
				}
				return n
			}
			cellsOf = func(r device.Range) []cell {
				for _, p := range pools {
					for _, c := range p.chunks {
						if i := int(r.Addr-c.addr) / unit; r.Addr >= c.addr && i < len(c.cells) {
							return c.cells[i : i+int(r.Bytes)/unit]
						}
					}
				}
				return nil
			}
			uses = func(r device.Range, write bool) []bytesUsed {
				return []bytesUsed{{"all", r.Addr, r.Addr + r.Bytes, r.Addr, write}}
			}
			settle = func(*rapid.T) {
				known := w.before(w.host)
				dead = slices.DeleteFunc(dead, func(b block) bool { return b.plain && known[b.freed] })
				for _, p := range pools {
					p.release(p.threshold, known)
				}
				pools = slices.DeleteFunc(pools, func(p *modelPool) bool { return p.handle == 0 && len(p.chunks) == 0 })
			}
			pool = func(t *rapid.T) *modelPool {
				open := slices.DeleteFunc(slices.Clone(pools), func(p *modelPool) bool { return p.handle == 0 })
				return rapid.SampledFrom(open).Draw(t, "pool")
			}
		)
		// place is where the model puts n cells for s: a chunk and the first cell.
		place := func(p *modelPool, s device.Stream, n int) (int, int) {
			known, seen := w.before(w.host), w.before(w.tail[s], w.host)
			way := func(c cell) int {
				switch {
				case c.used:
					return 9
				case known[c.freed] || c.by == s:
					return 0
				case p.on[follow] && seen[c.freed]:
					return 1
				case p.on[lucky] && c.at <= d.Now():
					return 2
				case p.on[internal]:
					return 3
				}
				return 9
			}
			for most := range 4 {
				chunk, first, least := -1, 0, math.MaxInt
				for i, c := range p.chunks {
					for from := 0; from < len(c.cells); from++ {
						to := from
						for to < len(c.cells) && way(c.cells[to]) <= most {
							to++
						}
						if size := to - from; size >= n && size < least {
							chunk, first, least = i, from, size
						}
						from = to
					}
				}
				if chunk >= 0 {
					return chunk, first
				}
			}
			return -1, 0
		}
		actions := with(w.streams(), w.syncs(settle), map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				p, s, n := pool(t), w.stream(t), rapid.IntRange(1, 10).Draw(t, "cells")
				bytes := uint64(n) * unit
				before := d.Now()
				chunk, first := place(p, s, n)
				r, err := d.AllocAsync(p.handle, bytes-rapid.Uint64Range(0, 511).Draw(t, "less"), s)
				if chunk < 0 {
					size := (bytes + 2*mib - 1) / (2 * mib) * (2 * mib)
					if p.max != 0 && p.reserved()+size > p.max || reserved()+size > total {
						if !errors.Is(err, device.ErrOutOfMemory) {
							t.Fatalf("%+v, %v where there is no room", r, err)
						}
						return
					}
					p.chunks = append(p.chunks, modelChunk{r.Addr, make([]cell, size/unit)})
					chunk = len(p.chunks) - 1
				}
				if want := (device.Range{Addr: p.chunks[chunk].addr + uint64(first)*unit, Bytes: bytes}); err != nil || r != want || d.Now() != before {
					t.Fatalf("%+v, %v at %v; want %+v at %v", r, err, d.Now(), want, before)
				}
				var after []int
				for i := range n {
					c := &p.chunks[chunk].cells[first+i]
					after = append(after, c.freed)
					w.end[s] = max(w.end[s], c.at)
					*c = cell{used: true}
				}
				if clash := w.clash(uses(r, true), append(after, w.tail[s], w.host)...); len(clash) > 0 {
					t.Fatalf("%+v was allocated while %+v may be under way", r, w.nodes[clash[0]])
				}
				w.queue("cuMemAllocFromPoolAsync", s, 0, uses(r, true), after...)
				live = append(live, block{Range: r})
			},
			"alloc plain": func(t *rapid.T) {
				r, err := d.Alloc(unit)
				if fits := reserved()+unit <= total; (err == nil) != fits {
					t.Fatalf("%+v, %v with %d held", r, err, reserved())
				}
				if err == nil {
					live = append(live, block{Range: r, plain: true})
				}
			},
			"free": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip("nothing allocated")
				}
				s, i := w.stream(t), rapid.IntRange(0, len(live)-1).Draw(t, "which")
				b := live[i]
				if !w.judge(t, d.FreeAsync(b.Addr, s), w.clash(uses(b.Range, true), w.tail[s], w.host)) {
					return
				}
				b.freed = w.queue("cuMemFreeAsync", s, 0, uses(b.Range, true))
				for i := range cellsOf(b.Range) {
					cellsOf(b.Range)[i] = cell{freed: b.freed, by: s, at: w.end[s]}
				}
				live, dead = slices.Delete(live, i, i+1), append(dead, b)
			},
			"use": func(t *rapid.T) {
				all := append(slices.Clone(live), dead...)
				if len(all) == 0 {
					t.Skip("nothing allocated")
				}
				b, s := rapid.SampledFrom(all).Draw(t, "block"), w.stream(t)
				write, takes := rapid.Bool().Draw(t, "write"), time.Duration(rapid.IntRange(0, 100).Draw(t, "us"))*us
				ranges := [2][]device.Range{}
				ranges[b2i(write)] = []device.Range{b.Range}
				err := d.Work(s, takes, ranges[0], ranges[1])
				// A freed block may have become a part of another, which is fine for the
				// device; only that it is memory of one allocation counts.
				there := b.plain && b.freed == 0 || slices.ContainsFunc(live, func(o block) bool {
					return !o.plain && o.Addr <= b.Addr && b.Addr+b.Bytes <= o.Addr+o.Bytes
				})
				if there {
					if w.judge(t, err, w.clash(uses(b.Range, write), w.tail[s], w.host)) {
						w.queue("cuLaunchKernel", s, takes, uses(b.Range, write))
					}
					return
				}
				want := sim.Freed
				if !b.plain && (cellsOf(b.Range) == nil || !slices.ContainsFunc(cellsOf(b.Range), func(c cell) bool { return !c.used })) {
					want = sim.NothingThere
				}
				var h *sim.Hazard
				if !errors.As(err, &h) || h.Reason != want {
					t.Fatalf("%v of %+v, which is not there", err, b)
				}
			},
			"trim": func(t *rapid.T) {
				p, keep := pool(t), rapid.Uint64Range(0, 6).Draw(t, "MiB")*mib
				if err := d.PoolTrim(p.handle, keep); err != nil {
					t.Fatal(err)
				}
				p.release(keep, w.before(w.host))
			},
			"set": func(t *rapid.T) {
				p := pool(t)
				a := device.PoolAttribute(rapid.IntRange(1, 4).Draw(t, "attribute"))
				v := rapid.Uint64Range(0, 1).Draw(t, "value")
				if a == device.PoolReleaseThreshold {
					v = rapid.SampledFrom([]uint64{0, 2 * mib, 3 * mib, math.MaxUint64}).Draw(t, "threshold")
					p.threshold = v
				} else {
					p.on[a] = v == 1
				}
				if err := d.PoolSetAttribute(p.handle, a, v); err != nil {
					t.Fatal(err)
				}
			},
			"replace": func(t *rapid.T) {
				p := pools[len(pools)-1]
				if err := d.PoolDestroy(p.handle); p.handle == own || p.handle == 0 {
					if !errors.Is(err, device.ErrInvalidValue) {
						t.Fatal(err)
					}
				} else if err != nil {
					t.Fatal(err)
				} else {
					p.release(0, w.before(w.host))
					p.handle, p.threshold = 0, 0
					pools = slices.DeleteFunc(pools, func(p *modelPool) bool { return p.handle == 0 && len(p.chunks) == 0 })
				}
				h, err := d.PoolCreate(0)
				if err != nil {
					t.Fatal(err)
				}
				pools = append(pools, &modelPool{handle: h, on: [4]bool{1: true, 2: true, 3: true}})
			},
			"": func(t *rapid.T) {
				if got := held(d); got != reserved() {
					t.Fatalf("%d held, want %d", got, reserved())
				}
				for _, p := range pools {
					if p.handle == 0 {
						continue
					}
					var used uint64
					for _, c := range p.chunks {
						for _, cell := range c.cells {
							used += unit * uint64(b2i(cell.used))
						}
					}
					r, err1 := d.PoolGetAttribute(p.handle, device.PoolReservedCurrent)
					u, err2 := d.PoolGetAttribute(p.handle, device.PoolUsedCurrent)
					if err1 != nil || err2 != nil || r != p.reserved() || u != used {
						t.Fatalf("%d reserved, %d used (%v, %v); want %d and %d", r, u, err1, err2, p.reserved(), used)
					}
				}
			},
		})
		t.Repeat(actions)
		// At the end everything goes back.
		if err := d.Synchronize(); err != nil {
			t.Fatal(err)
		}
		for _, b := range live {
			if err := d.FreeAsync(b.Addr, 0); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range pools {
			if p.handle != 0 {
				if err := d.PoolSetAttribute(p.handle, device.PoolReleaseThreshold, 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := d.StreamSynchronize(0); err != nil || held(d) != 0 {
			t.Fatalf("%d held at the end, %v", held(d), err)
		}
	})
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestPoolNoGarbage: blocks that come and go take no memory of the host, once there were as
// many; also where two streams take turns, and with sizes that share a class.
func TestPoolNoGarbage(t *testing.T) {
	for _, streams := range []int{1, 2} {
		d := newDevice(t, sim.Config{Total: 1 << 40})
		p := must[device.Pool](t)(d.DefaultPool())
		s := []device.Stream{0, 0}
		if streams == 2 {
			s[1] = must[device.Stream](t)(d.StreamCreate())
		}
		var blocks [64]uint64
		turn := func() {
			for i := range blocks {
				blocks[i] = must[device.Range](t)(d.AllocAsync(p, uint64(1+i*i*9000), s[i%2])).Addr
			}
			for i := range blocks {
				j := i * 37 % len(blocks)
				ok(t, d.FreeAsync(blocks[j], s[j%2]))
			}
		}
		for range 20 {
			turn()
		}
		if n := testing.AllocsPerRun(100, turn); n != 0 {
			t.Errorf("%d streams: %v allocations on the Go heap for %d calls", streams, n, 2*len(blocks))
		}
	}
}
