package gpumem_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gpumem"
	"gpumem/device"
	"gpumem/device/sim"
)

// streamSpecs are the policies whose memory is used again while work may run.
var streamSpecs = []string{
	"jax:limit=64MiB", "jax:limit=64MiB,preallocate=false", "bfc:limit=64MiB,preallocate=false,gc=true", "platform",
	"elastic", "elastic:eager=true", "elastic:limit=64MiB", "vmm", "async", "async:async_prealloc=32MiB",
	"pytorch", "pytorch:expandable_segments=True", "pytorch:max_split_size_mb=32,fraction=0.9,garbage_collection_threshold=0.5",
}

// TestStreams runs a random program of several streams, whose kernels take long
// and which never waits for them but by chance. Whatever memory its blocks get,
// no work of theirs meets another's.
func TestStreams(t *testing.T) {
	for _, spec := range streamSpecs {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%s, seed %d", spec, seed), func(t *testing.T) {
				dev, err := sim.New(sim.Config{Total: 96 * mib})
				if err != nil {
					t.Fatal(err)
				}
				pool := newPool(t, dev, spec, gpumem.WithRetry(0))
				streams := []device.Stream{0}
				for range 3 {
					s, err := dev.StreamCreate()
					if err != nil {
						t.Fatal(err)
					}
					streams = append(streams, s)
				}
				streamProgram(t, dev, pool, streams, rand.New(rand.NewPCG(seed, 9)), 3000)
				if found := dev.Hazards(); len(found) > 0 {
					t.Errorf("%d hazards, the first: %v", len(found), found[0])
				}
				if err := pool.Close(); err != nil {
					t.Error(err)
				}
				if held, _ := dev.Held(); held != 0 {
					t.Errorf("%d bytes are held after Close", held)
				}
			})
		}
	}
}

func streamProgram(t *testing.T, dev *sim.Device, pool *gpumem.Pool, streams []device.Stream, r *rand.Rand, steps int) {
	type held struct {
		b  gpumem.Block
		in int
	}
	var live []held
	work := func(b gpumem.Block, in int) {
		t.Helper()
		if err := dev.Work(streams[in], time.Duration(r.IntN(3000))*time.Microsecond, nil, []device.Range{{Addr: b.Addr, Bytes: b.Size}}); err != nil {
			t.Fatal(err)
		}
	}
	served := 0
	for range steps {
		switch {
		case len(live) < 30 && r.IntN(2) == 0:
			in := r.IntN(len(streams))
			n := uint64(1) << r.IntN(22)
			b, err := pool.Request(t.Context(), gpumem.Request{Bytes: n + r.Uint64N(n), Stream: pool.Stream(streams[in])})
			if errors.Is(err, gpumem.ErrOutOfMemory) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			served++
			work(b, in)
			live = append(live, held{b, in})
		case len(live) > 0:
			i := r.IntN(len(live))
			h := live[i]
			if in := r.IntN(len(streams)); in != h.in && r.IntN(3) == 0 {
				// The program orders its own uses of a live block, and says where.
				e, err := dev.EventCreate()
				if err := errors.Join(err, dev.EventRecord(e, streams[h.in]), dev.StreamWaitEvent(streams[in], e),
					pool.RecordStream(h.b, pool.Stream(streams[in])), dev.EventDestroy(e)); err != nil {
					t.Fatal(err)
				}
				work(h.b, in)
			}
			var err error
			if r.IntN(2) == 0 {
				err = pool.Free(h.b)
			} else {
				err = pool.FreeAddr(h.b.Addr)
			}
			if err != nil {
				t.Fatal(err)
			}
			live = slices.Delete(live, i, i+1)
		}
		if r.IntN(300) == 0 {
			if _, err := pool.Trim(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if served < steps/10 {
		t.Errorf("only %d requests were served", served)
	}
	for _, h := range live {
		if err := pool.Free(h.b); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStreamNumbers: numbers stand for streams, and others are refused.
func TestStreamNumbers(t *testing.T) {
	dev := device64(t)
	pool := newPool(t, dev, "jax")
	s, err := dev.StreamCreate()
	if err != nil {
		t.Fatal(err)
	}
	if pool.Stream(0) != 0 || pool.Stream(s) != 1 || pool.Stream(s) != 1 {
		t.Error("the numbers of streams are not 0 and 1")
	}
	if b, err := pool.TryAlloc(1); err != nil || pool.Free(b) != nil {
		t.Fatal(err)
	}
	if _, err := pool.Request(t.Context(), gpumem.Request{Bytes: 1, Stream: 7}); !errors.Is(err, gpumem.ErrBadRequest) {
		t.Errorf("stream number 7: %v", err)
	}
	// Nor does it make the pool one of several streams, which costs driver calls.
	calls := dev.Counters().Calls
	if b, err := pool.TryAlloc(1); err != nil || pool.Free(b) != nil || dev.Counters().Calls != calls {
		t.Errorf("%d driver calls after a refusal: %v", dev.Counters().Calls-calls, err)
	}
	if in := pool.Stats().BytesInUse; in != 0 {
		t.Errorf("%d bytes are in use after a refusal", in)
	}
	b, err := pool.Request(t.Context(), gpumem.Request{Bytes: 1, Stream: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := pool.RecordStream(b, 9); !errors.Is(err, gpumem.ErrBadRequest) {
		t.Errorf("use in stream number 9: %v", err)
	}
	if err := errors.Join(pool.RecordStream(b, 0), pool.Free(b), pool.Close()); err != nil {
		t.Error(err)
	}
	if err := pool.RecordStream(b, 0); !errors.Is(err, gpumem.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestDeterministic: the pool is told, and asks no longer what happens to be
// done.
func TestDeterministic(t *testing.T) {
	for _, deterministic := range []bool{false, true} {
		var opts []gpumem.Option
		if deterministic {
			opts = append(opts, gpumem.WithDeterministic())
		}
		dev := device64(t)
		pool := newPool(t, dev, "async", opts...)
		if _, err := pool.Alloc(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		p, err := dev.DefaultPool()
		if err != nil {
			t.Fatal(err)
		}
		if v, err := dev.PoolGetAttribute(p, device.PoolReuseAllowOpportunistic); v == 1 == deterministic || err != nil {
			t.Errorf("async, deterministic %v: opportunistic reuse is %d, %v", deterministic, v, err)
		}

		dev = device64(t)
		queries := 0
		dev.OnCall(func(_ uint64, name string, _ uint64) error {
			if name == "cuEventQuery" {
				queries++
			}
			return nil
		})
		pool = newPool(t, dev, "elastic", append(opts, gpumem.WithRetry(0))...)
		streamProgram(t, dev, pool, []device.Stream{0}, rand.New(rand.NewPCG(1, 2)), 3000)
		if (queries == 0) != deterministic {
			t.Errorf("elastic, deterministic %v: asks %d times whether work is done", deterministic, queries)
		}
	}
}
