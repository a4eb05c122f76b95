package gpumem_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gpumem"
	"gpumem/device"
	"gpumem/device/sim"
)

var soakOps = flag.Int("soak", 2000, "operations of TestSoak, over each policy")

// soak is a random program on a device whose handles are used again, whose calls
// fail now and then, and whose memory another pool takes, too. The test keeps its
// own account of blocks, and the device finds hazards.
type soak struct {
	t       *testing.T
	r       *rand.Rand
	dev     *sim.Device
	pool    *gpumem.Pool
	other   *gpumem.Pool
	faulty  bool        // the program runs with faults
	faults  atomic.Bool // read by the device's hook, also in the goroutines of a pool
	streams []device.Stream
	live    []soakBlock // by address
	foreign []gpumem.Block
	served  int
}

type soakBlock struct {
	b  gpumem.Block
	in device.Stream
}

// fine are the errors that a fault or a full device may cause.
func (s *soak) fine(err error) bool {
	return err == nil || errors.Is(err, gpumem.ErrOutOfMemory) ||
		s.faulty && (errors.Is(err, device.ErrInvalidValue) || errors.Is(err, device.ErrOutOfMemory))
}

// calm runs the program's own calls of the device without faults.
func (s *soak) calm(f func() error) {
	s.t.Helper()
	faults := s.faults.Swap(false)
	if err := f(); err != nil {
		s.t.Fatal(err)
	}
	s.faults.Store(faults)
}

func (s *soak) stream() device.Stream { return s.streams[s.r.IntN(len(s.streams))] }

func (s *soak) work(b gpumem.Block, in device.Stream) {
	s.t.Helper()
	s.calm(func() error {
		return s.dev.Work(in, time.Duration(s.r.IntN(3000))*time.Microsecond, nil, []device.Range{{Addr: b.Addr, Bytes: b.Size}})
	})
}

func (s *soak) alloc() {
	s.t.Helper()
	in := s.stream()
	n := uint64(1) << s.r.IntN(22)
	q := gpumem.Request{Bytes: n + s.r.Uint64N(n), Stream: s.pool.Stream(in), OneHandle: s.r.IntN(40) == 0}
	b, err := s.pool.Request(s.t.Context(), q)
	if !s.fine(err) {
		s.t.Fatalf("%+v: %v", q, err)
	}
	if err != nil {
		return
	}
	s.served++
	i, _ := slices.BinarySearchFunc(s.live, b.Addr, func(l soakBlock, addr uint64) int {
		if l.b.Addr < addr {
			return -1
		}
		return 1
	})
	if i > 0 && s.live[i-1].b.Addr+s.live[i-1].b.Size > b.Addr || i < len(s.live) && b.Addr+b.Size > s.live[i].b.Addr {
		s.t.Fatalf("%v overlaps a live block", b)
	}
	s.live = slices.Insert(s.live, i, soakBlock{b, in})
	s.work(b, in)
}

func (s *soak) free() {
	s.t.Helper()
	if len(s.live) == 0 {
		return
	}
	i := s.r.IntN(len(s.live))
	l := s.live[i]
	free := func() error { return s.pool.Free(l.b) }
	if s.r.IntN(2) == 0 {
		free = func() error { return s.pool.FreeAddr(l.b.Addr) }
	}
	err := free()
	if !s.fine(err) {
		s.t.Fatalf("free of %v: %v", l.b, err)
	}
	if err == nil {
		s.live = slices.Delete(s.live, i, i+1)
	}
}

// share uses a live block in another stream, in order, and says so.
func (s *soak) share() {
	s.t.Helper()
	if len(s.live) == 0 {
		return
	}
	l := s.live[s.r.IntN(len(s.live))]
	in := s.stream()
	err := s.pool.RecordStream(l.b, s.pool.Stream(in))
	if !s.fine(err) {
		s.t.Fatalf("RecordStream: %v", err)
	}
	if err != nil {
		return
	}
	// All streams come before: the block may have been used in any.
	s.calm(func() error {
		e, err := s.dev.EventCreate()
		for _, before := range s.streams {
			err = errors.Join(err, s.dev.EventRecord(e, before), s.dev.StreamWaitEvent(in, e))
		}
		return errors.Join(err, s.dev.EventDestroy(e))
	})
	s.work(l.b, in)
}

// turnover destroys a stream, with or without a word, and creates another one.
func (s *soak) turnover() {
	s.t.Helper()
	i := 1 + s.r.IntN(len(s.streams)-1)
	gone := s.streams[i]
	word := s.r.IntN(3) // none, before, after
	retire := func() {
		if err := s.pool.RetireStream(gone); !s.fine(err) {
			s.t.Fatalf("RetireStream: %v", err)
		}
	}
	if word == 1 {
		retire()
	}
	// A program joins its streams before it lets one go: what share orders after
	// all streams could not know of the work in this one any more.
	s.calm(func() error {
		e, err := s.dev.EventCreate()
		err = errors.Join(err, s.dev.EventRecord(e, gone), s.dev.StreamWaitEvent(0, e), s.dev.EventDestroy(e))
		return errors.Join(err, s.dev.StreamDestroy(gone))
	})
	if word == 2 {
		retire()
	}
	s.calm(func() error {
		h, err := s.dev.StreamCreate()
		s.streams[i] = h
		return err
	})
}

