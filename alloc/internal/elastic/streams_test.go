package elastic_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gpumem/alloc"
	"gpumem/alloc/internal/elastic"
	"gpumem/alloc/streams"
	"gpumem/device"
	"gpumem/device/sim"
)

// kernels is a program of several streams, whose kernels take long. Where it
// hands memory on it orders its streams by events, as package order does, so
// that the host knows nothing of what is done.
type kernels struct {
	t         *testing.T
	r         *rand.Rand
	dev       *sim.Device
	a         *elastic.Allocator
	streamsOf *streams.Tracker
	streams   []device.Stream
	event     device.Event
	live      []busy
}

type busy struct {
	b       alloc.Block
	streams []int
}

func newKernels(t *testing.T, seed, pages uint64, count int, cfg elastic.Config) *kernels {
	t.Helper()
	k := &kernels{t: t, r: rand.New(rand.NewPCG(seed, 3)), dev: newSim(t, pages), streams: []device.Stream{0}}
	for len(k.streams) < count {
		s, err := k.dev.StreamCreate()
		k.must(err)
		k.streams = append(k.streams, s)
	}
	if count > 1 {
		asked := map[uint32]bool{}
		cfg.Streams = streams.Of(k.dev, func(n uint32) (device.Stream, error) {
			if asked[n] {
				t.Errorf("stream %d is asked for twice", n)
			}
			asked[n] = true
			return k.streams[n], nil
		})
	}
	if cfg.Streams == nil {
		cfg.Streams = streams.Single(k.dev)
	}
	k.streamsOf = cfg.Streams
	k.a = newPool(t, k.dev, cfg)
	var err error
	k.event, err = k.dev.EventCreate()
	k.must(err)
	return k
}

func (k *kernels) must(err error) {
	k.t.Helper()
	if err != nil {
		k.t.Fatal(err)
	}
}

// follow makes stream s wait for what is queued in all the others.
func (k *kernels) follow(s int) {
	k.t.Helper()
	for o := range k.streams {
		if o != s {
			k.must(k.dev.EventRecord(k.event, k.streams[o]))
			k.must(k.dev.StreamWaitEvent(k.streams[s], k.event))
		}
	}
}

func (k *kernels) launch(b alloc.Block, s int) {
	k.t.Helper()
	took := time.Duration(k.r.IntN(3000)) * time.Microsecond
	k.must(k.dev.Work(k.streams[s], took, nil, []device.Range{{Addr: b.Addr, Bytes: b.Size}}))
}

func (k *kernels) step() {
	k.t.Helper()
	switch k.r.IntN(20) {
	case 0:
		_, err := k.a.Trim(k.r.Uint64N(20) * page)
		k.must(err)
	case 1, 2, 3, 4:
		if len(k.live) > 0 { // a kernel in another stream
			u := &k.live[k.r.IntN(len(k.live))]
			s := k.r.IntN(len(k.streams))
			k.must(k.streamsOf.Use(uint32(s)))
			u.streams = append(u.streams, s)
			k.follow(s)
			k.launch(u.b, s)
		}
	case 5, 6, 7, 8, 9, 10, 11:
		if len(k.live) > 0 {
			i := k.r.IntN(len(k.live))
			k.must(k.a.Free(k.live[i].b))
			k.live = slices.Delete(k.live, i, i+1)
		}
	case 12:
		k.dev.Advance(time.Duration(k.r.IntN(5000)) * time.Microsecond)
	default:
		s := k.r.IntN(len(k.streams))
		b, err := k.a.Alloc(alloc.Request{
			Bytes: 1 + k.r.Uint64N(5*page), Stream: uint32(s), OneHandle: k.r.IntN(12) == 0,
		})
		if errors.Is(err, alloc.ErrNoMemory) {
			return
		}
		k.must(err)
		k.follow(s)
		k.launch(b, s)
		k.live = append(k.live, busy{b, []int{s}})
	}
}

func (k *kernels) end() {
	k.t.Helper()
	k.must(k.a.Check())
	k.must(k.a.Close())
	for _, h := range k.dev.Hazards() {
		k.t.Error(h)
	}
	if held, _ := k.dev.Held(); held != 0 {
		k.t.Errorf("%d bytes are held after Close", held)
	}
}

