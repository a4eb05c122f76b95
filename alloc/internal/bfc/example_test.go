package bfc_test

import (
	"fmt"

	"gpumem/alloc"
	"gpumem/alloc/internal/bfc"
	"gpumem/device/sim"
)

// The split rule: a chunk is cut only if it is twice the request, or 128 MiB
// larger.
func Example() {
	dev, _ := sim.New(sim.Config{Total: 1 << 30})
	a, _ := bfc.New(dev, bfc.Config{Limit: 1 << 30, Growth: true})
	// On a fresh growing pool a request of 100,000,000 bytes takes a region of
	// 128 MiB, and gets all of it.
	b, _ := a.Alloc(alloc.Request{Bytes: 100_000_000})
	fmt.Println(b.Size)
	s := a.Stats()
	fmt.Println(s.BytesInUse, s.PoolBytes)
	// Output:
	// 134217728
	// 134217728 134217728
}
