package gpumem_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"gpumem"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/policy"
	"gpumem/policy/frameworks"
)

// TestOpenWhatCannotBe: nothing is opened, and the error names the way out.
func TestOpenWhatCannotBe(t *testing.T) {
	dev := device64(t)
	for name, tc := range map[string]struct {
		dev  device.GPU
		p    policy.Policy
		opts []gpumem.Option
		is   error
		says string
	}{
		"the empty policy":  {dev, policy.Policy{}, nil, gpumem.ErrNoPolicy, "frameworks.Default"},
		"no such allocator": {dev, policy.Policy{Spec: "x", Kind: 99}, nil, gpumem.ErrNoPolicy, "policy x"},
		"no device":         {nil, frameworks.Default(), nil, gpumem.ErrBadRequest, "device/open"},
		"a nil option":      {dev, frameworks.Default(), []gpumem.Option{gpumem.WithRetry(0), nil}, gpumem.ErrBadRequest, "option 1"},
	} {
		t.Run(name, func(t *testing.T) {
			pool, err := gpumem.Open(tc.dev, tc.p, tc.opts...)
			if pool != nil || !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v, %v; want %v that says %q", pool, err, tc.is, tc.says)
			}
		})
	}
}

// TestOrderFailsCountsNothing: a block whose stream the device cannot order is
// freed again, and the statistics do not count it.
func TestOrderFailsCountsNothing(t *testing.T) {
	for _, spec := range []string{"jax:limit=32MiB", "tensorflow", "elastic", "vmm"} {
		t.Run(spec, func(t *testing.T) {
			dev := gib(t)
			pool := newPool(t, dev, spec, gpumem.WithRetry(0))
			h, err := dev.StreamCreate()
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range []uint32{0, pool.Stream(h)} { // its memory is stream h's then
				b, err := pool.Request(t.Context(), gpumem.Request{Bytes: mib, Stream: n})
				if err != nil || pool.Free(b) != nil {
					t.Fatal(err)
				}
			}
			before := pool.Stats()
			no := errors.New("no")
			dev.OnCall(func(_ uint64, name string, _ uint64) error {
				if name == "cuStreamWaitEvent" {
					return no
				}
				return nil
			})
			if _, err := pool.Alloc(t.Context(), mib); !errors.Is(err, no) {
				t.Fatalf("Alloc: %v", err)
			}
			dev.OnCall(nil)
			if after := pool.Stats(); after.NumAllocs != before.NumAllocs || after.BytesInUse != 0 {
				t.Errorf("statistics %+v, before %+v", after, before)
			}
			if err := pool.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestGrantOfNoUseIsReleasedLater: platform is granted memory with too little
// alignment, and the device does not take it back at once.
func TestGrantOfNoUseIsReleasedLater(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 64 * mib, Granularity: 512})
	if err != nil {
		t.Fatal(err)
	}
	pool := newPool(t, dev, "platform", gpumem.WithRetry(0))
	no := errors.New("no")
	dev.OnCall(func(_ uint64, name string, _ uint64) error {
		if name == "cuMemFree" {
			return no
		}
		return nil
	})
	if _, err := pool.Alloc(t.Context(), 512); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Request(t.Context(), gpumem.Request{Bytes: 512, Align: 4 * mib}); !errors.Is(err, gpumem.ErrBadRequest) {
		t.Fatalf("alignment of 4 MiB: %v", err)
	}
	held, _ := dev.Held()
	if s := pool.Stats(); s.PoolBytes != held || s.BytesInUse >= held || s.NumAllocs != 1 {
		t.Errorf("statistics %+v, the device counts %d bytes", s, held)
	}
	dev.OnCall(nil)
	if _, err := pool.Alloc(t.Context(), 512); err != nil {
		t.Fatal(err)
	}
	held, _ = dev.Held()
	if s := pool.Stats(); s.PoolBytes != held || s.BytesInUse != held {
		t.Errorf("statistics %+v, the device counts %d bytes: a grant is lost", s, held)
	}
}

// TestContextEndsWaitForDevice: a request that waits for the device can be given
// up, and the pool goes on.
func TestContextEndsWaitForDevice(t *testing.T) {
	dev := device64(t)
	g := gatedDevice{dev, make(chan struct{}), make(chan struct{}, 1)}
	pool := newPool(t, g, "elastic", gpumem.WithRetry(0), gpumem.WithIdleTrim(0), gpumem.WithLowWater(0))
	b, err := pool.Alloc(t.Context(), 40*mib)
	if err != nil {
		t.Fatal(err)
	}
	if err := dev.Work(0, time.Hour, nil, []device.Range{{Addr: b.Addr, Bytes: b.Size}}); err != nil {
		t.Fatal(err)
	}
	keep, err := pool.Alloc(t.Context(), mib)
	if err != nil {
		t.Fatal(err)
	}
	if err := pool.Free(b); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := pool.Request(ctx, gpumem.Request{Bytes: 50 * mib, OneHandle: true})
		ended <- err
	}()
	<-g.entered
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("a request that was given up: %v", err)
	}
	close(g.gate)
	if _, err := pool.Request(t.Context(), gpumem.Request{Bytes: 50 * mib, OneHandle: true}); err != nil {
		t.Error(err)
	}
	if err := errors.Join(pool.Free(keep), pool.Close()); err != nil {
		t.Error(err)
	}
	if found := dev.Hazards(); len(found) > 0 {
		t.Error(found[0])
	}
}

// gatedDevice holds waits for events up until the gate is opened.
type gatedDevice struct {
	*sim.Device
	gate    chan struct{}
	entered chan struct{}
}

func (g gatedDevice) EventSynchronize(e device.Event) error {
	select {
	case g.entered <- struct{}{}:
	default:
	}
	<-g.gate
	return g.Device.EventSynchronize(e)
}
