package elastic_test

import (
	"fmt"

	"gpumem/alloc"
	"gpumem/alloc/internal/elastic"
	"gpumem/device/sim"
	"gpumem/size"
)

// Two holes of 6 GiB serve a block of 12 GiB.
func Example() {
	dev, err := sim.New(sim.Config{Total: 16 << 30})
	if err != nil {
		fmt.Println(err)
		return
	}
	pool, err := elastic.New(dev, elastic.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	var blocks []alloc.Block
	for _, gib := range []uint64{6, 2, 6, 2} {
		b, err := pool.Alloc(alloc.Request{Bytes: gib << 30})
		if err != nil {
			fmt.Println(err)
			return
		}
		blocks = append(blocks, b)
	}
	_ = pool.Free(blocks[0])
	_ = pool.Free(blocks[2])
	b, err := pool.Alloc(alloc.Request{Bytes: 12 << 30})
	fmt.Println(size.Format(b.Size), err)
	fmt.Println(pool.Moves().Remapped, "pages moved")
	fmt.Println(pool.Close())
	// Output:
	// 12 GiB <nil>
	// 6144 pages moved
	// <nil>
}
