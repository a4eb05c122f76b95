//go:build linux && (amd64 || arm64) && !nodriver

package cuda

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"gpumem"
	"gpumem/policy/frameworks"
)

// TestPolicies runs a program under every policy through the driver's C
// interface: what is written into a block is what is read back, and at the end
// the GPU has all its memory again.
func TestPolicies(t *testing.T) {
	for _, spec := range []string{
		"jax", "jax:preallocate=false", "bfc:fraction=.5,gc=true,preallocate=false", "platform", "address",
		"async", "async:async_prealloc=64MiB", "vmm", "vmm:limit=100MiB", "elastic", "elastic:limit=100MiB", "elastic:eager=true",
	} {
		t.Run(spec, func(t *testing.T) {
			p, err := frameworks.Parse(spec)
			if err != nil {
				t.Fatal(err)
			}
			f := newFake(t)
			d := f.open()
			before, _ := f.gpus[0].sim.Held()
			pool, err := gpumem.Open(d, p, gpumem.WithRetry(0))
			if err != nil {
				t.Fatal(err)
			}
			type held struct {
				b gpumem.Block
				n uint64
			}
			r := rand.New(rand.NewPCG(1, 4))
			var live []held
			drop := func(i int) {
				t.Helper()
				h := live[i]
				got := make([]byte, 8)
				for _, at := range []uint64{h.b.Addr, h.b.Addr + h.n - 8} {
					if err := d.Read(at, got); err != nil || binary.LittleEndian.Uint64(got) != h.b.Addr^h.n {
						t.Fatalf("%v holds another's mark at %#x: %v", h.b, at, err)
					}
				}
				if err := pool.Free(h.b); err != nil {
					t.Fatal(err)
				}
				live = slices.Delete(live, i, i+1)
			}
			served, refused := 0, 0
			for i := range 600 {
				if len(live) > 0 && (len(live) >= 30 || r.IntN(2) == 0) {
					drop(r.IntN(len(live)))
					continue
				}
				n := 16 + r.Uint64N(1<<r.IntN(26))
				b, err := pool.TryAlloc(n)
				if errors.Is(err, gpumem.ErrOutOfMemory) {
					refused++
					continue
				}
				// The driver's pool has the block in its stream's order only.
				if err := errors.Join(err, d.StreamSynchronize(0)); err != nil {
					t.Fatal(err)
				}
				served++
				mark := binary.LittleEndian.AppendUint64(nil, b.Addr^n)
				if err := errors.Join(d.Write(b.Addr+n-8, mark), d.Write(b.Addr, mark)); err != nil {
					t.Fatal(err)
				}
				live = append(live, held{b, n})
				if i%100 == 99 {
					if _, err := pool.Trim(); err != nil {
						t.Fatal(err)
					}
				}
			}
			if served < 200 {
				t.Errorf("%d served, %d refused", served, refused)
			}
			for len(live) > 0 {
				drop(0)
			}
			if err := pool.Close(); err != nil {
				t.Error(err)
			}
			if now, _ := f.gpus[0].sim.Held(); now != before {
				t.Errorf("%d bytes are held after Close, %d before", now, before)
			}
		})
	}
}
