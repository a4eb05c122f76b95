//go:build linux

package main

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpumem/size"
)

// Unchanged programs of JAX, PyTorch and CuPy, alone and with pools in front of the driver.

// framework is one of them.
type framework struct {
	name    string // as the programs in Python call it
	error   string // the type of its own error of memory
	message string // what its text has
	replays bool   // its training replays a graph, too
}

var (
	jax   = framework{name: "jax", error: "jax.errors.JaxRuntimeError", message: "RESOURCE_EXHAUSTED"}
	torch = framework{name: "torch", error: "torch.OutOfMemoryError", message: "memory", replays: true}
	cupy  = framework{name: "cupy", error: "cupy.cuda.memory.OutOfMemoryError", message: "memory"}
)

// trained is the answer of programs/train_*.py.
type trained struct {
	Losses, Replayed []string // float32, in hexadecimal
	Steps            float64  `json:"steps_a_second"`
	Replays          float64  `json:"replays_a_second"` // 0: it has no graph
	Peak             float64  `json:"peak_bytes"`       // in use by the framework's own account, 0: it has none
	Held             float64  `json:"held_bytes"`       // by the framework
}

// refused is the answer of programs/fill.py.
type refused struct {
	Error, Text     string
	Requested, Held uint64 // bytes: a block, and all blocks that it got
	InUse           uint64 `json:"in_use"`
	Pool, Limit     uint64 // of the framework's pool, 0: it has none
	Free, Total     uint64 // of the GPU, 0: the framework cannot say
}

// lease is what each program has under gpumem run.
const lease, leaseBytes = "3GiB", 3 << 30

// train runs a framework's training alone and under each pool, and lets it fill a lease with and
// without a pool. All start at once; when the leases are full and given back, each trains with the
// GPU to itself.
func train(f framework) func(*call) error {
	return func(c *call) (err error) {
		under := func(words ...string) []string {
			return append(append([]string{c.command(), "run", "--mem", lease}, words...), "--")
		}
		// Without a pool there is nothing of ours that could be at fault.
		trouble := func(t *talker, err error) {
			if t.name == "alone" {
				c.failed(err)
				return
			}
			c.report(err)
		}
		pools := []string{"alone", "elastic", "vmm", "async"}
		var trainers, fillers []*talker
		defer func() { c.stop(append(trainers, fillers...)...) }()
		for _, pool := range pools {
			var before []string
			if pool != "alone" {
				before = under("--pool", pool)
			}
			t, err := c.talk(pool, nil, before, "train_"+f.name)
			if err != nil {
				return err
			}
			trainers = append(trainers, t)
		}
		for name, before := range map[string][]string{"a full lease": under(), "a full lease with a pool": under("--pool", "elastic")} {
			t, err := c.talk(name, nil, before, "fill", f.name, "256")
			if err != nil {
				return err
			}
			fillers = append(fillers, t)
		}
		for _, t := range fillers {
			c.fill(f, t)
		}

		var failures []*talker
		for _, t := range trainers {
			if err := c.ready(t, nil); err != nil {
				trouble(t, err)
				failures = append(failures, t)
			}
		}
		found := map[string]trained{}
		for _, t := range trainers {
			if slices.Contains(failures, t) {
				continue
			}
			var a trained
			if err := t.next("", "trained", &a, c.atMost(30*time.Second)); err != nil {
				trouble(t, err)
				continue
			}
			found[t.name] = a
			c.figure(t.name+": steps a second", a.Steps, "1/s")
			if a.Replays > 0 {
				c.figure(t.name+": replays of a graph a second", a.Replays, "1/s")
			}
			if a.Peak > 0 {
				c.figure(t.name+": the framework's peak in use", a.Peak, "bytes")
			}
			c.figure(t.name+": the framework holds", a.Held, "bytes")
			e := c.end(t)
			if e.status != 0 {
				c.fault("%s: the program ends with status %d%s", t.name, e.status, e.reason())
			}
			if t.name != "alone" {
				c.poolReport(t.name, e.stderr, a.Peak)
			}
		}
		c.compareLosses(f, pools, found)
		return nil
	}
}

// compareLosses holds the losses under pools against those without, to the bit. A simulated GPU computes
// nothing that could be compared.
func (c *call) compareLosses(f framework, pools []string, found map[string]trained) {
	alone, ok := found["alone"]
	if !ok {
		return
	}
	if !c.simulated {
		if why := f.isTraining(alone); why != nil { // which none of our pools could be at fault for
			c.failed(fmt.Errorf("alone: %w", why))
			return
		}
		c.figure("losses compared on each pool", float64(len(alone.Losses)+len(alone.Replayed)), "")
	}
	for _, pool := range pools[1:] {
		a, ok := found[pool]
		if !ok {
			continue
		}
		if why := f.isTraining(a); why != nil && !c.simulated {
			c.fault("%s: %v", pool, why)
			continue
		}
		c.compareSeries(pool+": loss", alone.Losses, a.Losses)
		c.compareSeries(pool+": loss of a replayed graph", alone.Replayed, a.Replayed)
		if a.Steps > 0 && alone.Steps > 0 {
			c.figure(pool+": speed against alone", a.Steps/alone.Steps, "")
		}
	}
}

