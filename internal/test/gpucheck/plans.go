//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"gpumem/size"
)

// Plans of remat, beside what XLA compiles from them and what the GPU then does.

// compiled is a line of remat.py.
type compiled struct {
	Name        string
	Temp        float64
	HostTemp    float64 `json:"host_temp"`
	Copies      int     // to the host and back
	Sums        []string
	StepSeconds float64 `json:"step_seconds"`
	Seconds     float64 `json:"compiling_seconds"`
	Link        float64 `json:"host_bytes_per_second"`
	Planned     struct {
		Legal  *bool
		Met    bool
		Heap   float64 `json:"heap_after_bytes"`
		Extra  float64 `json:"extra_compute_percent"`
		Copied float64 `json:"host_bytes_copied"` // both ways
		Values int     `json:"host_values"`
	}
}

// compile runs remat.py behind a command, with kernels of a folder that all calls share.
func (c *call) compile(before []string, env []string, words ...string) ([]compiled, ended, error) {
	folder := filepath.Join(c.scratch, c.name)
	if err := os.MkdirAll(filepath.Join(folder, "kernels"), 0o755); err != nil {
		return nil, ended{}, err
	}
	scale, asked := "4", []string{"mlp", "transformer"}
	if c.simulated { // its memory is the host's, and mostly there are few CPUs
		scale, asked = "1", asked[:1]
	}
	if len(words) > 0 {
		asked = []string{"dense"}
	}
	args := append(before, c.python, filepath.Join(c.root, "python/remat.py"), scale, folder)
	e, err := c.must(process{
		args:  append(args, words...),
		env:   append(c.frameworkEnviron(), append(env, "TF_CPP_MIN_LOG_LEVEL=3")...),
		limit: c.left(),
	})
	if err != nil {
		return nil, e, err
	}
	var list []compiled
	for line := range strings.Lines(e.stdout) {
		var one compiled
		if json.Unmarshal([]byte(line), &one) == nil && one.Name != "" && len(one.Sums) == 2 {
			list = append(list, one)
		}
	}
	if len(list) == 0 {
		return nil, e, errors.New("remat.py prints no program")
	}
	c.allAsked("remat.py", asked, func(name string) bool {
		return slices.ContainsFunc(list, func(one compiled) bool { return one.Name == name })
	})
	return list, e, nil
}

// repeats reports whether results are the same in two runs of one program.
func (p compiled) repeats() bool { return p.Sums[0] == p.Sums[1] }

// sameResults reports whether all runs of two programs have the same results. On the simulated GPU
// nothing is computed, and results are what was in their memory.
func (c *call) sameResults(a, b compiled) bool {
	return c.simulated || a.repeats() && b.repeats() && a.Sums[0] == b.Sums[0]
}

// fixed has XLA take the kernels of its model and measure none.
const fixed = "GPU_CHECK_FIXED_KERNELS=1"

// promised is a line that run --remat writes for each function that it plans.
var promised = regexp.MustCompile(`(?m)^gpumem: jit_step: ([0-9.]+ \w+) of temporaries instead of ([0-9.]+ \w+).*, for (-?[0-9.]+) % more`)

// remat compiles programs with and without run --remat 60%.
func remat(c *call) error {
	plain, planned, said, err := c.compileBoth()
	if err != nil {
		return err
	}
	differ, err := c.comparePlans(plain, planned, said)
	if !differ || err != nil {
		return err
	}
	// XLA may have chosen other kernels by its measurements.
	c.note("the results differ where XLA measures kernels; compared are those of kernels by its model")
	if plain, planned, _, err = c.compileBoth(fixed); err != nil {
		return err
	}
	c.compareFixed(plain, planned)
	return nil
}

// comparePlans compares programs with plans and without with what run says of each, and reports whether
// results differ.
func (c *call) comparePlans(plain, planned []compiled, said [][]string) (differ bool, err error) {
	for i, p := range planned {
		now, err := size.Parse(said[i][1])
		before, err2 := size.Parse(said[i][2])
		if err := errors.Join(err, err2); err != nil {
			return false, err
		}
		c.promise(p.Name+" temporaries without a plan", plain[i].Temp, float64(before))
		c.promise(p.Name+" temporaries", p.Temp, float64(now))
		c.figure(p.Name+" part of the temporaries", p.Temp/plain[i].Temp, "")
		var percent float64
		_, _ = fmt.Sscan(said[i][3], &percent)
		c.figureWant(p.Name+" time of a step", p.StepSeconds/plain[i].StepSeconds, 1+percent/100, "")
		c.figure(p.Name+" a step without a plan", plain[i].StepSeconds*1e6, "us")
		c.figure(p.Name+" compiling without a plan", plain[i].Seconds*1e6, "us")
		c.figure(p.Name+" compiling", p.Seconds*1e6, "us")
		differ = differ || !c.sameResults(p, plain[i])
	}
	return differ, nil
}

