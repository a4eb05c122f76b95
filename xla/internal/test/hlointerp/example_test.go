package hlointerp_test

import (
	"fmt"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/hlointerp"
)

// A value that is computed again where it is used gives the same bits.
func ExampleRun() {
	m, err := hlo.ParseString(`HloModule twice
ENTRY main {
  x = f32[3] parameter(0)
  y = f32[3] tanh(x)
  z = f32[3] exponential(y)
  ROOT r = f32[3] multiply(z, y)
}`)
	if err != nil {
		fmt.Println(err)
		return
	}
	arguments, err := hlointerp.Arguments(m, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	before, err := hlointerp.Run(m, arguments, hlointerp.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	y := m.Entry.Instruction("y")
	again := y.Clone("y.remat")
	m.Entry.Insert(3, again)
	m.Entry.Root.SetOperand(1, again)
	after, err := hlointerp.Run(m, arguments, hlointerp.Options{})
	fmt.Println(hlointerp.Equal(before, after), err)
	// Output: true <nil>
}
