// Command startup shows how JAX's default can keep a program from starting on
// a GPU that it shares, and how a lower fraction cures it (the page's rows on
// preallocation and on XLA_CLIENT_MEM_FRACTION).
//
//	go run ./examples/startup
//
// The default asks for 75 % of the total. Refused, it asks for 0.9 times as
// much until it gets something, so it ends with nearly all that is left. What
// does not come from the pool then finds nothing: cuDNN fails, and its message
// (CUDNN_STATUS_INTERNAL_ERROR) does not speak of memory.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"gpumem"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/internal/report"
	"gpumem/policy/frameworks"
	"gpumem/size"
)

const (
	total = 24 << 30
	used  = total * 3 / 10 // of another program

	// What a process needs beside its pool. The sizes are from public reports:
	// the context of an H100-class card takes 2 KiB for each thread that can be
	// resident (132 processors of 2048); the first convolution takes about 520
	// MiB for cuDNN (tensorflow#24496).
	contextBytes = 528 << 20
	cudnnBytes   = 520 << 20
)

func main() {
	if err := run(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// outcome is one start of the program.
type outcome struct {
	asked, got uint64   // by the pool at the first operation
	refusals   int      // of the device until then
	left       uint64   // on the device after it
	cudnn      error    // why cuDNN did not get its memory
	log        []string // what the framework would log
}

// start is what a JAX program does before its first step: make a context, open
// the pool, run an operation, let cuDNN set itself up.
func start(spec string) (outcome, error) {
	var o outcome
	dev, err := sim.New(sim.Config{Total: total, Used: used})
	if err != nil {
		return o, err
	}
	if _, err := dev.Alloc(contextBytes); err != nil {
		return o, fmt.Errorf("no memory for the context: %w", err)
	}
	p, err := frameworks.Parse(spec)
	if err != nil {
		return o, err
	}
	pool, err := gpumem.Open(dev, p, gpumem.WithLog(func(m gpumem.Message) {
		o.log = append(o.log, m.Text)
	}))
	if err != nil {
		return o, err
	}
	defer pool.Close()

	before := dev.Counters().Calls
	if _, err := pool.Alloc(context.Background(), 4); err != nil { // jnp.zeros(())
		return o, err
	}
	o.refusals = int(dev.Counters().Calls-before) - 1
	s := pool.Stats()
	o.asked, o.got = s.BytesLimit, s.PoolBytes
	if o.left, _, err = dev.MemInfo(); err != nil {
		return o, err
	}
	if _, o.cudnn = dev.Alloc(cudnnBytes); o.cudnn != nil && !errors.Is(o.cudnn, device.ErrOutOfMemory) {
		return o, o.cudnn
	}
	return o, nil
}

func run(w io.Writer) error {
	specs := []string{"jax", "jax:fraction=.5"}
	fmt.Fprintf(w, "A GPU of %s. Another program holds %s of it (30 %%).\n\n", size.Format(total), size.Format(used))
	var starts []outcome
	for _, spec := range specs {
		o, err := start(spec)
		if err != nil {
			return err
		}
		starts = append(starts, o)
	}
	tab := report.NewTable("", ">"+specs[0], ">"+specs[1])
	row := func(name string, cell func(outcome) string) {
		tab.Row(name, cell(starts[0]), cell(starts[1]))
	}
	row("the context takes", func(outcome) string { return size.Format(contextBytes) })
	row("the first operation asks for", func(o outcome) string { return size.Format(o.asked) })
	row("  is refused so often", func(o outcome) string { return fmt.Sprint(o.refusals) })
	row("  and gets", func(o outcome) string { return size.Format(o.got) })
	row("left on the GPU", func(o outcome) string { return size.Format(o.left) })
	row("cuDNN asks for", func(outcome) string { return size.Format(cudnnBytes) })
	row("  and gets", func(o outcome) string { return map[bool]string{true: "it", false: "nothing"}[o.cudnn == nil] })
	row("the program", func(o outcome) string { return map[bool]string{true: "starts", false: "FAILS"}[o.cudnn == nil] })
	if _, err := tab.WriteTo(w); err != nil {
		return err
	}
	for i, o := range starts {
		if o.cudnn == nil {
			continue
		}
		fmt.Fprintf(w, "\nWith %s the log says\n", specs[i])
		for _, line := range o.log {
			fmt.Fprintf(w, "  %s\n", line)
		}
		fmt.Fprintf(w, "and then\n  %v\n", o.cudnn)
	}
	fmt.Fprintf(w, "\nThe cure: XLA_CLIENT_MEM_FRACTION=.5 (XLA_PYTHON_CLIENT_MEM_FRACTION=.5 in old releases).\n")
	return nil
}
