package vmm_test

import (
	"fmt"
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/internal/vmm"
	"gpumem/device/sim"
)

// BenchmarkReuse is a free and the request that gets the block again, with so
// many other blocks pending, each of another size or all of one.
func BenchmarkReuse(b *testing.B) {
	for _, others := range []int{0, 100, 900} {
		for _, sizes := range []string{"one size", "many sizes"} {
			b.Run(fmt.Sprintf("%d others, %s", others, sizes), func(b *testing.B) {
				dev, err := sim.New(sim.Config{Total: 1 << 50})
				if err != nil {
					b.Fatal(err)
				}
				a, err := vmm.New(dev, vmm.Config{})
				if err != nil {
					b.Fatal(err)
				}
				var blocks []alloc.Block
				for i := range others {
					n := uint64(2)
					if sizes == "many sizes" {
						n += uint64(i)
					}
					k, err := a.Alloc(alloc.Request{Bytes: n * page})
					if err != nil {
						b.Fatal(err)
					}
					blocks = append(blocks, k)
				}
				for _, k := range blocks {
					if err := a.Free(k); err != nil {
						b.Fatal(err)
					}
				}
				k, err := a.Alloc(alloc.Request{Bytes: page})
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for b.Loop() {
					_ = a.Free(k)
					k, _ = a.Alloc(alloc.Request{Bytes: page})
				}
			})
		}
	}
}

// BenchmarkStep is a training step: 64 blocks of 8 sizes, freed in reverse, over
// and over. Now and then a batch is closed, which is a call of the simulated
// driver. A figure is for the 128 operations.
func BenchmarkStep(b *testing.B) {
	dev, err := sim.New(sim.Config{Total: 1 << 40})
	if err != nil {
		b.Fatal(err)
	}
	a, err := vmm.New(dev, vmm.Config{})
	if err != nil {
		b.Fatal(err)
	}
	var blocks [64]alloc.Block
	b.ReportAllocs()
	for b.Loop() {
		for i := range blocks {
			blocks[i], _ = a.Alloc(alloc.Request{Bytes: uint64(i%8+1) * page})
		}
		for i := range blocks {
			_ = a.Free(blocks[len(blocks)-1-i])
		}
	}
}
