// The runnable example of package report.
package report_test

import (
	"fmt"
	"os"

	"gpumem/internal/report"
)

func Example() {
	tab := report.NewTable("policy", ">held peak", "fits")
	tab.Row("jax", "18.00 GiB", "yes")
	tab.Row("platform", "9.71 GiB", "yes")
	tab.Row("bfc:limit=8GiB", "8.00 GiB", "no, at event 1022")
	if _, err := tab.WriteTo(os.Stdout); err != nil {
		fmt.Println(err)
	}
	// Output:
	// policy          held peak  fits
	// jax             18.00 GiB  yes
	// platform         9.71 GiB  yes
	// bfc:limit=8GiB   8.00 GiB  no, at event 1022
}