// TestStreams: no page is unmapped under a kernel.
func TestStreams(t *testing.T) {
	for _, tc := range []struct {
		name    string
		streams int
		cfg     elastic.Config
	}{
		{"one stream", 1, elastic.Config{}},
		{"four streams", 4, elastic.Config{}},
		{"eager", 3, elastic.Config{Eager: true}},
		{"eager with a reserve", 3, elastic.Config{Eager: true, Reserve: 5 * page}},
		{"deterministic", 3, elastic.Config{Deterministic: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for seed := range uint64(20) {
				k := newKernels(t, seed, 24, tc.streams, tc.cfg)
				for range 600 {
					k.step()
				}
				k.end()
			}
		})
	}
}

// TestEpochsRunOut: after 2^32 epochs they begin anew, and nothing is unmapped
// too early.
func TestEpochsRunOut(t *testing.T) {
	for seed := range uint64(10) {
		k := newKernels(t, seed, 24, 3, elastic.Config{Deterministic: seed%2 == 0})
		for i := range 600 {
			if i == 100 {
				_, err := k.a.Trim(0)
				k.must(err)
				k.a.LateEpoch()
			}
			k.step()
			k.must(k.a.Check())
		}
		k.end()
	}
}

// TestNoWaitWhereDone: pages whose work is over are taken without waiting, and
// new ones are preferred to waiting.
func TestNoWaitWhereDone(t *testing.T) {
	dev := newSim(t, 100)
	a := newPool(t, dev, elastic.Config{})
	waits := 0
	dev.OnCall(func(_ uint64, name string, _ uint64) error {
		if name == "cuEventSynchronize" || name == "cuStreamSynchronize" || name == "cuCtxSynchronize" {
			waits++
		}
		return nil
	})
	get := func(bytes uint64) alloc.Block {
		t.Helper()
		b, err := a.Alloc(alloc.Request{Bytes: bytes})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	free := func(b alloc.Block) {
		t.Helper()
		if err := a.Free(b); err != nil {
			t.Fatal(err)
		}
	}
	x, y := get(30*page), get(30*page)
	for _, b := range []alloc.Block{x, y} {
		if err := dev.Work(0, time.Second, nil, []device.Range{{Addr: b.Addr, Bytes: b.Size}}); err != nil {
			t.Fatal(err)
		}
	}
	free(y)
	free(x)
	free(get(40 * page)) // x and 10 new pages
	z := get(50 * page)  // 10 more, past the soft limit; y's may still be worked on
	if m := a.Moves(); waits != 0 || m.Remapped != 0 || m.Mapped != 80 {
		t.Fatalf("%d waits, %+v while there are new pages", waits, m)
	}
	free(z)
	dev.Advance(3 * time.Second)
	get(60 * page)
	if m := a.Moves(); waits != 0 || m.Remapped != 10 || m.Mapped != 90 {
		t.Fatalf("%d waits, %+v when the work is over", waits, m)
	}
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestStreamGone: what was queued in a stream that is destroyed still runs.
func TestStreamGone(t *testing.T) {
	k := newKernels(t, 1, 16, 3, elastic.Config{})
	b, err := k.a.Alloc(alloc.Request{Bytes: 10 * page, Stream: 2})
	k.must(err)
	k.launch(b, 2)
	k.must(k.a.Free(b))
	k.must(k.dev.StreamDestroy(k.streams[2]))
	if n, err := k.a.Trim(0); n != 10*page || err != nil {
		t.Fatalf("Trim: %d, %v", n, err)
	}
	k.end()
}

// TestStreamUnknown: a request in a stream that cannot be had is refused with the
// reason, and changes nothing.
func TestStreamUnknown(t *testing.T) {
	dev := newSim(t, 16)
	no := errors.New("no such stream")
	a := newPool(t, dev, elastic.Config{Streams: streams.Of(dev, func(uint32) (device.Stream, error) { return 0, no })})
	if b, err := a.Alloc(alloc.Request{Bytes: 10 * page, Stream: 9}); err != no || !b.IsZero() {
		t.Fatalf("Alloc: %v, %v", b, err)
	}
	if n, err := a.Trim(0); n != 0 || err != nil {
		t.Fatalf("Trim: %d, %v", n, err)
	}
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
}
