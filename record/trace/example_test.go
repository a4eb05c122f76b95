package trace_test

// The examples in the documentation.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"gpumem/record/formats"
	"gpumem/record/trace"
)

// A recording is read once and replayed as often as needed.
func Example() {
	const recording = `# weights, then two steps
a weights 1048576
a activations 300000
f activations
a activations 500000
f activations
`
	t, err := formats.Read(context.Background(), strings.NewReader(recording), "steps.txt", trace.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()
	fmt.Println(t.Events, "events, at most", t.PeakLive, "bytes live")

	for _, pool := range t.Pools {
		cursor := pool.Cursor()
		batch := make([]trace.Event, 1024)
		for {
			n, err := cursor.Next(batch)
			for _, ev := range batch[:n] {
				fmt.Println(ev.Op, ev.Slot, ev.Bytes)
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				fmt.Println(err)
				return
			}
		}
	}
	// Output:
	// 5 events, at most 1548576 bytes live
	// alloc 0 1048576
	// alloc 1 300000
	// free 1 0
	// alloc 1 500000
	// free 1 0
}

// A program records its own allocations as it runs.
func ExampleWriter() {
	var file bytes.Buffer // or an os.File
	w, err := trace.NewWriter(&file)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = errors.Join(
		w.Alloc(trace.Call{Pool: "cuda:0", ID: 0x7f0000000000, Bytes: 1 << 20, Time: 1_000, Site: "load (model.go:12)\nmain (main.go:40)"}),
		w.Free(trace.Call{Pool: "cuda:0", ID: 0x7f0000000000, Time: 5_000}),
		w.Flush(),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	t, err := formats.Read(context.Background(), &file, "run.gpumem", trace.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()
	fmt.Println(t.Format, t.Pools[0].Name, t.Events, "events, at most", t.PeakLive, "bytes live")
	fmt.Println(t.Site(1))
	// Output:
	// gpumem cuda:0 2 events, at most 1048576 bytes live
	// load (model.go:12)
	// main (main.go:40)
}

// Bad input says where it is wrong.
func ExampleError() {
	_, err := formats.Read(context.Background(), strings.NewReader("a 7 100\na 7 200\n"), "run.txt", trace.Options{})
	fmt.Println(err)
	var bad *trace.Error
	fmt.Println(errors.As(err, &bad), bad.Line)

	_, err = formats.Open(context.Background(), os.DevNull, trace.Options{})
	fmt.Println(errors.As(err, &bad))
	// Output:
	// run.txt:2: id 7 is already live (allocated at line 1); free it first
	// true 2
	// true
}
