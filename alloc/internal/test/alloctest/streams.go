package alloctest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"gpumem"
	"gpumem/alloc"
	"gpumem/alloc/internal/ref"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/policy"
	"gpumem/policy/frameworks"
)

// RunStreams runs the contract for streams on a policy's pool: what a number may
// be, what becomes of blocks whose stream was destroyed, and that no caller waits
// for the device with the pool locked.
func RunStreams(t *testing.T, spec string) {
	p, err := frameworks.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("unknown number", func(t *testing.T) { unknownNumber(t, p) })
	t.Run("dead and foreign block", func(t *testing.T) { deadBlock(t, p) })
	t.Run("bad alignment", func(t *testing.T) { badAlignment(t, p) })
	for _, word := range []string{"no word", "word before", "word after"} {
		for _, when := range []string{"the only stream", "beside another"} {
			for _, work := range []bool{false, true} {
				for _, reuse := range []bool{false, true} {
					t.Run(fmt.Sprintf("destroyed stream, %s, %s, work queued %v, handle used again %v", word, when, work, reuse), func(t *testing.T) {
						destroyedStream(t, p, word, when == "beside another", work, reuse)
					})
				}
			}
		}
	}
	t.Run("lagging device", func(t *testing.T) { laggingDevice(t, p) })
	t.Run("waiting leaves the pool unlocked", func(t *testing.T) { waitsUnlocked(t, p) })
	t.Run("a second pool", func(t *testing.T) { secondPool(t, p) })
}

// stand is a pool on a small device.
type stand struct {
	*testing.T
	dev  *sim.Device
	pool *gpumem.Pool
}

func newStand(t *testing.T, p policy.Policy, opts ...gpumem.Option) *stand {
	t.Helper()
	dev, err := sim.New(sim.Config{Total: 96 << 20, ReuseStreams: true})
	if err != nil {
		t.Fatal(err)
	}
	return newStandOn(t, dev, dev, p, opts...)
}