// isTraining says why a program's losses are not those of a training; nil if they are. Equal losses prove
// nothing if nothing was computed.
func (f framework) isTraining(a trained) error {
	if err := isDescent("the loss", a.Losses); err != nil {
		return err
	}
	if !f.replays {
		return nil
	}
	if a.Replays <= 0 {
		return errors.New("no graph was replayed")
	}
	return isDescent("the loss of a replayed graph", a.Replayed)
}

// isDescent says why numbers, in hexadecimal, are not those of a training: none, or none that changes, no
// numbers, or zeros, as memory has that nobody wrote.
func isDescent(what string, losses []string) error {
	if len(losses) == 0 {
		return fmt.Errorf("%s has no value", what)
	}
	for i, text := range losses {
		switch x, err := strconv.ParseFloat(text, 64); {
		case err != nil || math.IsNaN(x) || math.IsInf(x, 0):
			return fmt.Errorf("%s %d is %s, which is no number", what, i, text)
		case x == 0:
			return fmt.Errorf("%s %d is 0", what, i)
		}
	}
	if first, last := losses[0], losses[len(losses)-1]; first == last {
		return fmt.Errorf("the training went nowhere: %s begins with %s and ends with %s", what, first, last)
	}
	return nil
}

// compareSeries reports the first difference. Numbers of a simulated GPU are what lay in memory.
func (c *call) compareSeries(name string, want, got []string) {
	if c.simulated {
		return
	}
	if len(got) != len(want) {
		c.fault("%s: %d values, and %d alone", name, len(got), len(want))
		return
	}
	for i := range want {
		if got[i] != want[i] {
			c.fault("%s %d is %s, and %s alone", name, i, got[i], want[i])
			return
		}
	}
}

// reported is the line that the pool library writes when a program ends.
var reported = regexp.MustCompile(`gpumem: GPU 0, pool \S+: peak (.+) in use, (.+) reserved; ` +
	`(\d+) allocations, (\d+) refused, (\d+) driver calls`)

// poolReport keeps what the library says of its pool, and holds what it reserved against what was in use
// at the peak: by the framework, or, if peak is 0, by the pool.
func (c *call) poolReport(name, stderr string, peak float64) {
	m := reported.FindStringSubmatch(stderr)
	if m == nil {
		c.fault("%s: the pool library reports nothing at the end%s", name, lastLine(stderr))
		return
	}
	used, err1 := parseSize(m[1])
	held, err2 := parseSize(m[2])
	var requests, refused, calls float64
	if _, err := fmt.Sscan(m[3]+" "+m[4]+" "+m[5], &requests, &refused, &calls); err != nil || err1 != nil || err2 != nil {
		c.fault("%s: the pool library's report cannot be read: %s", name, m[0])
		return
	}
	c.figure(name+": the pool's peak in use", used, "bytes")
	c.figure(name+": the pool's peak reserved", held, "bytes")
	c.figure(name+": requests", requests, "")
	c.figure(name+": driver calls of the pool", calls, "")
	if refused > 0 {
		c.fault("%s: the pool refused %.0f requests in a lease of %s", name, refused, lease)
	}
	if peak == 0 {
		peak = used
	}
	c.figure(name+": reserved against in use, at the peaks", held/peak, "")
	// elastic alone promises it of any program: pages are rounded up, and a stream's are not another's.
	if most := 1.1*peak + 64*mib; name == "elastic" && held > most {
		c.fault("%s: the pool reserved %s for %s in use at the peak, more than %s", name,
			quantity(held, "bytes"), quantity(peak, "bytes"), quantity(most, "bytes"))
	}
}

// parseSize reads a size as gpumem prints it, such as 105.53 MiB.
func parseSize(text string) (float64, error) {
	n, err := size.Parse(strings.ReplaceAll(text, " ", ""))
	return float64(n), err
}

// fill lets a program take memory until its lease refuses it more.
func (c *call) fill(f framework, t *talker) {
	var a refused
	err := c.ready(t, nil)
	if err == nil {
		err = t.next("", "refused", &a, c.atMost(30*time.Second))
	}
	if err != nil {
		c.report(err)
		return
	}
	c.filledLease(t.name, a.Held)
	c.ownError(f, t.name, a, c.end(t))
}

// filledLease compares what a program got until it was refused more with its lease.
func (c *call) filledLease(name string, bytes uint64) {
	c.figure(name+": the program has", float64(bytes), "bytes")
	if bytes > leaseBytes || bytes < leaseBytes/2 {
		c.fault("%s: the program has %s of a lease of %s", name, quantity(float64(bytes), "bytes"), lease)
	}
}

// ownError checks that a program which was refused memory ended with its framework's error.
func (c *call) ownError(f framework, name string, a refused, e ended) {
	if a.Error != f.error || !strings.Contains(a.Text, f.message) {
		c.fault("%s: the program gets %s: %s; want %s with %s", name, a.Error, a.Text, f.error, f.message)
	}
	if e.status != 1 || !strings.Contains(e.stderr, f.error+": ") {
		c.fault("%s: the program ends with status %d, want 1 and a traceback of %s%s", name, e.status, f.error, e.reason())
	}
}
