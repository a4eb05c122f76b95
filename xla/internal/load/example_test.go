package load_test

import (
	"fmt"
	"os"

	"gpumem/xla/internal/load"
)

func ExampleDecode() {
	b, err := os.ReadFile("testdata/loop-0.12.0.1.opt.pb")
	if err != nil {
		fmt.Println(err)
		return
	}
	m, _, err := load.Decode(b, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.Name, m.Scheduled, m.Entry.Name, len(m.Computations))
	// Output: jit_loop true main.5 10
}