// compareFixed compares results of programs of which XLA measured nothing.
func (c *call) compareFixed(plain, planned []compiled) {
	for i, p := range planned {
		switch {
		case !plain[i].repeats():
			c.note("%s: the results are not compared, for they differ from run to run without a plan", p.Name)
		case !c.sameResults(p, plain[i]):
			c.fault("%s: the results with a plan are not those without one, to the bit", p.Name)
		}
	}
}

// compileBoth compiles programs without and with run --remat 60%, and returns what run says of each.
func (c *call) compileBoth(env ...string) (plain, planned []compiled, said [][]string, err error) {
	if plain, _, err = c.compile(nil, env); err != nil {
		return nil, nil, nil, err
	}
	run := []string{c.command(), "run", "--mem", "20GiB", "--remat", "60%", "--"}
	planned, e, err := c.compile(run, append([]string{"GPUMEM_REPORT=0", "XDG_CACHE_HOME=" + c.scratch}, env...))
	if err != nil {
		return nil, nil, nil, err
	}
	said = promised.FindAllStringSubmatch(e.stderr, -1)
	if len(said) != len(plain) || len(planned) != len(plain) {
		err = fmt.Errorf("run --remat says that it planned %d functions of %d%s", len(said), len(plain), e.reason())
	}
	return plain, planned, said, err
}

// promise compares an amount with one that was printed with two digits behind the point.
func (c *call) promise(name string, bytes, printed float64) {
	c.figureWant(name, bytes, printed, "bytes")
	if off := bytes - printed; off > mib/100 || off < -mib/100 {
		is, says := quantities(bytes, printed, "bytes")
		c.fault("%s: XLA takes %s, and run says %s", name, is, says)
	}
}

// rematHost has XLA compile from the text of plans with copies to the host.
func rematHost(c *call) error {
	plain, _, err := c.compile(nil, []string{fixed}, "off", c.command())
	if err != nil {
		return err
	}
	base := plain[0]
	c.figure("a step", base.StepSeconds*1e6, "us")
	c.figure("temporaries", base.Temp, "bytes")
	c.figure("the link to the host", base.Link, "bytes/s")
	for _, speed := range []string{"50e9", "400e9"} {
		list, _, err := c.compile(nil, []string{fixed}, speed, c.command())
		if err != nil {
			c.report(fmt.Errorf("a link of %s bytes a second: %w", speed, err))
			continue
		}
		c.hostPlan("planned for "+speed, list[0], base)
	}
	return nil
}

// hostPlan compares one plan with the program without one.
func (c *call) hostPlan(what string, p, base compiled) {
	for _, of := range []struct {
		name      string
		xla, plan float64
		unit      string
	}{
		{"temporaries", p.Temp, p.Planned.Heap, "bytes"},
		{"on the host", p.HostTemp, p.Planned.Copied / 2, "bytes"}, // the plan counts both ways
		{"copies", float64(p.Copies), float64(2 * p.Planned.Values), ""},
	} {
		name := what + ": " + of.name
		c.figureWant(name, of.xla, of.plan, of.unit)
		if of.xla != of.plan {
			is, says := quantities(of.xla, of.plan, of.unit)
			c.fault("%s: %s by XLA, and the plan says %s", name, is, says)
		}
	}
	c.figureWant(what+": time of a step", p.StepSeconds/base.StepSeconds, 1+p.Planned.Extra/100, "")
	if p.Planned.Legal == nil || !*p.Planned.Legal {
		c.fault("%s: gpumem remat does not say that the plan is legal", what)
	}
	if p.Planned.Values == 0 {
		c.fault("%s: the plan copies nothing to the host", what)
	}
	if base.Link > 0 && p.Planned.Copied > 0 {
		late := p.StepSeconds - base.StepSeconds*(1+p.Planned.Extra/100)
		c.figure(what+": part of the copies that takes no time", 1-late/(p.Planned.Copied/base.Link), "")
	}
	switch {
	case !base.repeats() && !c.simulated:
		c.note("%s: the results are not compared, for they differ from run to run without a plan", what)
	case !c.sameResults(p, base):
		c.fault("%s: the results are not those without a plan, to the bit", what)
	}
}
