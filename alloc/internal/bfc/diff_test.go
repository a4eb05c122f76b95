package bfc_test

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/internal/bfc"
	"gpumem/device/sim"
	"gpumem/internal/test/golden"
	"gpumem/internal/test/oracle"
)

// diffOps is how many operations TestDifferential compares. CI does a small
// share; before a release: go test ./alloc/internal/bfc -run Differential -ops 12000000
var diffOps = flag.Int("ops", 400_000, "operations that TestDifferential compares with the model")

// pair is a pool and the oracle, given the same requests.
type pair struct {
	a    *bfc.Allocator
	m    *oracle.Pool
	base uint64 // address of the first region
	live []pairBlock
	ops  int
}

type pairBlock struct {
	b    alloc.Block
	addr uint64 // in the model
}

func newPair(cfg bfc.Config, capacity, granularity uint64) (*pair, error) {
	dev, err := sim.New(sim.Config{Total: capacity, Granularity: granularity})
	if err != nil {
		return nil, err
	}
	p := &pair{base: sim.Base}
	if cfg.Initial > 0 {
		cfg.RegionUnit = dev.Info().Page
		p.base = 0 // that of the addresses which the pool reserves: see alloc
	}
	if p.a, err = bfc.New(dev, cfg); err != nil {
		return nil, err
	}
	p.m = oracle.New(oracleConfig(cfg, capacity, granularity))
	return p, nil
}

// oracleConfig is the same configuration for the oracle.
func oracleConfig(cfg bfc.Config, capacity, granularity uint64) oracle.Config {
	return oracle.Config{
		Limit: cfg.Limit, Align: cfg.Align, Growth: cfg.Growth, Spatial: cfg.Spatial, TopDown: cfg.TopDown, GC: cfg.GC,
		Coalesce: cfg.Coalesce, Fragmentation: cfg.Fragmentation, RegionUnit: cfg.RegionUnit, CollectiveAlign: cfg.CollectiveAlign,
		Initial: cfg.Initial, DeviceTotal: capacity, Granularity: granularity,
	}
}

// alloc asks both for the same and compares what came of it.
func (p *pair) alloc(r alloc.Request) error {
	p.ops++
	b, err := p.a.Alloc(r)
	if err != nil && !errors.Is(err, alloc.ErrNoMemory) {
		return err
	}
	if p.base == 0 {
		p.a.Walk(func(c alloc.Chunk) bool {
			p.base = c.Addr
			return false
		})
	}
	addr, ok := p.m.Alloc(r.Bytes, r.Align, r.End == alloc.Upper)
	if ok != (err == nil) {
		return fmt.Errorf("operation %d: %+v: pool says %v, model says %v", p.ops, r, err, ok)
	}
	if err == nil && r.Bytes > 0 {
		if b.Addr-p.base != addr {
			return fmt.Errorf("operation %d: %+v: pool at %d, model at %d", p.ops, r, b.Addr-p.base, addr)
		}
		p.live = append(p.live, pairBlock{b, addr})
	}
	return p.compare()
}

// free frees the i-th live block in both, by block or by address.
func (p *pair) free(i int, byAddr bool) error {
	p.ops++
	x := p.live[i]
	p.live[i] = p.live[len(p.live)-1]
	p.live = p.live[:len(p.live)-1]
	var err error
	if byAddr {
		err = p.a.FreeAddr(x.b.Addr)
	} else {
		err = p.a.Free(x.b)
	}
	if err != nil {
		return fmt.Errorf("operation %d: %w", p.ops, err)
	}
	p.m.Free(x.addr)
	return p.compare()
}

// compare looks at the counters after each operation, and at every chunk now
// and then.
func (p *pair) compare() error {
	s, m := p.a.Stats(), p.m
	if s.NumAllocs != m.NumAllocs || s.BytesInUse != m.InUse || s.PeakBytesInUse != m.PeakInUse ||
		s.LargestAllocSize != m.Largest || s.PoolBytes != m.PoolBytes || s.PeakPoolBytes != m.PeakPoolBytes {
		return fmt.Errorf("operation %d: counters: pool %+v, model allocs %d in use %d peak %d largest %d pool %d peak %d",
			p.ops, s, m.NumAllocs, m.InUse, m.PeakInUse, m.Largest, m.PoolBytes, m.PeakPoolBytes)
	}
	if p.ops%257 != 0 {
		return nil
	}
	if err := p.a.Check(); err != nil {
		return fmt.Errorf("operation %d: %w", p.ops, err)
	}
	if n := m.LargestFree(); s.LargestFreeBlock != n {
		return fmt.Errorf("operation %d: largest hole %d, model %d", p.ops, s.LargestFreeBlock, n)
	}
	var got, want []string
	p.a.Walk(func(c alloc.Chunk) bool {
		got = append(got, fmt.Sprint(c.Addr-p.base, c.Size, c.Live, c.Tag))
		return true
	})
	regions := slices.Clone(m.Regions)
	slices.SortFunc(regions, func(a, b *oracle.Region) int { return int(int64(a.Addr - b.Addr)) })
	for _, r := range regions {
		for c := r.First; c != nil; c = c.Next {
			want = append(want, fmt.Sprint(c.Addr, c.Size, c.Live, [...]string{"lower", "upper", "central_gap"}[c.Tag]))
		}
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("operation %d: chunks differ:\npool  %v\nmodel %v", p.ops, got, want)
	}
	return nil
}

