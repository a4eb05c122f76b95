package pack_test

import (
	"fmt"

	"gpumem/xla/internal/pack"
)

func ExampleSearch() {
	blocks := []pack.Block{
		{Bytes: 2, Start: 2, End: 5, With: 0},
		{Bytes: 3, Start: 5, End: 8, With: 1},
		{Bytes: 2, Start: 2, End: 2, With: 2},
		{Bytes: 2, Start: 0, End: 3, With: 3},
	}
	heap, _, err := pack.BestFit(blocks, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	best, offsets, err := pack.Search(blocks, 1, 1000000)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(heap, "bytes, or", best, "at", offsets)
	// Output: 7 bytes, or 6 at [0 2 2 4]
}
