package advise_test

import (
	"context"
	"fmt"
	"strings"

	"gpumem/device/sim"
	"gpumem/record/advise"
	"gpumem/record/formats"
	"gpumem/record/trace"
)

// A run that needs 7 of the 8 GiB of a card, of which JAX takes 6 by default.
func Example() {
	recording := "a weights 3221225472\na activations 4026531840\nf activations\n"
	t, err := formats.Read(context.Background(), strings.NewReader(recording), "run.txt", trace.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()
	rep, err := advise.Run(context.Background(), t, advise.Config{As: "jax", Sim: sim.Config{Total: 8 << 30}, Context: 512 << 20})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("as it is:", rep.FitsAsItIs)
	fmt.Println("set", rep.Advice.Set)
	// Output:
	// as it is: false
	// set [XLA_CLIENT_MEM_FRACTION=.85]
}
