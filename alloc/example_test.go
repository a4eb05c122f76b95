package alloc_test

import (
	"errors"
	"fmt"

	"gpumem/alloc"
	"gpumem/alloc/internal/bfc"
	"gpumem/device/sim"
)

// An allocator has no lock and does not wait; a refusal is a bare error.
// Explain says what would have helped.
func Example() {
	dev, _ := sim.New(sim.Config{Total: 64 << 20})
	a, _ := bfc.New(dev, bfc.Config{Limit: 16 << 20})

	var blocks []alloc.Block
	for range 16 {
		b, _ := a.Alloc(alloc.Request{Bytes: 1 << 20})
		blocks = append(blocks, b)
	}
	a.Free(blocks[3])
	a.Free(blocks[5])

	ask := alloc.Request{Bytes: 3 << 20}
	_, err := a.Alloc(ask)
	fmt.Println(errors.Is(err, alloc.ErrNoMemory))
	c := alloc.Explain(a, ask, 48<<20)
	fmt.Println("largest hole:", c.Hole>>20, "MiB; freeing", c.Pin.Size>>20, "MiB would make", c.PinHole>>20)
	// Output:
	// true
	// largest hole: 1 MiB; freeing 1 MiB would make 3
}
