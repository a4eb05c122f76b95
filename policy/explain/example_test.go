// The runnable examples of package policy.
package explain_test

import (
	"fmt"

	"gpumem/policy"
	"gpumem/policy/explain"
	"gpumem/policy/frameworks"
)

// The environment of the package comment, on an A100.
func Example() {
	env := policy.Environ([]string{
		"XLA_PYTHON_CLIENT_MEM_FRACTION=.9",
		"XLA_PYTHON_CLIENT_PREALLOCATE=no",
	})
	a, err := explain.Environment(env, frameworks.Release{Name: "jax"}, policy.Device{Total: 85045542912})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(a.Allocator, "preallocate:", a.Preallocate, "limit:", *a.Limit)
	for _, w := range a.Warnings {
		fmt.Printf("%s: %s\n", w.Name, w.Text)
	}
	fmt.Println("set instead:", a.Set)
	// Output:
	// bfc preallocate: true limit: 76541853696
	// XLA_PYTHON_CLIENT_PREALLOCATE: 'no' is not recognised, preallocation stays on; only false, False and 0 turn it off
	// set instead: [XLA_PYTHON_CLIENT_PREALLOCATE=false]
}
