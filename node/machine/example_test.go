// The runnable example of package machine.
package machine_test

import (
	"fmt"
	"log"
	"strings"

	"gpumem/node/machine"
)

func ExampleRead() {
	s, err := machine.Read(strings.NewReader(`{"devices": [{"index": 0, "total_bytes": 8589934592, "processes": []}]}`))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(s.Devices[0].Total, "bytes, and", len(s.Devices[0].Programs), "processes")
	// Output: 8589934592 bytes, and 0 processes
}
