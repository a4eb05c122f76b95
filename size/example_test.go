// The runnable example of package size.
package size_test

import (
	"fmt"

	"gpumem/size"
)

func Example() {
	n, err := size.Parse("7.5GB")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(n, "bytes")
	fmt.Println(size.Format(n))
	fmt.Println(size.XLA(int64(n)))

	_, err = size.Parse("lots")
	fmt.Println(err)
	// Output:
	// 8053063680 bytes
	// 7.50 GiB
	// 7.50GiB
	// size "lots": want a number of bytes, at least 0, with or without a unit, such as 512, 4KiB, 1.5GiB or 80G
}
