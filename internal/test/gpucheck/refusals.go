//go:build linux

package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"gpumem/size"
)

// The doctor's findings in what real refusals print.

// refusal is a program that fills what it may have, and what the doctor is to say of it.
type refusal struct {
	name   string
	env    []string
	args   []string                        // of programs/fill.py
	causes []string                        // the truth, and as the first one where the log decides
	sizes  func(refused) map[string]uint64 // what the doctor is to name, in bytes
	dumps  bool                            // the log has the pool's dump, too
}

var (
	jaxRefusals = []refusal{
		// By default XLA prints the error and no more, so that the log does not decide. It tries for
		// ten seconds before: both have a part of the GPU, to be refused at once.
		{name: "JAX", env: []string{jaxPart}, args: []string{"jax", "4096"},
			causes: []string{"pool_limit", "program_too_big"}, sizes: requested},
		{name: "JAX with the pool's report", env: []string{jaxPart, "TF_CPP_MIN_LOG_LEVEL=0"}, args: []string{"jax", "4096"},
			causes: []string{"pool_limit", "program_too_big"},
			sizes: func(a refused) map[string]uint64 {
				return map[string]uint64{"the request": a.Requested, "the bytes in use": a.InUse, "the limit": a.Limit}
			}, dumps: true},
	}
	torchRefusals = []refusal{
		{name: "PyTorch", args: []string{"torch", "4096"}, causes: []string{"program_too_big"},
			sizes: func(a refused) map[string]uint64 {
				return map[string]uint64{
					"the request": a.Requested, "the bytes in use": a.InUse, "the free bytes": a.Free, "the total": a.Total,
				}
			}},
		{name: "PyTorch at a fraction", args: []string{"torch", "1024", "0.1"}, causes: []string{"pool_limit"},
			sizes: func(a refused) map[string]uint64 {
				return map[string]uint64{
					"the request": a.Requested, "the bytes in use": a.InUse, "the limit": a.Limit, "the free bytes": a.Free,
				}
			}},
	}
)

const jaxPart = "XLA_PYTHON_CLIENT_MEM_FRACTION=.4"

func requested(a refused) map[string]uint64 { return map[string]uint64{"the request": a.Requested} }

// diagnosed is what gpumem doctor --json says.
type diagnosed struct {
	Verdict string
	Causes  []struct {
		ID       string
		Evidence []struct{ Reading string }
	}
	Dump *struct {
		Request     struct{ Bytes uint64 }
		Limit       uint64 `json:"limit_bytes"`
		Pool        uint64 `json:"pool_bytes"`
		InUse       uint64 `json:"in_use_bytes"`
		LargestFree uint64 `json:"largest_free_bytes"`
	}
}

// refusals lets each program be refused memory, all at once or one after the other, and shows the doctor
// what it wrote.
func refusals(f framework, together bool, all []refusal) func(*call) error {
	return func(c *call) error {
		var programs []*talker
		defer func() { c.stop(programs...) }()
		for _, r := range all {
			t, err := c.talk(r.name, r.env, nil, "fill", r.args...)
			if err != nil {
				return err
			}
			programs = append(programs, t)
		}
		idle, err := c.device()
		if err != nil {
			return err
		}
		for i, t := range programs {
			if err := c.ready(t, nil); err != nil {
				return err
			}
			if together || i == 0 {
				if err := t.tell(""); err != nil {
					return err
				}
			}
		}
		for i, t := range programs {
			if !together && i > 0 {
				if _, err := c.settle(idle); err != nil {
					return err
				}
				if err := t.tell(""); err != nil {
					return err
				}
			}
			var a refused
			if err := t.answer("refused", &a, c.atMost(30*time.Second)); err != nil {
				c.report(err)
				continue
			}
			e := c.end(t)
			c.ownError(f, t.name, a, e)
			if err := c.diagnose(all[i], a, e.stderr, i); err != nil {
				return err
			}
		}
		return nil
	}
}

// diagnose shows the doctor a log, and holds its answer against what the program knows.
func (c *call) diagnose(r refusal, a refused, text string, number int) error {
	path := filepath.Join(c.logFolder(), fmt.Sprintf("%s.stderr.%d.log", c.name, number+1))
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return err
	}
	var d diagnosed
	if err := c.gpumem(&d, nil, "doctor", "--json", path); err != nil {
		return err
	}
	c.compareDiagnosis(r, a, d)
	return nil
}

// compareDiagnosis compares what the doctor says with what the program knows.
func (c *call) compareDiagnosis(r refusal, a refused, d diagnosed) {
	if len(d.Causes) == 0 {
		c.fault("%s: the doctor's verdict is %s without a cause, want %s", r.name, d.Verdict, r.causes[0])
		return
	}
	var ids []string
	var readings []string
	for _, cause := range d.Causes {
		ids = append(ids, cause.ID)
		for _, e := range cause.Evidence {
			readings = append(readings, e.Reading)
		}
	}
	c.figure(r.name+": causes named", float64(len(ids)), "")
	if d.Verdict == "cause" && ids[0] != r.causes[0] || !containsAll(ids, r.causes) {
		c.fault("%s: the doctor's verdict is %s with %s, want %s", r.name, d.Verdict, strings.Join(ids, ", "), strings.Join(r.causes, ", "))
	}
	said := sizesIn(strings.Join(readings, "\n"))
	for name, want := range r.sizes(a) {
		c.figure(r.name+": "+name, float64(want), "bytes")
		if !slices.ContainsFunc(said, func(n float64) bool { return math.Abs(n-float64(want)) <= rounding(want) }) {
			c.fault("%s: the doctor does not name %s, %s; it reads %s", r.name, name, size.Format(want), strings.Join(readings, " / "))
		}
	}
	if d.Dump == nil && r.dumps {
		c.fault("%s: the doctor reads no dump of the pool", r.name)
	}
	if d.Dump != nil {
		for _, p := range []struct {
			name      string
			said, has uint64
			most      uint64 // by which they may differ
		}{
			{"request", d.Dump.Request.Bytes, a.Requested, 0},
			{"limit", d.Dump.Limit, a.Limit, 0},
			{"pool", d.Dump.Pool, a.Pool, 0},
			{"bytes in use", d.Dump.InUse, a.InUse, mib}, // small ones come and go
		} {
			if max(p.said, p.has)-min(p.said, p.has) > p.most {
				c.fault("%s: the doctor reads %d for the %s of the pool's dump, and the program has %d", r.name, p.said, p.name, p.has)
			}
		}
	}
}

// containsAll reports whether have has each of want.
func containsAll(have, want []string) bool {
	return !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(have, w) })
}

var sizeText = regexp.MustCompile(`\d+(?:\.\d+)? [KMGT]?i?B\b`)

// sizesIn are the sizes of a text, in bytes.
func sizesIn(text string) (all []float64) {
	for _, s := range sizeText.FindAllString(text, -1) {
		if n, err := parseSize(s); err == nil {
			all = append(all, n)
		}
	}
	return all
}

// rounding is how far a size with two decimals in the unit of n is from n at most.
func rounding(n uint64) float64 {
	unit := 1.0
	for float64(n) >= 1024*unit {
		unit *= 1024
	}
	return unit / 100
}
