//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"gpumem/node/runenv"
)

// Memory of frameworks outside of their pools, beside the estimate that package runenv gives a program.

// oneRank is the part of a communicator of one GPU, which takes less than one of several.
const oneRank = "NCCL-one-rank"

// outsideParts are the parts that outside.py measures of a framework, by the name of its module.
var outsideParts = map[string][]string{
	"torch": {"context", "import", "kernels", "cuBLAS", "cuDNN", "graph", oneRank},
	"jax":   {"context", "import", "kernels", "cuBLAS", "cuDNN"},
	"cupy":  {"context", "import", "kernels", "cuBLAS"},
}

// outside measures a framework's parts. name is the table's name of what Python calls module.
func outside(module, name string) func(*call) error {
	return func(c *call) error {
		gpu, err := c.device()
		if err != nil {
			return err
		}
		estimate, err := estimated(name, gpu)
		if err != nil {
			return err
		}
		env := append(c.frameworkEnviron(), "TF_CPP_MIN_LOG_LEVEL=3")
		for i, line := range env {
			if strings.HasPrefix(line, "LD_PRELOAD=") { // what nothing else here uses
				env[i] += ":" + filepath.Join(c.root, "sim/libnccl.so.2")
			}
		}
		e, err := c.exec(process{
			args:  []string{c.python, filepath.Join(c.root, "python/outside.py"), module, strconv.FormatUint(gpu.UsedBytes, 10)},
			env:   env,
			limit: c.left(),
		})
		measured := map[string]float64{}
		for line := range strings.Lines(e.stdout) {
			var row struct {
				Part  string
				Bytes float64
			}
			if json.Unmarshal([]byte(line), &row) == nil && row.Part != "" {
				measured[row.Part] = row.Bytes
				c.figureWant("outside."+row.Part+"."+name, row.Bytes, estimate[row.Part], "bytes")
			}
		}
		if err == nil && e.status != 0 {
			err = fmt.Errorf("the program ends with status %d%s", e.status, e.reason())
		}
		if err == nil {
			c.allAsked("outside.py", outsideParts[module], func(part string) bool { _, ok := measured[part]; return ok })
		}
		if len(measured) > 0 {
			c.enough(name, measured, estimate)
		}
		return err
	}
}

// enough compares what an ordinary program has with the estimate for it. The communicator of more
// GPUs is estimated by itself, and graphs are not estimated.
func (c *call) enough(name string, measured, estimate map[string]float64) {
	var sum, want float64
	for part, bytes := range measured {
		if part != oneRank && part != "graph" {
			sum += bytes
		}
	}
	for part, bytes := range estimate {
		if part != "NCCL" {
			want += bytes
		}
	}
	c.figureWant("outside.all."+name, sum, want, "bytes")
	if sum > want {
		c.fault("outside.all.%s: %s, and the estimate is %s", name, quantity(sum, "bytes"), quantity(want, "bytes"))
	}
	if measured[oneRank] > estimate["NCCL"] {
		c.fault("outside.%s.%s: %s, and the estimate for several is %s", oneRank, name,
			quantity(measured[oneRank], "bytes"), quantity(estimate["NCCL"], "bytes"))
	}
}

// estimated is what a program's first run is given for its parts on this GPU, in bytes, with the
// communicator of several GPUs. The simulated GPU is taken for the one that it is made after.
func estimated(framework string, g gpu) (map[string]float64, error) {
	major, err := strconv.Atoi(strings.Split(g.CC, ".")[0])
	if err != nil {
		return nil, fmt.Errorf("compute capability %q: %w", g.CC, err)
	}
	found := map[string]float64{}
	for part, bytes := range (runenv.Lease{Total: g.TotalBytes, CCMajor: major}).Outside(framework, 2) {
		found[part] = float64(bytes)
	}
	return found, nil
}
