package cost_test

import (
	"fmt"

	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/verify"
)

func ExampleNew() {
	m, err := hlo.ParseString(`HloModule product
ENTRY main {
  x = f32[1024,512] parameter(0)
  w = f32[512,256] parameter(1)
  y = f32[1024,256] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT z = f32[1024,256] tanh(y)
}`)
	if err == nil {
		err = verify.Module(m)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	a, err := cost.New(m, cost.Rates{Bytes: 1e12, Flops: 1e14})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, i := range m.Entry.Instructions {
		c := a.Of(i)
		fmt.Printf("%s: %d flops, %d bytes, %.2f us\n", i.Name, c.Flops, c.Bytes, 1e6*c.Seconds)
	}
	fmt.Printf("all: %.2f us\n", 1e6*a.Computation(m.Entry).Seconds)
	// Output:
	// x: 0 flops, 0 bytes, 0.00 us
	// w: 0 flops, 0 bytes, 0.00 us
	// y: 268435456 flops, 3670016 bytes, 3.67 us
	// z: 0 flops, 2097152 bytes, 2.10 us
	// all: 5.77 us
}