// variant is a way to configure a pool.
type variant struct {
	name        string
	cfg         bfc.Config
	capacity    uint64
	granularity uint64
}

func variants() []variant {
	const mib = 1 << 20
	return []variant{
		{"prealloc", bfc.Config{Limit: 64 * mib}, 64 * mib, 1},
		{"prealloc large", bfc.Config{Limit: 3 << 30}, 4 << 30, 2 * mib},
		{"growth", bfc.Config{Limit: 64 * mib, Growth: true}, 64 * mib, 1},
		{"growth backs off", bfc.Config{Limit: 64 * mib, Growth: true}, 50 * mib, 4096},
		{"growth backs off in pages", bfc.Config{Limit: 64 * mib, Growth: true, RegionUnit: 2 * mib}, 51 * mib, 4096},
		{"growth as asked", bfc.Config{Limit: 64 * mib, Growth: true, RegionUnit: 256}, 51 * mib, 2 * mib},
		{"growth coalesce", bfc.Config{Limit: 64 * mib, Growth: true, Coalesce: true}, 64 * mib, 1},
		{"growth gc", bfc.Config{Limit: 96 * mib, Growth: true, GC: true}, 64 * mib, 1},
		{"growth gc coalesce", bfc.Config{Limit: 96 * mib, Growth: true, GC: true, Coalesce: true}, 64 * mib, 1},
		{"spatial", bfc.Config{Limit: 64 * mib, Spatial: true}, 64 * mib, 1},
		{"spatial aligned", bfc.Config{Limit: 64 * mib, Spatial: true, Align: 65536}, 64 * mib, 1},
		{"spatial backs off", bfc.Config{Limit: 96 * mib, Spatial: true}, 70 * mib, 1},
		{"top down", bfc.Config{Limit: 64 * mib, Spatial: true, TopDown: true}, 64 * mib, 1},
		{"spatial as jax", bfc.Config{Limit: 64 * mib, Spatial: true, CollectiveAlign: 2 * mib}, 64 * mib, 1},
		{"top down as jax", bfc.Config{Limit: 64 * mib, Spatial: true, TopDown: true, CollectiveAlign: 2 * mib}, 64 * mib, 1},
		{"top down aligned", bfc.Config{Limit: 64 * mib, Spatial: true, TopDown: true, Align: 65536}, 64 * mib, 1},
		{"top down backs off", bfc.Config{Limit: 96 * mib, Spatial: true, TopDown: true}, 70 * mib, 1},
		{"grows", bfc.Config{Limit: 64 * mib, Initial: 48 * mib, Spatial: true, TopDown: true, CollectiveAlign: 2 * mib}, 64 * mib, 1},
		{"grows by little", bfc.Config{Limit: 64 * mib, Initial: 4 * mib, Spatial: true, TopDown: true}, 80 * mib, 1},
		{"grows from an odd size", bfc.Config{Limit: 63 * mib, Initial: 11*mib + 256, Spatial: true, TopDown: true, Align: 65536}, 80 * mib, 1},
		{"grows with less free", bfc.Config{Limit: 96 * mib, Initial: 30 * mib, Spatial: true, TopDown: true, CollectiveAlign: 2 * mib}, 71 * mib, 1},
		{"grows from less", bfc.Config{Limit: 96 * mib, Initial: 80 * mib, Spatial: true, TopDown: true}, 71 * mib, 1},
		{"top down always splits", bfc.Config{Limit: 64 * mib, Spatial: true, TopDown: true, Fragmentation: 1e-12}, 64 * mib, 1},
		{"aligned", bfc.Config{Limit: 64 * mib, Align: 4096}, 64 * mib, 1},
		{"exact split", bfc.Config{Limit: 64 * mib, Fragmentation: 0.001}, 64 * mib, 1},
		{"always split", bfc.Config{Limit: 64 * mib, Fragmentation: 1e-12}, 64 * mib, 1},
		{"full device", bfc.Config{Limit: 4 * mib, Growth: true}, 2 * mib, 1},
		{"odd limit", bfc.Config{Limit: 10_000_001}, 20_000_000, 1},
		{"tiny limit", bfc.Config{Limit: 1000}, 2000, 1},
	}
}