// others lets another pool take and give memory.
func (s *soak) others() {
	s.t.Helper()
	if len(s.foreign) > 0 && s.r.IntN(2) == 0 {
		if err := s.other.Free(s.foreign[0]); s.fine(err) && err == nil {
			s.foreign = s.foreign[1:]
		}
		return
	}
	b, err := s.other.TryAlloc(1 + s.r.Uint64N(8*mib))
	if !s.fine(err) {
		s.t.Fatalf("other pool: %v", err)
	}
	if err == nil {
		s.foreign = append(s.foreign, b)
	}
}

func (s *soak) step() {
	switch k := s.r.IntN(100); {
	case k < 42:
		if len(s.live) < 60 {
			s.alloc()
		}
	case k < 84:
		s.free()
	case k < 90:
		s.share()
	case k < 94:
		s.turnover()
	case k < 97:
		s.others()
	case k < 98:
		if _, err := s.pool.Trim(); !s.fine(err) {
			s.t.Fatalf("Trim: %v", err)
		}
	case k < 99:
		s.dev.Advance(time.Duration(s.r.IntN(5000)) * time.Microsecond)
	default:
		// What makes no sense changes nothing.
		for _, err := range []error{
			s.pool.RecordStream(gpumem.Block{Addr: 12345, Size: 1}, 0),
			func() error {
				_, err := s.pool.Request(s.t.Context(), gpumem.Request{Bytes: 1, Stream: 1 << 31})
				return err
			}(),
			func() error { _, err := s.pool.Request(s.t.Context(), gpumem.Request{Bytes: 1, Align: 3}); return err }(),
		} {
			if err == nil {
				s.t.Fatal("a request that makes no sense was served")
			}
		}
	}
}

func (s *soak) end() {
	s.t.Helper()
	s.faults.Store(false)
	s.dev.OnCall(nil)
	for _, l := range s.live {
		if err := s.pool.Free(l.b); err != nil {
			s.t.Fatalf("free of %v: %v", l.b, err)
		}
	}
	if in := s.pool.Stats().BytesInUse; in != 0 {
		s.t.Errorf("%d bytes are in use when nothing is", in)
	}
	if found := s.dev.Hazards(); len(found) > 0 {
		s.t.Errorf("%d hazards, the first: %v", len(found), found[0])
	}
	if err := errors.Join(s.pool.Close(), s.other.Close()); err != nil {
		s.t.Error(err)
	}
	if held, _ := s.dev.Held(); held != 0 {
		s.t.Errorf("%d bytes are held after Close", held)
	}
}

// TestSoak runs random programs of streams that come and go, with and without
// faults, over every policy that hands out memory.
func TestSoak(t *testing.T) {
	for _, spec := range streamSpecs {
		for _, faults := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, faults %v", spec, faults), func(t *testing.T) {
				dev, err := sim.New(sim.Config{Total: 96 * mib, ReuseStreams: true})
				if err != nil {
					t.Fatal(err)
				}
				s := &soak{t: t, r: rand.New(rand.NewPCG(uint64(*soakOps), uint64(len(spec)))), dev: dev, faulty: faults}
				s.faults.Store(faults)
				var mu sync.Mutex // guards chance
				chance := rand.New(rand.NewPCG(uint64(len(spec)), 77))
				dev.OnCall(func(_ uint64, name string, _ uint64) error {
					mu.Lock()
					defer mu.Unlock()
					if !s.faults.Load() || chance.IntN(50) != 0 {
						return nil
					}
					return []error{device.ErrInvalidValue, device.ErrInvalidHandle, device.ErrOutOfMemory}[chance.IntN(3)]
				})
				s.pool = newPool(t, dev, spec, gpumem.WithRetry(0), gpumem.WithIdleTrim(0), gpumem.WithLowWater(0))
				s.other = newPool(t, dev, "elastic:limit=24MiB", gpumem.WithRetry(0), gpumem.WithIdleTrim(0), gpumem.WithLowWater(0))
				s.streams = []device.Stream{0}
				s.calm(func() error {
					for range 4 {
						h, err := dev.StreamCreate()
						if err != nil {
							return err
						}
						s.streams = append(s.streams, h)
					}
					return nil
				})
				for range *soakOps {
					s.step()
				}
				if s.served < *soakOps/20 {
					t.Errorf("only %d requests were served", s.served)
				}
				s.end()
			})
		}
	}
}
