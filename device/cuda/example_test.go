// The runnable example of package cuda.
package cuda_test

import (
	"errors"
	"fmt"

	"gpumem/device"
	"gpumem/device/cuda"
)

// A program that meets a driver's code can name it, tell what it means for its
// allocations, and say what to do.
func Example() {
	var err error = &device.CallError{Call: "cuMemFree", Device: "NVIDIA H200", Err: cuda.Code(719)}
	fmt.Println(err)
	fmt.Println("lost:", errors.Is(err, device.ErrLost))

	var code cuda.Code
	if errors.As(err, &code) {
		fmt.Println(code.Name())
	}
	// Output:
	// cuMemFree on NVIDIA H200: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure; the process cannot use the GPU any more; restart it
	// lost: true
	// CUDA_ERROR_LAUNCH_FAILED
}
