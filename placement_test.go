package gpumem_test

import (
	"errors"
	"fmt"
	"testing"

	"gpumem"
	"gpumem/alloc"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/internal/test/golden"
	"gpumem/policy"
	"gpumem/policy/explain"
	"gpumem/policy/frameworks"
)

// regions is a device that remembers what it granted, in order.
type regions struct {
	*sim.Device
	granted []device.Range
}

func (d *regions) Alloc(n uint64) (device.Range, error) {
	r, err := d.Device.Alloc(n)
	if err == nil {
		d.granted = append(d.granted, r)
	}
	return r, err
}

// place is an address as the golden programs have it.
func (d *regions) place(addr uint64) string {
	for i, r := range d.granted {
		if r.Addr <= addr && addr < r.Addr+r.Bytes {
			return fmt.Sprintf("%d:%d", i, addr-r.Addr)
		}
	}
	return "nowhere"
}

// TestJAXPlacements runs the programs that the GPU plugins of JAX's releases
// ran, in a pool opened from the same environment: each block lies where it lay
// there, each refusal is one there, and the statistics at the end are the same.
func TestJAXPlacements(t *testing.T) {
	programs, err := golden.Programs()
	if err != nil || len(programs) < 5 {
		t.Fatalf("%d programs, %v", len(programs), err)
	}
	for _, p := range programs {
		for _, c := range p.Columns {
			t.Run(fmt.Sprintf("%s, %s, jax %s", p.Name, c.Setting, c.Release), func(t *testing.T) {
				t.Parallel()
				samePlaces(t, p, c)
			})
		}
	}
}

func samePlaces(t *testing.T, p golden.Program, c golden.Column) {
	env := policy.Environ(c.Environment)
	a, err := explain.Environment(env, frameworks.Release{Name: "jax", Version: c.Release}, policy.Device{Total: c.Total, Free: c.Free})
	if err != nil || len(a.Errors) > 0 {
		t.Fatal(err, a.Errors)
	}
	// The stand-in's driver counts plain allocations to the byte, pages of 2 MiB.
	simulated, err := sim.New(sim.Config{Total: c.Total, Used: c.Total - c.Free, Granularity: a.Policy.RegionUnit})
	if err != nil {
		t.Fatal(err)
	}
	dev := &regions{Device: simulated}
	pool, err := gpumem.Open(dev, a.Policy, gpumem.WithRetry(0))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	blocks := map[int32]gpumem.Block{}
	n := 0
	for i, op := range p.Ops {
		if op.Free {
			if b, ok := blocks[op.Block]; ok {
				if err := pool.Free(b); err != nil {
					t.Fatal(err)
				}
				delete(blocks, op.Block)
			}
			continue
		}
		place := "-"
		r := gpumem.Request{Bytes: op.Bytes}
		if op.Upper {
			r.End = alloc.Upper
		}
		b, err := pool.Request(t.Context(), r)
		switch {
		case err == nil:
			blocks[op.Block] = b
			place = dev.place(b.Addr)
		case !errors.Is(err, gpumem.ErrOutOfMemory):
			t.Fatal(err)
		}
		if place != c.Places[n] {
			t.Fatalf("event %d of %d, allocation of %d bytes: at %s, JAX had it at %s", i, len(p.Ops), op.Bytes, place, c.Places[n])
		}
		n++
	}

	s := pool.Stats()
	got := map[string]uint64{
		"num_allocs": uint64(s.NumAllocs), "bytes_in_use": s.BytesInUse, "peak_bytes_in_use": s.PeakBytesInUse,
		"largest_alloc_size": s.LargestAllocSize, "bytes_limit": s.BytesLimit, "bytes_reserved": 0, "peak_bytes_reserved": 0,
		"largest_free_block_bytes": s.LargestFreeBlock, "pool_bytes": s.PoolBytes, "peak_pool_bytes": s.PeakPoolBytes,
	}
	for name, want := range c.Stats {
		if name == "largest_free_block_bytes" && want == 0 {
			continue // not filled in before JAX 0.11
		}
		if got[name] != want {
			t.Errorf("%s: %d, JAX says %d", name, got[name], want)
		}
	}
	if len(c.Grants) != len(dev.granted) {
		t.Errorf("%d regions, JAX took %d", len(dev.granted), len(c.Grants))
	}
}
