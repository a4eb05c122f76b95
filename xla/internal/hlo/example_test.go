package hlo_test

import (
	"fmt"
	"os"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/hlotest"
)

func ExampleParseString() {
	m, err := hlo.ParseString(`
HloModule small

ENTRY %main (x: f32[1024]) -> f32[1024] {
  %x = f32[1024]{0} parameter(0)
  ROOT %twice = f32[1024]{0} add(%x, %x), metadata={op_name="jit(f)/add"}
}`)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, i := range m.Entry.Instructions {
		bytes, _ := i.Shape.Bytes()
		fmt.Println(i.Name, i.Opcode, i.Shape, bytes, "bytes")
	}
	// Output:
	// x parameter f32[1024]{0} 4096 bytes
	// twice add f32[1024]{0} 4096 bytes
}

// The error says where the text is wrong.
func ExampleParseString_error() {
	_, err := hlo.ParseString("ENTRY main {\n  y = f32[] negate(x)\n}")
	fmt.Println(err)
	// Output:
	// 2:20: no instruction "x" before this one; operands are printed before their users
}

// A module that was changed is written in the style in which it came.
func ExampleModule_Write() {
	m, _ := hlo.ParseString(`HloModule small
ENTRY main {
  x = f32[8]{0} parameter(0)
  ROOT y = f32[8]{0} negate(x)
}`)
	y := m.Entry.Root
	again := m.NewInstruction("y.remat", y.Opcode, y.Shape, y.Operands...)
	m.Entry.Insert(2, again)
	m.Entry.Root = again
	m.Write(os.Stdout)
	// Output:
	// HloModule small
	//
	// ENTRY main {
	//   x = f32[8]{0} parameter(0)
	//   y = f32[8]{0} negate(x)
	//   ROOT y.remat = f32[8]{0} negate(x)
	// }
}

func ExampleEqual() {
	a, _ := hlo.ParseString("ENTRY e { ROOT x = f32[8]{0} parameter(0) }")
	b, _ := hlo.ParseString("ENTRY e { ROOT x = f32[9]{0} parameter(0) }")
	fmt.Println(hlotest.Equal(a, b))
	// Output:
	// x in e: the shape: f32[8]{0} and f32[9]{0}
}
