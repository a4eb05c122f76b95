package formats_test

import (
	"context"
	"fmt"

	"gpumem/record/formats"
	"gpumem/record/trace"
)

// A PyTorch memory snapshot has a pool per device, and stacks.
func ExampleOpen() {
	t, err := formats.Open(context.Background(), "../trace/testdata/torch2023.pickle", trace.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()
	for _, p := range t.Pools {
		fmt.Println(p.Name, p.Events, "events,", p.Seeds, "of them blocks older than the recording")
	}
	fmt.Println(t.Site(1))
	// Output:
	// cuda:0 5 events, 4 of them blocks older than the recording
	// forward (model.py:12)
	// <module> (train.py:40)
}

// A profile of JAX or TensorFlow has the allocations of every allocator, with
// the operation that asked. What is older than the profile was put in front.
func ExampleOpen_profile() {
	t, err := formats.Open(context.Background(), "../trace/testdata/tensorflow.xplane.pb", trace.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()
	fmt.Println(t.Format, t.Events-t.Seeds, "events,", t.Seeds, "blocks in front of them")
	for _, note := range t.Notes {
		fmt.Println(note)
	}
	events := make([]trace.Event, t.Seeds+1)
	if _, err := t.Pools[0].Cursor().Next(events); err != nil {
		fmt.Println(err)
		return
	}
	first := events[t.Seeds]
	fmt.Println(t.Pools[0].Name, first.Op, first.Bytes, t.Site(first.Site))
	// Output:
	// xplane 12 events, 3 blocks in front of them
	// 742.75 KiB is live when the recording begins and is not freed in it; allocated at its start as one block
	// 2 blocks older than the recording (234.38 KiB), known from their frees, are allocated at its start, in the order of the addresses
	// bfc_cpu_allocator_for_gpu alloc 40000 _MklMatMul (float32[100,100], output)
}
