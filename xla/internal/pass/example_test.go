package pass_test

import (
	"fmt"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/pass"
)

func ExampleRun() {
	m, err := hlo.ParseString(`HloModule late, is_scheduled=true

ENTRY main {
  x = f32[] parameter(0)
  saved = f32[1024] broadcast(x), dimensions={}
  a = f32[1024] exponential(saved)
  b = f32[2048] concatenate(a, a), dimensions={0}
  c = f32[1024] slice(b), slice={[0:1024]}
  ROOT sum = f32[1024] add(saved, c)
}
`)
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := pass.Run(m, pass.Options{Limit: 12 << 10})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.Before, "bytes become", r.After)
	for _, i := range m.Entry.Instructions {
		fmt.Println(" ", i.Name)
	}
	// Output:
	// 16384 bytes become 12288
	//   x
	//   saved
	//   a
	//   b
	//   c
	//   saved.remat
	//   sum
}