// TestDifferential runs random programs on the pool and the oracle, in every
// way a pool can be configured: sizes of all magnitudes, runs of equal sizes,
// alignments, both ends, frees by block and address, phases that fill and
// phases that empty.
func TestDifferential(t *testing.T) {
	vs := variants()
	for i, v := range vs {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(7, uint64(i)))
			for done := 0; done < *diffOps/len(vs); {
				p, err := newPair(v.cfg, v.capacity, v.granularity)
				if err != nil {
					t.Fatal(err)
				}
				steps := 200 + r.IntN(6000)
				if err := p.run(r, v, steps); err != nil {
					t.Fatal(err)
				}
				done += p.ops
			}
		})
	}
}

// run is one random program.
func (p *pair) run(r *rand.Rand, v variant, steps int) error {
	fill := 0.5 + r.Float64()*0.3 // how much likelier an allocation is than a free
	equal := mibOf(r, v.cfg.Limit)
	for range steps {
		if r.IntN(300) == 0 {
			fill = 0.2 + r.Float64()*0.7
			equal = mibOf(r, v.cfg.Limit)
		}
		if len(p.live) > 0 && r.Float64() > fill {
			i := r.IntN(len(p.live))
			if r.IntN(4) == 0 {
				i = len(p.live) - 1 // as a stack does
			}
			if err := p.free(i, r.IntN(3) == 0); err != nil {
				return err
			}
			continue
		}
		req := alloc.Request{Bytes: mibOf(r, v.cfg.Limit)}
		if r.IntN(3) == 0 {
			req.Bytes = equal
		}
		switch r.IntN(200) {
		case 0:
			req.Bytes = 0
		case 1:
			req.Bytes = math.MaxUint64 - uint64(r.IntN(300))
		case 2:
			req.Bytes = v.cfg.Limit + uint64(r.IntN(1000)) - 500
		}
		if r.IntN(20) == 0 {
			req.Align = 1 << r.IntN(22)
		}
		if r.IntN(4) == 0 {
			req.End = alloc.Upper
		}
		if err := p.alloc(req); err != nil {
			return err
		}
	}
	return nil
}

// mibOf is a random size, log-uniform up to a quarter of the limit.
func mibOf(r *rand.Rand, limit uint64) uint64 {
	top := math.Log(max(float64(limit)/4, 2))
	return uint64(math.Exp(r.Float64() * top))
}

// FuzzDifferential lets the fuzzer choose the program: a byte for the
// configuration, then three for each operation.
func FuzzDifferential(f *testing.F) {
	f.Add([]byte{0, 1, 20, 0, 1, 21, 0, 0, 0, 0, 1, 22, 3})
	f.Add([]byte{7, 1, 255, 1, 1, 80, 2, 1, 70, 1, 0, 1, 0, 1, 90, 0})
	f.Add([]byte{13, 1, 20, 0, 1, 21, 0, 0, 0, 0, 2, 9, 9, 1, 22, 3})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 4 || len(data) > 4096 {
			return
		}
		vs := variants()
		v := vs[int(data[0])%len(vs)]
		p, err := newPair(v.cfg, v.capacity, v.granularity)
		if err != nil {
			t.Fatal(err)
		}
		for data = data[1:]; len(data) >= 3; data = data[3:] {
			arg := binary.LittleEndian.Uint16(data[1:])
			switch op := data[0] % 8; {
			case op < 3 && len(p.live) > 0:
				err = p.free(int(arg)%len(p.live), op == 2)
			default:
				// 5 bits of exponent, 11 of mantissa: 1 byte to 4 GiB
				req := alloc.Request{Bytes: uint64(arg&0x7ff+1) << (arg >> 11)}
				if op == 7 {
					req.End = alloc.Upper
				}
				if op == 6 {
					req.Align = 1 << (arg % 23)
				}
				err = p.alloc(req)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := p.a.Check(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestOracle checks the oracle itself: it gives the original's placements, too.
func TestOracle(t *testing.T) {
	rows, err := golden.Rows()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if row.Trace == "uniform_1m" || row.Trace == "adversarial_frag" {
			continue // seconds for a model that walks its bins; the others cover every mode
		}
		t.Run(row.Name, func(t *testing.T) {
			t.Parallel()
			m := oracle.New(oracleConfig(bfc.Config{
				Limit: row.Limit, Growth: row.Growth, Spatial: row.Spatial, Coalesce: row.Coalesce,
				GC: row.GC, Fragmentation: row.Frag, Align: row.Align,
			}, row.DeviceTotal, row.Granularity))
			d := golden.NewDigest()
			at := map[int32]uint64{}
			for _, op := range traceOf(t, row.Trace) {
				if op.Free {
					if addr, ok := at[op.Block]; ok {
						m.Free(addr)
						delete(at, op.Block)
					}
					continue
				}
				addr, ok := m.Alloc(op.Bytes, 0, op.Upper)
				if !ok {
					d.Add(golden.Refused)
					continue
				}
				d.Add(addr)
				at[op.Block] = addr
			}
			if d.String() != row.Out["placement_fnv1a64"] {
				t.Errorf("placements %v, original %s", d, row.Out["placement_fnv1a64"])
			}
		})
	}
}
