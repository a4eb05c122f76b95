//go:build linux

package main

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Frameworks under their own settings, beside what gpumem explain says of them.

var (
	jaxSettings = []string{
		"",
		"XLA_PYTHON_CLIENT_MEM_FRACTION=.5",
		"XLA_PYTHON_CLIENT_PREALLOCATE=false",
		"XLA_PYTHON_CLIENT_ALLOCATOR=platform",
		"XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async",
		"XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async XLA_PYTHON_CLIENT_PREALLOCATE=false",
		"XLA_PYTHON_CLIENT_ALLOCATOR=vmm",
	}
	torchSettings = []string{
		"",
		"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
		"PYTORCH_CUDA_ALLOC_CONF=per_process_memory_fraction:0.05",
		"PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync",
	}
)

// besides is the most that a framework may take beside its pool and a context with its first
// operation, for kernels that it loads and the driver's own.
const besides = 256 * mib

// explained is what gpumem explain --json says.
type explained struct {
	Allocator string
	Limit     *uint64 `json:"limit_bytes"` // nil: there is none
	Gets      uint64  `json:"gets_bytes"`  // with the first operation
	Errors    []struct{ Text string }
}

// allocators are what settings.py finds for each allocator that explain names.
var allocators = map[string]map[string]string{
	"jax":     {"bfc": "bfc", "cuda_async": "cuda_async", "platform": "without figures", "vmm": "without figures"},
	"pytorch": {"caching": "native", "cuda_async": "cudaMallocAsync"},
}

// taken is the answer of programs/settings.py.
type taken struct {
	Version     string
	Allocator   string  // as far as the framework says which
	Limit, Pool *uint64 // by the framework, nil: it does not say
	InUse       uint64  `json:"in_use"`
}

// explain lets a framework take memory under each setting, one after the other. explains is its name
// for gpumem explain.
func explain(f framework, explains string, settings []string) func(*call) error {
	return func(c *call) error {
		var programs []*talker
		defer func() { c.stop(programs...) }()
		for _, kind := range append([]string{"context"}, settings...) {
			name, program := explains, f.name
			if kind == "context" {
				name, program, kind = "a context", "context", ""
			}
			t, err := c.talk(strings.TrimSpace(name+" "+kind), strings.Fields(kind), nil, "settings", program)
			if err != nil {
				return err
			}
			programs = append(programs, t)
		}
		context := programs[0]
		if err := c.ready(context, nil); err != nil {
			return err
		}
		idle, err := c.device()
		if err != nil {
			return err
		}
		outside, err := c.takes(context, idle, nil)
		if err != nil {
			return err
		}
		c.figure("a context takes", outside, "bytes")
		c.end(context)
		for i, t := range programs[1:] {
			before, err := c.settle(idle)
			if err != nil {
				return err
			}
			if err := c.explainOne(t, explains, strings.Fields(settings[i]), before, outside); err != nil {
				return err
			}
		}
		return nil
	}
}

// explainOne holds one program against what explain says. outside is what a context takes.
func (c *call) explainOne(t *talker, explains string, env []string, before gpu, outside float64) error {
	var ready, a taken
	if err := c.ready(t, &ready); err != nil {
		c.report(err)
		return nil
	}
	var said explained
	if err := c.gpumem(&said, env, "explain", "--as", explains+"@"+ready.Version, "--json"); err != nil {
		return err
	}
	took, err := c.takes(t, before, &a)
	if !c.startsAsSaid(t.name, err, said) {
		return nil
	}
	c.compareAllocator(t.name, explains, a.Allocator, said.Allocator)
	c.compareExplained(t.name, a, said, took-outside)
	switch {
	case a.Limit != nil || said.Limit == nil:
	case explains == "pytorch":
		c.fillTo(t, *said.Limit)
	default:
		c.note("%s: the limit of %d bytes by explain is not compared, for the framework says none", t.name, *said.Limit)
	}
	if e := c.end(t); e.status != 0 {
		c.fault("%s: the program ends with status %d%s", t.name, e.status, e.reason())
	}
	return nil
}

