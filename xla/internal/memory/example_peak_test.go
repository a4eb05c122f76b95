package memory_test

import (
	"fmt"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
)

func ExampleTempPeak() {
	m, err := hlo.ParseString(`HloModule twice, is_scheduled=true

ENTRY main {
  x = f32[256] parameter(0)
  a = f32[256] exponential(x)
  b = f32[512] concatenate(a, a), dimensions={0}
  ROOT sum = f32[512] add(b, b)
}
`)
	if err != nil {
		fmt.Println(err)
		return
	}
	bytes, at, err := memory.TempPeak(m, memory.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(bytes, "bytes at", at.Name)
	// Output: 3072 bytes at b
}
