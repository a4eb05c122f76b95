package compare_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"gpumem/device/open"
	"gpumem/policy/frameworks"
	"gpumem/record/compare"
	"gpumem/record/formats"
	"gpumem/record/replay"
	"gpumem/record/trace"
)

// A program whose batch has grown by half, on a device of 2 GiB.
func ExampleRun() {
	ctx := context.Background()
	read := func(name, events string) *trace.Trace {
		t, err := formats.Read(ctx, strings.NewReader(events), name, trace.Options{})
		if err != nil {
			log.Fatal(err)
		}
		return t
	}
	before := read("before", "a weights 1073741824\na batch 536870912\nf batch\n")
	defer before.Close()
	after := read("after", "a weights 1073741824\na batch 805306368\nf batch\n")
	defer after.Close()

	gpu, err := open.Parse("sim:2GiB")
	if err != nil {
		log.Fatal(err)
	}
	platform, err := frameworks.Parse("platform")
	if err != nil {
		log.Fatal(err)
	}
	cfg := replay.Config{Device: gpu.WithTotal, Total: gpu.Sim.Total}
	cfg.Policies = append(cfg.Policies, platform)
	rep, err := compare.Run(ctx, before, after, compare.Config{Replay: cfg})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(rep.Summary[0])
	for _, r := range rep.Pools[0].AtPeak.Rows {
		fmt.Printf("%+d MiB %s %s\n", r.Difference>>20, r.Where, r.How)
	}
	// Output:
	// The peak grew by 256 MiB (+16.7 %), from 1.50 GiB to 1.75 GiB.
	// +768 MiB requests of 768 MiB only_after
	// -512 MiB requests of 512 MiB only_before
	// +0 MiB requests of 1 GiB size
}
