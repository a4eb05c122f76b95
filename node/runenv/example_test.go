// The runnable examples of package runenv.
package runenv_test

import (
	"fmt"

	"gpumem/node/runenv"
)

// A quarter of a simulated GPU for a program that the user lets have more.
func Example() {
	o, err := runenv.For([]string{"XLA_CLIENT_MEM_FRACTION=.9"}, []string{"python3", "train.py"}, runenv.Limits{
		Leases: []runenv.Lease{{Visible: "GPU-1", Bytes: 6 << 30, Total: 24 << 30, Simulated: true}},
		Growth: true,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range o.Changes[:4] {
		fmt.Println(c)
	}
	// Output:
	// CUDA_VISIBLE_DEVICES=GPU-1
	// XLA_PYTHON_CLIENT_MEM_FRACTION=0.25
	// unset XLA_CLIENT_MEM_FRACTION
	// XLA_PYTHON_CLIENT_PREALLOCATE=false
}
