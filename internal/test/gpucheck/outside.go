package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpumem/internal/table"
	"gpumem/size"
)

// What frameworks take outside of their pools, beside the table of node/internal/overhead, of which
// the bundle has a copy.

const overheadFile = "overhead.txt"

// outside measures a framework's parts. name is the table's name of what Python calls module.
func outside(module, name string) func(*call) error {
	return func(c *call) error {
		gpu, err := c.device()
		if err != nil {
			return err
		}
		estimate, err := c.overhead(name, gpu)
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
			limit: c.limit - time.Second,
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
			err = fmt.Errorf("the program ends with status %d%s", e.status, lastLine([]byte(e.stderr)))
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
		if part != "NCCL" && part != "graph" {
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
	if measured["NCCL"] > estimate["NCCL"] {
		c.fault("outside.NCCL.%s: %s, and the estimate is %s", name, quantity(measured["NCCL"], "bytes"), quantity(estimate["NCCL"], "bytes"))
	}
}

// overhead is what the table has for a framework on this GPU, by part, in bytes, with the
// communicator of several GPUs.
func (c *call) overhead(framework string, gpu gpu) (map[string]float64, error) {
	text, err := os.ReadFile(filepath.Join(c.root, overheadFile))
	if err != nil {
		return nil, err
	}
	entries, err := table.Read(overheadFile, string(text), "of", "from", "gpus", "about")
	if err != nil {
		return nil, err
	}
	number := func(text string) (n uint64) {
		if text != "" {
			var wrong error
			n, wrong = strconv.ParseUint(text, 10, 64)
			err = errors.Join(err, wrong)
		}
		return n
	}
	bytes := func(text string) uint64 {
		n, wrong := size.Parse(text)
		err = errors.Join(err, wrong)
		return n
	}
	major, _, _ := strings.Cut(gpu.CC, ".")
	found := map[string]float64{}
	for _, e := range entries {
		words := strings.Fields(e.Name)
		name, fits := words[1], number(major) >= number(e.Fields["from"]) && slices.Contains(strings.Split(e.Fields["of"], ", "), framework)
		if words[0] == "context" {
			name, fits = "context", number(major) >= number(words[1]) && (words[2] == "any" || gpu.TotalBytes <= bytes(words[2]))
		}
		if _, before := found[name]; fits && !before {
			found[name] = float64(bytes(words[len(words)-1]))
		}
	}
	return found, err
}
