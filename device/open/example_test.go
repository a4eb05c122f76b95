// The runnable example of package open.
package open_test

import (
	"fmt"

	"gpumem/device/open"
)

func Example() {
	environment := map[string]string{open.EnvVar: "sim:24GiB,used=2GiB"}
	lookup := func(key string) (string, bool) { v, ok := environment[key]; return v, ok }

	spec, _, err := open.Choose("", lookup, false) // no flag
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := spec.Device()
	if err != nil {
		fmt.Println(err)
		return
	}
	free, total, err := d.MemInfo()
	fmt.Printf("%s: %d of %d GiB free, %v\n", d.Info().Name, free>>30, total>>30, err)

	_, err = open.Parse("sim:24GiB,used=2X")
	fmt.Println(err)
	// Output:
	// sim:24GiB,used=2GiB: 22 of 24 GiB free, <nil>
	// sim:24GiB,used=2X: used: size "2X": want a number of bytes, at least 0, with or without a unit, such as 512, 4KiB, 1.5GiB or 80G
}
