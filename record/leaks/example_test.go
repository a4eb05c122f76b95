package leaks_test

import (
	"context"
	"fmt"
	"strings"

	"gpumem/record/formats"
	"gpumem/record/leaks"
	"gpumem/record/trace"
	"gpumem/size"
)

// A loop that keeps 1 MiB in each of its steps.
func Example() {
	var recording strings.Builder
	for step := range 50 {
		fmt.Fprintf(&recording, "a x%d 300000\na kept%d 1048576\nf x%d\n", step, step, step)
	}
	t, err := formats.Read(context.Background(), strings.NewReader(recording.String()), "loop.txt", trace.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()
	rep, err := leaks.Find(context.Background(), t, leaks.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(rep.Verdict, "in", *rep.Steps, "steps")
	for _, p := range rep.Leaks {
		fmt.Printf("%s: %s a step, %d blocks\n", p.Site, size.Format(*p.BytesPerStep), p.Blocks)
	}
	// Output:
	// leak in 50 steps
	// requests of 1 MiB: 1 MiB a step, 50 blocks
}
