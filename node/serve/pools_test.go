package serve

import (
	"context"
	"encoding/json"
	"testing"

	"pgregory.net/rapid"

	"gpumem"
	"gpumem/alloc"
	"gpumem/device/sim"
	"gpumem/policy/frameworks"
)

func pool(t testing.TB, spec string, total uint64, o ...gpumem.Option) *gpumem.Pool {
	dev, err := sim.New(sim.Config{Total: total})
	if err != nil {
		t.Fatal(err)
	}
	p, err := frameworks.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	x, err := gpumem.Open(dev, p, o...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close(); _ = dev.Close() })
	return x
}

func TestPools(t *testing.T) {
	a, b := pool(t, "jax", 1<<30, gpumem.WithStacks(true)), pool(t, "elastic", 1<<30)
	if _, err := a.Alloc(context.Background(), 300<<20); err != nil {
		t.Fatal(err)
	}
	s, err := Pools(a, b)(context.Background())
	if err != nil || len(s.Pools) != 2 || s.Pools[0].Name != "bfc_0" || s.Pools[1].Name != "elastic_1" {
		t.Fatalf("%+v, %v", s, err)
	}
	x := s.Pools[0]
	if x.Stats.BytesInUse != 300<<20 || len(x.Live) != 1 || x.Live[0].Bytes != 300<<20 || x.Live[0].Stack == "" || x.MapBytes != x.Stats.PoolBytes {
		t.Errorf("%+v", x)
	}
	if data, err := json.Marshal(s); err != nil || !json.Valid(data) {
		t.Errorf("%s, %v", data, err)
	}
	if y := s.Pools[1]; len(y.Map) != 0 || y.MapBytes != 0 {
		t.Errorf("an empty pool has a map: %+v", y)
	}
}

// TestMap: the map says of each part how much of it is live, as counted byte for byte.
func TestMap(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		p := pool(t, "jax:preallocate=false", 1<<20)
		var blocks []gpumem.Block
		for range rapid.IntRange(1, 30).Draw(r, "blocks") {
			b, err := p.TryAlloc(uint64(rapid.IntRange(1, 30000).Draw(r, "bytes")))
			if err == nil {
				blocks = append(blocks, b)
			}
		}
		for _, b := range blocks {
			if rapid.Bool().Draw(r, "free") {
				if err := p.Free(b); err != nil {
					r.Fatal(err)
				}
			}
		}
		var bytes []bool
		p.Walk(func(c alloc.Chunk) bool {
			for range c.Size {
				bytes = append(bytes, c.Live)
			}
			return true
		})
		v := poolOf(p, 0)
		if v.MapBytes != uint64(len(bytes)) || len(v.Map) > mapParts {
			r.Fatalf("%d bytes in %d parts, and there are %d", v.MapBytes, len(v.Map), len(bytes))
		}
		part := (len(bytes) + mapParts - 1) / mapParts
		for k, got := range v.Map {
			here := bytes[k*part : min((k+1)*part, len(bytes))]
			live := 0
			for _, x := range here {
				if x {
					live++
				}
			}
			if want := (100*live + len(here) - 1) / len(here); got != want {
				r.Fatalf("part %d: %d, want %d", k, got, want)
			}
		}
		if len(v.Map)*part < len(bytes) {
			r.Fatalf("%d parts of %d bytes of %d", len(v.Map), part, len(bytes))
		}
	})
}