func newStandOn(t *testing.T, dev *sim.Device, gpu device.GPU, p policy.Policy, opts ...gpumem.Option) *stand {
	t.Helper()
	pool, err := gpumem.Open(gpu, p, append([]gpumem.Option{gpumem.WithRetry(0)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	s := &stand{t, dev, pool}
	t.Cleanup(s.close)
	return s
}

func (s *stand) close() {
	s.Helper()
	if err := s.pool.Close(); err != nil && !errors.Is(err, gpumem.ErrClosed) { // by the test
		s.Error(err)
	}
	if found := s.dev.Hazards(); len(found) > 0 {
		s.Errorf("%d hazards, the first: %v", len(found), found[0])
	}
	if held, _ := s.dev.Held(); held != 0 {
		s.Errorf("%d bytes are held after Close", held)
	}
}

func (s *stand) must(errs ...error) {
	s.Helper()
	if err := errors.Join(errs...); err != nil {
		s.Fatal(err)
	}
}

func (s *stand) request(bytes uint64, stream uint32) gpumem.Block {
	s.Helper()
	b, err := s.pool.Request(s.Context(), gpumem.Request{Bytes: bytes, Stream: stream})
	s.must(err)
	return b
}

func (s *stand) work(b gpumem.Block, h device.Stream, took time.Duration) {
	s.Helper()
	s.must(s.dev.Work(h, took, nil, []device.Range{{Addr: b.Addr, Bytes: b.Size}}))
}

// fill allocates all free memory in pieces and frees it again.
func (s *stand) fill(stream uint32) {
	s.Helper()
	var all []gpumem.Block
	for {
		b, err := s.pool.Request(s.Context(), gpumem.Request{Bytes: 3 << 20, Stream: stream})
		if errors.Is(err, gpumem.ErrOutOfMemory) {
			break
		}
		s.must(err)
		all = append(all, b)
	}
	if len(all) < 10 {
		s.Errorf("only %d pieces of 3 MiB were served", len(all))
	}
	for _, b := range all {
		s.must(s.pool.Free(b))
	}
}

func unknownNumber(t *testing.T, p policy.Policy) {
	s := newStand(t, p)
	b := s.request(1<<20, 0)
	before := s.pool.Stats()
	if _, err := s.pool.Request(t.Context(), gpumem.Request{Bytes: 1 << 20, Stream: 99}); !errors.Is(err, gpumem.ErrBadRequest) {
		t.Errorf("Request in stream 99: %v", err)
	}
	if err := s.pool.RecordStream(b, 99); !errors.Is(err, gpumem.ErrBadRequest) {
		t.Errorf("RecordStream in stream 99: %v", err)
	}
	if after := s.pool.Stats(); after != before {
		t.Errorf("statistics changed from %+v to %+v", before, after)
	}
	s.must(s.pool.Free(b))
	s.fill(0)
	_, err := s.pool.Trim()
	s.must(err)
	s.fill(0)
}

func deadBlock(t *testing.T, p policy.Policy) {
	s := newStand(t, p)
	h, err := s.dev.StreamCreate()
	s.must(err)
	n := s.pool.Stream(h)
	b := s.request(1<<20, 0)
	s.must(s.pool.Free(b))
	if err := s.pool.RecordStream(b, n); !errors.Is(err, gpumem.ErrDoubleFree) && !errors.Is(err, gpumem.ErrNotAllocated) {
		t.Errorf("RecordStream of a freed block: %v", err)
	}
	if err := s.pool.RecordStream(gpumem.Block(alloc.Block{Addr: 12345, Size: 1, Ref: ref.Make(1<<20, 3)}), n); !errors.Is(err, gpumem.ErrNotAllocated) {
		t.Errorf("RecordStream of another pool's block: %v", err)
	}
	s.must(s.pool.RecordStream(gpumem.Block{}, n))
	// The next block there has nothing to do with that stream.
	s.must(s.dev.Work(h, time.Hour, nil, nil))
	next := s.request(1<<20, 0)
	s.work(next, 0, 0)
	s.must(s.pool.Free(next), s.dev.StreamSynchronize(0))
	// Where each free is the driver's, that waits for everything.
	if now := s.dev.Now(); now >= time.Hour && p.Kind != policy.Platform && p.Kind != policy.Address && !p.Eager {
		t.Errorf("waited %v for a stream that used nothing", now)
	}
}

func badAlignment(t *testing.T, p policy.Policy) {
	s := newStand(t, p, gpumem.WithRetry(time.Hour))
	a := s.request(1<<20, 0)
	x := s.request(40<<20, 0)
	s.must(s.pool.Free(x))
	before := s.pool.Stats()
	for _, align := range []uint64{3, 5, 255, 768, 1<<62 + 1} {
		if _, err := s.pool.Request(t.Context(), gpumem.Request{Bytes: 1 << 20, Align: align}); !errors.Is(err, gpumem.ErrBadRequest) {
			t.Errorf("alignment %d: %v, want ErrBadRequest", align, err)
		}
	}
	if p.IgnoreAlign {
		return
	}
	// Refused at once, though the retry is an hour and something is live.
	if _, err := s.pool.Request(t.Context(), gpumem.Request{Bytes: 1 << 20, Align: 1 << 62}); !errors.Is(err, alloc.ErrNever) {
		t.Errorf("alignment 2^62: %v, want ErrNever", err)
	}
	if after := s.pool.Stats(); after != before {
		t.Errorf("statistics changed from %+v to %+v", before, after)
	}
	s.must(s.pool.Free(a))
}

// destroyedStream frees a block whose stream was destroyed, and uses its memory
// in another stream while work of the first may still run.
func destroyedStream(t *testing.T, p policy.Policy, word string, beside, work, reuse bool) {
	s := newStand(t, p)
	var keep gpumem.Block
	if beside {
		keep = s.request(1<<20, 0)
	}
	h, err := s.dev.StreamCreate()
	s.must(err)
	n := s.pool.Stream(h)
	a, b := s.request(4<<20, n), s.request(4<<20, n)
	if work {
		s.work(a, h, time.Second)
		s.work(b, h, time.Second)
	}
	s.must(s.pool.Free(a)) // while the stream lives
	if word == "word before" {
		s.must(s.pool.RetireStream(h))
	}
	s.must(s.dev.StreamDestroy(h))
	if word == "word after" {
		s.must(s.pool.RetireStream(h))
	}
	in, number := device.Stream(0), uint32(0)
	if reuse {
		if in, err = s.dev.StreamCreate(); err != nil || in != h {
			t.Fatalf("stream %d, %v: the handle is not used again", in, err)
		}
		if number = s.pool.Stream(in); number == n {
			t.Fatal("the new stream has the old one's number")
		}
	}
	s.must(s.pool.Free(b))
	for range 3 {
		var all []gpumem.Block
		for range 4 {
			next := s.request(4<<20, number)
			s.work(next, in, time.Millisecond)
			all = append(all, next)
		}
		for _, next := range all {
			s.must(s.pool.Free(next))
		}
		_, err := s.pool.Trim()
		s.must(err)
	}
	s.fill(number)
	if word != "no word" {
		if _, err := s.pool.Request(t.Context(), gpumem.Request{Bytes: 1, Stream: n}); !errors.Is(err, gpumem.ErrBadRequest) {
			t.Errorf("a request in the retired stream: %v", err)
		}
	}
	s.must(s.pool.Free(keep))
}

// laggingDevice frees and allocates while no work gets done. The device is asked
// a few times for each operation at most.
func laggingDevice(t *testing.T, p policy.Policy) {
	s := newStand(t, p)
	h, err := s.dev.StreamCreate()
	s.must(err)
	numbers := []uint32{0, s.pool.Stream(h)}
	const many = 600
	var blocks []gpumem.Block
	for i := range many {
		b, err := s.pool.Request(t.Context(), gpumem.Request{Bytes: 4096, Stream: numbers[i&1]})
		if errors.Is(err, gpumem.ErrOutOfMemory) {
			break // a block is a page, or a grant
		}
		s.must(err)
		blocks = append(blocks, b)
	}
	s.must(s.dev.Work(0, time.Hour, nil, nil), s.dev.Work(h, time.Hour, nil, nil))
	before := s.dev.Counters().Calls
	for _, b := range blocks {
		s.must(s.pool.Free(b))
	}
	for i := range blocks {
		blocks[i] = s.request(4096, numbers[i>>1&1])
	}
	if calls, most := s.dev.Counters().Calls-before, uint64(12*len(blocks)); calls > most {
		t.Errorf("%d driver calls for %d frees and as many allocations, want at most %d", calls, len(blocks), most)
	}
	for _, b := range blocks {
		s.must(s.pool.Free(b))
	}
}

// gated is a device whose waits last until the gate is opened.
type gated struct {
	*sim.Device
	entered chan struct{} // has an element when somebody waits
	gate    chan struct{}
}

func (g gated) hold() {
	select {
	case g.entered <- struct{}{}:
	default:
	}
	<-g.gate
}

func (g gated) StreamSynchronize(h device.Stream) error {
	g.hold()
	return g.Device.StreamSynchronize(h)
}
func (g gated) EventSynchronize(e device.Event) error { g.hold(); return g.Device.EventSynchronize(e) }
func (g gated) Synchronize() error                    { g.hold(); return g.Device.Synchronize() }

// waitsUnlocked: while Trim, or the free of a block of one handle, waits for the
// device, the pool serves others.
func waitsUnlocked(t *testing.T, p policy.Policy) {
	for _, what := range []string{"Trim", "Free of one handle", "Alloc", "Close"} {
		t.Run(what, func(t *testing.T) {
			dev, err := sim.New(sim.Config{Total: 96 << 20})
			if err != nil {
				t.Fatal(err)
			}
			g := gated{dev, make(chan struct{}, 1), make(chan struct{})}
			s := newStandOn(t, dev, g, p, gpumem.WithIdleTrim(0), gpumem.WithLowWater(0))
			keep := s.request(1<<20, 0)
			one, err := s.pool.Request(t.Context(), gpumem.Request{Bytes: 8 << 20, OneHandle: true})
			s.must(err)
			s.work(one, 0, time.Hour)
			b := s.request(40<<20, 0)
			s.work(b, 0, time.Hour)

			ended := make(chan error, 1)
			run := func(f func() error) { go func() { ended <- f() }() }
			switch what {
			case "Trim":
				run(func() error {
					err := s.pool.Free(b)
					_, trim := s.pool.Trim()
					return errors.Join(err, trim)
				})
			case "Free of one handle":
				run(func() error { return s.pool.Free(one) })
			case "Close":
				run(s.pool.Close)
			case "Alloc":
				run(func() error {
					err := s.pool.Free(b)
					if b, e := s.pool.Alloc(context.Background(), 60<<20); e == nil {
						return errors.Join(err, s.pool.Free(b))
					}
					return err
				})
			}
			select {
			case err = <-ended: // it need not wait
				ended <- err
			case <-g.entered:
				// If the pool were locked this would never return.
				s.pool.Stats()
				small, err := s.pool.TryAlloc(1 << 10)
				if err != nil && !errors.Is(err, gpumem.ErrOutOfMemory) {
					t.Error(err)
				}
				if p.Kind != policy.Platform && p.Kind != policy.Address && !p.Eager {
					if err := s.pool.Free(small); err != nil {
						t.Error(err)
					}
				}
			}
			close(g.gate)
			s.must(<-ended)
			if err := s.pool.Free(keep); err != nil && !errors.Is(err, gpumem.ErrClosed) {
				t.Error(err)
			}
		})
	}
}

// secondPool: what is idle in one pool serves another that needs it, at once.
func secondPool(t *testing.T, p policy.Policy) {
	for _, live := range []bool{false, true} {
		t.Run(fmt.Sprintf("with a live block %v", live), func(t *testing.T) {
			elastic, err := frameworks.Parse("elastic")
			if err != nil {
				t.Fatal(err)
			}
			s := newStand(t, elastic)
			x := s.request(80<<20, 0)
			s.must(s.pool.Free(x))
			b, err := gpumem.Open(s.dev, p, gpumem.WithRetry(0))
			s.must(err)
			if most := b.Stats().BytesLimit; p.GoesByFree() && most < 40<<20 {
				t.Skipf("the policy limits the pool to the %d bytes that were free when it was opened", most)
			}
			if live {
				if p.Kind == policy.BFC && p.Preallocate {
					t.Skip("a preallocated pool keeps the size that it got at first, as in JAX")
				}
				_, err := b.Alloc(t.Context(), 1<<10)
				s.must(err)
			}
			if _, err := b.Alloc(t.Context(), 40<<20); err != nil {
				t.Errorf("40 of 96 MiB, of which the first pool holds 80 idle: %v", err)
			}
			s.must(b.Close())
		})
	}
}
