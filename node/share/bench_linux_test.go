package share

import (
	"fmt"
	"testing"
	"time"

	"gpumem/device"
	"gpumem/node/internal/account"
)

var still = meterFunc(func() device.Status { return device.Status{Info: device.Info{Total: 80 << 30}, Free: 80 << 30} })

// BenchmarkAcquire is a pair of calls, nobody else about. That the one before
// has just ended does not count as movement here.
func BenchmarkAcquire(b *testing.B) {
	defer func(old time.Duration) { account.Recently = old }(account.Recently)
	account.Recently = 0
	r, gpu := newGPU(b)
	for _, m := range []struct {
		name  string
		meter Meter
	}{{"a meter that costs nothing", still}, {"a simulated GPU", simulated(gpu)}} {
		b.Run(m.name, func(b *testing.B) {
			for b.Loop() {
				l, err := r.Acquire(b.Context(), Request{Device: "gpu", Meter: m.meter, Bytes: 1 << 30})
				must(b, err)
				must(b, l[0].Close())
			}
		})
	}
}

// BenchmarkAcquireSettled is what the agent of a node does for a container that starts
// beside others, right after the one before.
func BenchmarkAcquireSettled(b *testing.B) {
	for _, others := range []int{0, 10, 100} {
		b.Run(fmt.Sprintf("beside %d", others), func(b *testing.B) {
			r, err := Open(b.TempDir())
			must(b, err)
			q := Request{Device: "gpu", Settled: true, Total: 80 << 30, Bytes: 1 << 27}
			if q.Copies = others; others > 0 {
				leases, err := r.Acquire(b.Context(), q)
				must(b, err)
				for _, l := range leases {
					defer l.Close()
				}
			}
			q.Copies = 1
			for b.Loop() {
				l, err := r.Acquire(b.Context(), q)
				must(b, err)
				b.StopTimer()
				must(b, l[0].SetUse(pod(1), "/run/gpumem/shares/1/ledger"))
				must(b, l[0].Close())
				b.StartTimer()
			}
		})
	}
}

// BenchmarkList is a list of 100 leases.
func BenchmarkList(b *testing.B) {
	r, err := Open(b.TempDir())
	must(b, err)
	leases, err := r.Acquire(b.Context(), Request{Device: "gpu", Meter: still, Share: 0.01, Copies: 100})
	must(b, err)
	for b.Loop() {
		if n := len(listed(b, r)); n != 100 {
			b.Fatal(n)
		}
	}
	for _, l := range leases {
		must(b, l.Close())
	}
}
