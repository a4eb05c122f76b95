// The runnable example of package proc.
package proc_test

import (
	"fmt"

	"gpumem/internal/proc"
)

func Example() {
	_, err := proc.Environ(0)
	fmt.Println(err)
	// Output: 0 is not the number of a process; want one above 0
}
