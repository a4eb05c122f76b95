package smi_test

import (
	"fmt"
	"strings"

	"gpumem/record/smi"
)

// A program hands over every line of a log and asks afterwards.
func Example() {
	log := `Epoch 3
|   0  Tesla T4                       Off |   00000000:00:04.0 Off |                    0 |
| N/A   54C    P0             30W /   70W |   14630MiB /  15360MiB |     97%      Default |
RuntimeError: CUDA out of memory
|    0   N/A  N/A      4242      C   python3                                     14620MiB |`
	var r smi.Reader
	for i, line := range strings.Split(log, "\n") {
		r.Line(i+1, line)
	}
	for _, g := range r.Readings()[0].GPUs {
		fmt.Printf("line %d: %s, %d of %d MiB\n", g.UsedLine, g.Name, g.Used>>20, g.Total>>20)
		for _, p := range g.Processes {
			fmt.Printf("line %d: %s %d, %d MiB\n", p.Line, p.Name, p.PID, p.Used>>20)
		}
	}
	// Output:
	// line 3: Tesla T4, 14630 of 15360 MiB
	// line 5: python3 4242, 14620 MiB
}
