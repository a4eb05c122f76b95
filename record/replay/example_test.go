package replay_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"gpumem/device/open"
	"gpumem/policy/frameworks"
	"gpumem/record/formats"
	"gpumem/record/replay"
	"gpumem/record/trace"
	"gpumem/size"
)

// A recording under two policies: a program that holds 3 GiB at its peak.
func ExampleRun() {
	ctx := context.Background()
	t, err := formats.Read(ctx, strings.NewReader(`
a weights 2147483648
a batch   1073741824
f batch
`), "recording", trace.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()

	gpu, err := open.Parse("sim:4GiB")
	if err != nil {
		log.Fatal(err)
	}
	cfg := replay.Config{Device: gpu.WithTotal, Total: gpu.Sim.Total, Smallest: true}
	for _, words := range []string{"jax:fraction=.7", "platform"} {
		p, err := frameworks.Parse(words)
		if err != nil {
			log.Fatal(err)
		}
		cfg.Policies = append(cfg.Policies, p)
	}

	report, err := replay.Run(ctx, t, cfg)
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range report.Results {
		fmt.Printf("%s: held %s at most, refused %d, fits on %s\n",
			r.Policy, size.Format(r.HeldPeak), r.Refused, size.Format(*r.Smallest))
	}
	// Output:
	// jax:fraction=.7: held 2.80 GiB at most, refused 1, fits on 4.28 GiB
	// platform: held 3 GiB at most, refused 0, fits on 3 GiB
}
