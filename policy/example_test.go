// The runnable examples of package policy.
package policy_test

import (
	"fmt"

	"gpumem/policy"
	"gpumem/size"
)

// The environment of the package comment, on an A100.
func Example() {
	env := policy.Environ([]string{
		"XLA_PYTHON_CLIENT_MEM_FRACTION=.9",
		"XLA_PYTHON_CLIENT_PREALLOCATE=no",
	})
	a, err := policy.Explain(env, policy.Release{Name: "jax"}, policy.Device{Total: 85045542912})
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

func ExampleParse() {
	for _, spec := range []string{"jax", "jax@0.4.0", "elastic:limit=10GB", "bfc:fracton=.5"} {
		p, err := policy.Parse(spec)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(p.Spec, p.Kind, size.Format(p.LimitBytes(policy.Device{Total: 80 << 30, Free: 40 << 30})))
	}
	// Output:
	// jax bfc 60 GiB
	// jax@0.4.0 bfc 36 GiB
	// elastic:limit=10GB elastic 10 GiB
	// policy "bfc:fracton=.5": unknown key "fracton" (did you mean "fraction"?); bfc takes preallocate, fraction, of, limit, spatial, topdown, gc, coalesce, fragmentation, align
}
