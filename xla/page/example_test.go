package page_test

import (
	"context"
	"fmt"
	"strings"

	"gpumem/xla/measure"
	"gpumem/xla/page"
)

// The page of a module with XLA's own assignment, without plans for less memory.
func ExampleWriteModule() {
	ctx := context.Background()
	answer, err := measure.Files(ctx, []string{"../measure/testdata/loop-gpu-0.12.0.1.dump.pb"}, page.Largest)
	if err != nil {
		fmt.Println(err)
		return
	}
	var html strings.Builder
	if err := page.WriteModule(ctx, &html, answer, 0, nil); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(strings.Contains(html.String(), "What lives at the peak"))
	// Output: true
}
