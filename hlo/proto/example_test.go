package proto_test

import (
	"fmt"
	"os"

	"gpumem/hlo/proto"
)

func ExampleRead() {
	f, err := os.Open("testdata/loop-0.12.0.1.opt.pb")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	m, err := proto.Read(f)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.Name, m.Scheduled, m.Entry.Name, len(m.Computations))
	// Output: jit_loop true main.5 10
}
