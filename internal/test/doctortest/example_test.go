// The runnable example of package doctortest.
package doctortest_test

import (
	"fmt"

	"gpumem/internal/test/doctortest"
)

func Example() {
	for _, c := range doctortest.Base() {
		if c.Name == "external_quota/hami-24g" {
			fmt.Print(c.Log)
			fmt.Println(c.Verdict, c.Causes[0])
			fmt.Println(c.Why)
		}
	}
	// Output:
	// [HAMI-core ERROR (pid:31877 thread=139872 allocator.c:53)]: Device 0 OOM 13454766848 / 12693176320
	// cause external_quota
	// what would be in use is 726.31MiB over the quota of 11.82GiB
}
