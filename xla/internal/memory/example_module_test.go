package memory_test

import (
	"fmt"

	"gpumem/size"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
)

func ExampleAnalyzeModule() {
	m, err := hlo.ParseString(`HloModule layer, is_scheduled=true

ENTRY main {
  x = f32[512,1024] parameter(0)
  w = f32[1024,1024] parameter(1)
  dot = f32[512,1024] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  tanh = f32[512,1024] tanh(dot)
  ROOT sum = f32[512,1024] add(tanh, x)
}
`)
	if err != nil {
		fmt.Println(err)
		return
	}
	a, err := memory.AnalyzeModule(m)
	if err != nil {
		fmt.Println(err)
		return
	}
	bytes, at, alive := a.Peak()
	fmt.Println(size.Format(bytes), "at", at.Name)
	for _, v := range alive {
		fmt.Println(" ", v.Instruction.Name, size.Format(v.Bytes))
	}
	s, err := a.Assign()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(s)
	// Output:
	// 8 MiB at dot
	//   w 4 MiB
	//   x 2 MiB
	//   dot 2 MiB
	// BufferAssignment stats:
	//              parameter allocation:    6.00MiB
	//               constant allocation:         0B
	//         maybe_live_out allocation:    2.00MiB
	//      preallocated temp allocation:         0B
	//   preallocated temp fragmentation:         0B (0.00%)
	//                  total allocation:    8.00MiB
	//               total fragmentation:         0B (0.00%)
}

func ExampleOrders() {
	m, err := hlo.ParseString(`HloModule m

ENTRY main {
  p = f32[] parameter(0)
  big = f32[4096] broadcast(p), dimensions={}
  other = f32[4096] broadcast(p), dimensions={}
  a = f32[64] slice(big), slice={[0:64]}
  b = f32[64] slice(other), slice={[0:64]}
  ROOT sum = f32[64] add(a, b)
}
`)
	if err != nil {
		fmt.Println(err)
		return
	}
	before, err := memory.AnalyzeModule(m)
	if err != nil {
		fmt.Println(err)
		return
	}
	bytes, _, _ := before.Peak()
	fmt.Println(bytes, "bytes as it stands")
	orders, err := memory.Orders(m)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, order := range orders {
		order.Apply(m)
		after, err := memory.AnalyzeModule(m)
		if err != nil {
			fmt.Println(err)
			return
		}
		bytes, _, _ := after.Peak()
		fmt.Println(bytes, "bytes by", order.Name)
	}
	// Output:
	// 33028 bytes as it stands
	// 16900 bytes by list
	// 16900 bytes by dfs
	// 16900 bytes by post-order
}