// startsAsSaid reports whether a program starts, which err says it does not, and finds fault where explain
// says otherwise.
func (c *call) startsAsSaid(name string, err error, said explained) bool {
	switch {
	case err != nil && len(said.Errors) > 0:
	case err != nil:
		c.fault("%v; explain sees no error", err)
	case len(said.Errors) > 0:
		c.fault("%s: it starts, and explain says that it raises %q", name, said.Errors[0].Text)
	}
	return err == nil
}

// compareAllocator compares the allocator that a framework has with the one that explain names.
func (c *call) compareAllocator(name, explains, has, said string) {
	if want := allocators[explains][said]; has == "" || has != want {
		c.fault("%s: it has the allocator %q, and explain says %s (%q)", name, has, said, want)
	}
}

// compareExplained compares what a framework says of itself and what it takes beside a context with what
// explain says.
func (c *call) compareExplained(name string, a taken, said explained, beside float64) {
	gets := float64(said.Gets)
	if a.Pool != nil {
		c.compareSaid(name+": the pool has", float64(*a.Pool), gets)
	}
	switch {
	case a.Limit == nil:
	case said.Limit == nil:
		c.note("%s: the framework says a limit of %d bytes, and explain none", name, *a.Limit)
	default:
		c.compareSaid(name+": the limit", float64(*a.Limit), float64(*said.Limit))
	}
	// Without a pool it takes what it uses.
	want := max(gets, float64(a.InUse))
	c.figure(name+": taken beside a context", beside, "bytes")
	if math.Abs(beside-want) > besides {
		c.fault("%s: it takes %s beside a context, and explain says %s (within %s)", name,
			quantity(beside, "bytes"), quantity(want, "bytes"), quantity(besides, "bytes"))
	}
}

// compareSaid keeps what a framework says of itself, which is to be what explain says.
func (c *call) compareSaid(name string, value, said float64) {
	c.figure(name, value, "bytes")
	if value != said {
		c.fault("%s %s (%.0f bytes), and explain says %s (%.0f)", name, quantity(value, "bytes"), value, quantity(said, "bytes"), said)
	}
}

// takes lets a program that is ready use the GPU, and returns how much more of it is in use then.
func (c *call) takes(t *talker, before gpu, a *taken) (float64, error) {
	if a == nil {
		a = new(taken)
	}
	if err := t.next("", "taken", a, c.atMost(readyIn)); err != nil {
		return 0, err
	}
	now, err := c.device()
	return now.takenSince(before), err
}

// settle waits until about as much is in use as was before any program, and returns what is in use
// then. A driver may keep a little.
func (c *call) settle(idle gpu) (now gpu, err error) {
	const kept = 64 * mib
	for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		now, err = c.device()
		if err != nil || now.UsedBytes <= idle.UsedBytes+kept {
			return now, err
		}
		if late := time.Since(begun) > 5*time.Second; late {
			c.fault("5 s after a program's end %s more than before it is in use", quantity(now.takenSince(idle), "bytes"))
			return now, nil
		}
	}
}

// fillTo lets PyTorch take all of a limit, and then more than that.
func (c *call) fillTo(t *talker, limit uint64) {
	var filled struct{ Within, Beyond bool }
	if err := t.next(fmt.Sprint(limit), "filled", &filled, c.atMost(20*time.Second)); err != nil {
		c.report(err)
		return
	}
	c.filledTo(t.name, limit, filled.Within, filled.Beyond)
}

// filledTo compares what a program got with a limit: all of it, and nothing beyond.
func (c *call) filledTo(name string, limit uint64, within, beyond bool) {
	c.figure(name+": the limit", float64(limit), "bytes")
	switch {
	case !within:
		c.fault("%s: it is refused within the limit of %d bytes that explain says", name, limit)
	case beyond:
		c.fault("%s: it gets more than the limit of %d bytes that explain says", name, limit)
	}
}
