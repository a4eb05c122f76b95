package gpumem_test

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"gpumem"
	"gpumem/device/sim"
)

// What holds a Buffer in these tests is a slot of a slice on the heap. Functions
// that handle one are not inlined, so that nothing of it is left in the frame of
// a test that asks for a collection.

//go:noinline
func fill(t testing.TB, pool *gpumem.Pool, slot **gpumem.Buffer, bytes uint64) {
	b, err := pool.AllocBuffer(context.Background(), bytes)
	if err != nil {
		t.Error(err)
		return
	}
	*slot = b
}

//go:noinline
func drop(t testing.TB, pool *gpumem.Pool, bytes uint64) gpumem.Block {
	b, err := pool.AllocBuffer(context.Background(), bytes)
	if err != nil {
		t.Error(err)
		return gpumem.Block{}
	}
	return b.Block()
}

func gib(t testing.TB) *sim.Device {
	t.Helper()
	dev, err := sim.New(sim.Config{Total: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// dropped are the options under which Buffers are looked after.
var dropped = []struct {
	name string
	opts []gpumem.Option
}{
	{"plain", nil},
	{"leaks", []gpumem.Option{gpumem.WithLeaks(func(gpumem.Leak) {})}},
	{"collect", []gpumem.Option{gpumem.WithCollect()}},
	{"both", []gpumem.Option{gpumem.WithLeaks(func(gpumem.Leak) {}), gpumem.WithCollect()}},
}

// TestBuffer: a Buffer is a block with a Free of its own, whatever the options.
func TestBuffer(t *testing.T) {
	for _, spec := range append(specs, "async", "vmm", "elastic") {
		for _, with := range dropped {
			t.Run(spec+" "+with.name, func(t *testing.T) {
				pool := newPool(t, gib(t), spec, append(with.opts, gpumem.WithRetry(0))...)
				b, err := pool.AllocBuffer(t.Context(), 5000)
				if err != nil {
					t.Fatal(err)
				}
				other, err := pool.RequestBuffer(t.Context(), gpumem.Request{Bytes: mib, Align: 1 << 16})
				if err != nil {
					t.Fatal(err)
				}
				if b.Addr() == 0 || b.Bytes() < 5000 || b.Block().Addr != b.Addr() || other.Addr()%(1<<16) != 0 {
					t.Errorf("%v and %v", b.Block(), other.Block())
				}
				if got := pool.Stats().BytesInUse; got != b.Bytes()+other.Bytes() {
					t.Errorf("%d bytes in use", got)
				}
				first := b.Free()
				if second := b.Free(); first != nil || !errors.Is(second, gpumem.ErrDoubleFree) {
					t.Errorf("Free, twice: %v; %v", first, second)
				}
				again, err := pool.AllocBuffer(t.Context(), 5000)
				if err != nil {
					t.Fatal(err)
				}
				if err := b.Free(); !errors.Is(err, gpumem.ErrDoubleFree) {
					t.Errorf("Free after another took the place: %v", err)
				}
				none, err := pool.AllocBuffer(t.Context(), 0)
				if err != nil || none.Addr() != 0 || none.Bytes() != 0 || none.Free() != nil || none.Free() != nil {
					t.Errorf("0 bytes: %v, %v", none, err)
				}
				for _, bytes := range []uint64{2 << 30, 1<<64 - 1} {
					if b, err := pool.AllocBuffer(t.Context(), bytes); b != nil || !errors.Is(err, gpumem.ErrOutOfMemory) {
						t.Errorf("%d bytes: %v, %v", bytes, b, err)
					}
				}
				if got := pool.Stats().BytesInUse; got != again.Bytes()+other.Bytes() {
					t.Errorf("%d bytes in use", got)
				}
				if n := pool.Collect(); n != 0 {
					t.Errorf("%d Buffers that are held were found", n)
				}
				if err := pool.Close(); err != nil {
					t.Fatal(err)
				}
				if _, err := pool.AllocBuffer(t.Context(), 1); !errors.Is(err, gpumem.ErrClosed) {
					t.Errorf("AllocBuffer after Close: %v", err)
				}
				if err := other.Free(); !errors.Is(err, gpumem.ErrClosed) {
					t.Errorf("Free after Close: %v", err)
				}
				runtime.KeepAlive(again)
				if n := pool.Collect(); n != 0 {
					t.Errorf("%d Buffers found after Close", n)
				}
			})
		}
	}
}

// BenchmarkBuffer is an allocation and its free, without an owner and with one.
func BenchmarkBuffer(b *testing.B) {
	b.Run("block", func(b *testing.B) {
		pool := newPool(b, gib(b), "jax")
		b.ReportAllocs()
		for b.Loop() {
			x, _ := pool.Alloc(context.Background(), mib)
			_ = pool.Free(x)
		}
	})
	for _, with := range dropped {
		b.Run(with.name, func(b *testing.B) {
			pool := newPool(b, gib(b), "jax", append(with.opts, gpumem.WithStacks(false))...)
			b.ReportAllocs()
			for b.Loop() {
				x, _ := pool.AllocBuffer(context.Background(), mib)
				_ = x.Free()
			}
		})
	}
	b.Run("dropped", func(b *testing.B) {
		pool := newPool(b, gib(b), "jax", gpumem.WithCollect())
		held := make([]*gpumem.Buffer, 256)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			held[i%len(held)], _ = pool.AllocBuffer(context.Background(), mib)
		}
	})
}
