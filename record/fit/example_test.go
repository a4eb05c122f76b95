package fit_test

import (
	"fmt"

	"gpumem/record/fit"
)

// A train step whose new weights lie in the memory of the old ones.
func ExampleCompiled_Total() {
	step := fit.Compiled{Name: "jit_step", Argument: 800 << 20, Output: 768 << 20, Alias: 768 << 20, Temp: 2 << 30}
	fmt.Println(step.Total()>>20, "MiB")
	// Output: 2848 MiB
}
