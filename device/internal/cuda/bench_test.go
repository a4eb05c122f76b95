//go:build linux && (amd64 || arm64) && !nodriver

// What the binding adds to a driver call: getppid of the C library stands in
// for the driver's functions, so that nothing but the way there is measured.

package cuda

import (
	"testing"
	"time"

	"github.com/ebitengine/purego"

	"gpumem/device"
)

// libc finds a function of the C library.
func libc(t testing.TB, symbol string) uintptr {
	t.Helper()
	find, err := open("libc.so.6")
	if err != nil {
		t.Skip(err)
	}
	at, err := find(symbol)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// trivial is a device every function of whose driver returns 0 and does nothing
// else (pthread_getconcurrency). So every thread has its context.
func trivial(t testing.TB) *Device {
	nothing := libc(t, "pthread_getconcurrency")
	lib := bind(cuFunctions, func(string) (uintptr, error) { return nothing, nil })
	return newDevice(&machine{cuda: lib, version: 12080}, 0, device.Info{Name: "nothing", Total: 1 << 40})
}

// BenchmarkPlain is the reference: purego alone, with arguments made anew for
// each call and with a block that is used again.
func BenchmarkPlain(b *testing.B) {
	labs := libc(b, "labs")
	b.Run("new", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			purego.SyscallN(labs, 0, 1, 2)
		}
	})
	b.Run("reused", func(b *testing.B) {
		b.ReportAllocs()
		args := new([3]uintptr)
		for b.Loop() {
			purego.SyscallN(labs, args[:]...)
		}
	})
	b.Run("reused twice", func(b *testing.B) {
		b.ReportAllocs()
		args := new([3]uintptr)
		for b.Loop() {
			purego.SyscallN(labs, args[:]...)
			purego.SyscallN(labs, args[:]...)
		}
	})
	b.Run("clock", func(b *testing.B) {
		for b.Loop() {
			_ = time.Since(epoch)
		}
	})
}

// BenchmarkCall is one call on a device, on a thread that has its context: run
// alone is the thread, the look at the context, the call and the clock; FillAsync
// is with begin and end; StreamQuery with the capture mode relaxed and put back,
// as for all that is not stream-ordered. On a thread without the context there
// are three calls more.
func BenchmarkCall(b *testing.B) {
	d := trivial(b)
	b.Run("run", func(b *testing.B) {
		b.ReportAllocs()
		c := d.begin(cuMemsetD8Async, 0)
		defer c.end()
		for b.Loop() {
			c.n = 0
			c.arg(0)
			c.run()
		}
	})
	fill := func() error { return d.FillAsync(0, 1, 1, 0) }
	b.Run("FillAsync", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := fill(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("StreamQuery", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := d.StreamQuery(0); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := fill(); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
}
