//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// Predictions of fit, beside what programs then take.

// fitProgram is a program of record/fit/testdata.
type fitProgram struct {
	name, scale string
	// What it may have in workspaces, of which fit's page says that a card has them and fit does not.
	workspace float64
}

const fitSteps = "4"

var (
	jaxPrograms = []fitProgram{
		{"mlp", "16", 0}, {"wide-adam", "8", 0}, {"transformer", "8", 0}, {"scan", "32", 0}, {"conv", "16", 512 * mib},
	}
	torchPrograms = []fitProgram{
		{"dense", "1", 0}, {"images", "1", 512 * mib}, {"causal_mixed", "1", 0}, {"language", "1", 0}, {"causal", "1", 0},
	}
)

// predicted is what fit says, in bytes.
type predicted struct{ inUse, held, outside float64 }

// consumed is what a program took.
type consumed struct {
	InUsePeak float64 `json:"in_use_peak"`
	HeldPeak  float64 `json:"held_peak"`
	Held      float64 `json:"held"` // now
	outside   float64 // what the GPU counts for the program less Held; 0: the GPU shows no such program
}

// fits compares predictions for programs of one file with runs of them, several at once. A setting ("NAME=VALUE")
// is for the runs, and fit's answer for that setting is taken; "" is the framework's own.
func fits(file, setting string, programs []fitProgram) func(*call) error {
	return func(c *call) error {
		gpu, err := c.device()
		if err != nil {
			return err
		}
		card := fmt.Sprintf("sim:%d,cc=%s", gpu.TotalBytes, gpu.CC)
		if c.simulated { // which has no surprises, and mostly few CPUs
			programs = programs[:2]
		}
		turns := make(chan struct{}, max(2, runtime.NumCPU()/2))
		var wg sync.WaitGroup
		var telling sync.Mutex
		for _, p := range programs {
			said := make(chan error, 1)
			var say predicted
			wg.Go(func() {
				turns <- struct{}{}
				defer func() { <-turns }()
				var err error
				say, err = c.predict(card, file, setting, p)
				said <- err
			})
			wg.Go(func() {
				turns <- struct{}{}
				took, err := c.take(file, setting, p)
				<-turns
				err = errors.Join(err, <-said)
				telling.Lock()
				defer telling.Unlock()
				if err != nil {
					c.report(fmt.Errorf("%s: %w", p.name, err))
					return
				}
				c.compareFit(p, say, took)
			})
		}
		wg.Wait()
		return nil
	}
}

// compareFit compares one program's figures. On the simulated GPU they are equal.
func (c *call) compareFit(p fitProgram, said predicted, took consumed) {
	tolerance, workspace := .02, p.workspace
	if c.simulated {
		tolerance, workspace = 0, 0
	}
	for _, of := range []struct {
		what      string
		took, say float64
	}{{"in use", took.InUsePeak, said.inUse}, {"held", took.HeldPeak, said.held}} {
		name := p.name + " " + of.what
		c.figureWant(name, of.took, of.say, "bytes")
		if of.took < of.say*(1-tolerance) || of.took > of.say*(1+tolerance)+workspace {
			is, says := quantities(of.took, of.say, "bytes")
			c.fault("%s: %s at the peak, and fit says %s", name, is, says)
		}
	}
	if took.outside == 0 { // in a container the driver may have other numbers for processes
		c.note("%s outside: unknown, for the GPU shows no such process", p.name)
		return
	}
	name := p.name + " outside"
	c.figureWant(name, took.outside, said.outside, "bytes")
	if took.outside > said.outside {
		c.fault("%s: %s, and fit assumes %s", name, quantity(took.outside, "bytes"), quantity(said.outside, "bytes"))
	}
}

// predict asks fit, which uses no GPU: the environment that shows it the check's is taken out.
func (c *call) predict(card, file, setting string, p fitProgram) (predicted, error) {
	var answer struct {
		Outside    float64 `json:"outside_bytes"`
		Candidates []struct {
			Set   []string
			InUse float64 `json:"allocated_peak_bytes"`
			Held  float64 `json:"held_peak_bytes"`
		}
	}
	args := []string{"env"}
	for _, name := range []string{"GPUMEM_DEVICE", "GPUMEM_LIBCUDA", "GPUMEM_LIBNVML", "LD_LIBRARY_PATH", "LD_PRELOAD"} {
		args = append(args, "-u", name)
	}
	args = append(args, c.command(), "fit", "--quiet", "--json", "--full", "--device", card, "--",
		c.python, filepath.Join(c.root, "python", file), p.name, p.scale, fitSteps)
	e, err := c.exec(process{args: args, limit: c.left()})
	if err != nil {
		return predicted{}, err
	}
	if err := json.Unmarshal([]byte(e.stdout), &answer); err != nil {
		return predicted{}, fmt.Errorf("gpumem fit: %w%s", err, e.reason())
	}
	for _, candidate := range answer.Candidates {
		if strings.Join(candidate.Set, " ") == setting {
			return predicted{candidate.InUse, candidate.Held, answer.Outside}, nil
		}
	}
	return predicted{}, fmt.Errorf("gpumem fit has no answer for the setting %q", setting)
}

// take runs a program and looks at what it took before it ends.
func (c *call) take(file, setting string, p fitProgram) (t consumed, err error) {
	env := c.frameworkEnviron()
	if setting != "" {
		env = append(env, setting)
	}
	r, err := c.begin(process{
		args: []string{c.python, filepath.Join(c.root, "python/measured.py"), file, p.name, p.scale, fitSteps},
		env:  env, talks: true, answers: "{",
	})
	if err != nil {
		return t, err
	}
	for late := time.Now().Add(c.limit); t.HeldPeak == 0 && err == nil; {
		var line string
		if line, err = r.answer(time.Until(late)); err == nil {
			_ = json.Unmarshal([]byte(line), &t) // the program has lines of its own before
		}
	}
	if t.HeldPeak > 0 {
		if v, err := c.listed("devices"); err == nil {
			t.outside = math.Max(0, float64(v.programs[r.cmd.Process.Pid])-t.Held)
		}
	}
	_ = r.in.Close()
	if err != nil || !r.within(20*time.Second) {
		r.kill()
	}
	if e := c.finish(r); err == nil && e.status != 0 {
		err = fmt.Errorf("exit status %d%s", e.status, e.reason())
	}
	if err != nil {
		err = fmt.Errorf("the program ends without figures: %w", err)
	}
	return t, err
}
