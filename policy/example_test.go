// The runnable examples of package policy.
package policy_test

import (
	"fmt"

	"gpumem/policy"
	"gpumem/size"
)

// The environment of the package comment, on an A100.
func Example() {
	vars := map[string]string{
		"XLA_PYTHON_CLIENT_MEM_FRACTION": ".9",
		"XLA_PYTHON_CLIENT_PREALLOCATE":  "no",
	}
	p, warnings, err := policy.FromEnv(func(name string) (string, bool) {
		value, ok := vars[name]
		return value, ok
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	const total = 85045542912
	fmt.Println(p.Kind, "preallocate:", p.Preallocate, "limit:", p.LimitBytes(total, total))
	for _, w := range warnings {
		fmt.Printf("%s: %s\n", w.Name, w.Text)
	}
	// Output:
	// bfc preallocate: true limit: 76541853696
	// XLA_PYTHON_CLIENT_MEM_FRACTION: deprecated, still works; the name is now XLA_CLIENT_MEM_FRACTION
	// XLA_PYTHON_CLIENT_PREALLOCATE: 'no' is not recognised, preallocation stays on; only false, False and 0 turn it off
}

func ExampleParse() {
	for _, spec := range []string{"jax", "jax@0.4.0", "elastic:limit=10GB", "bfc:fracton=.5"} {
		p, err := policy.Parse(spec)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(p.Spec, p.Kind, size.Format(p.LimitBytes(80<<30, 40<<30)))
	}
	// Output:
	// jax bfc 60 GiB
	// jax@0.4.0 bfc 36.00 GiB
	// elastic:limit=10GB elastic 10 GiB
	// policy "bfc:fracton=.5": unknown key "fracton" (did you mean "fraction"?); bfc takes preallocate, fraction, of, limit, spatial, gc, coalesce, fragmentation, align
}
