package memory_test

import (
	"fmt"

	"gpumem/size"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
)

func ExampleSummarize() {
	m, err := hlo.ParseString(`HloModule layer, is_scheduled=true

ENTRY main {
  x = f32[512,1024] parameter(0)
  w = f32[1024,1024] parameter(1)
  dot = f32[512,1024] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(layer)/dot_general" source_file="layer.py" source_line=3}
  ROOT sum = f32[512,1024] add(dot, x)
}
`)
	if err != nil {
		fmt.Println(err)
		return
	}
	s, err := memory.Summarize(m, 3)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(size.Format(s.Peak), "at", s.PeakAt)
	for _, v := range s.Largest {
		fmt.Println(" ", v.Instruction, size.Format(v.Bytes))
	}
	fmt.Println("dot is from", s.Largest[2].OpName, "at", s.Largest[2].Source)
	// Output:
	// 8 MiB at dot
	//   w 4 MiB
	//   x 2 MiB
	//   dot 2 MiB
	// dot is from jit(layer)/dot_general at layer.py:3
}
