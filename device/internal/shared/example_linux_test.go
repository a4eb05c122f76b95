// The runnable example of package shared.
package shared_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"gpumem/device"
	"gpumem/device/internal/shared"
)

func Example() {
	dir, err := os.MkdirTemp("", "gpu")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "gpu")
	fmt.Println(shared.Create(path, []shared.Descriptor{{Name: "small", Total: 24 << 30, Granularity: 2 << 20, Display: 1 << 30}}))

	// Two programs, here in one process.
	a, errA := shared.Open(path)
	b, errB := shared.Open(path)
	if err := errors.Join(errA, errB); err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()
	fmt.Println(a.Take(0, 20<<30))
	fmt.Println(errors.Is(b.Take(0, 4<<30), device.ErrOutOfMemory))

	a.Close() // or killed
	fmt.Println(b.Take(0, 4<<30))
	states, err := shared.Look(path)
	fmt.Println(states[0].Free>>30, states[0].Used>>30, len(states[0].Processes), err)
	// Output:
	// <nil>
	// <nil>
	// true
	// <nil>
	// 19 5 1 <nil>
}
