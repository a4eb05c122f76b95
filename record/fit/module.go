package fit

// Files instead of programs: a compiled module, or a recording.
//
// A module is made into a recording of one run of it: its arguments, its results but those
// that lie in arguments, and the temporaries, for which XLA makes one request. Constants
// lie outside of the pool.

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gpumem/internal/input"
	"gpumem/record/advise"
	"gpumem/record/formats"
	"gpumem/record/trace"
	"gpumem/xla/measure"
)

// mostParts is how many of what fills the peak are listed.
const mostParts = 10

// FileReport is the answer about a file. Its JSON is that of gpumem advise, with what is
// known of the peak.
type FileReport struct {
	*advise.Report
	Summary
	Module *Module `json:"module,omitempty"` // nil for a recording
	// Peak is what fills the peak, the largest first.
	Peak []Place `json:"peak"`
	// Refused is the module's request that is the first to be refused with JAX's
	// defaults; nil if none is.
	Refused *Place `json:"first_refused,omitempty"`
}

// Module is what a compiled module takes, in bytes.
type Module struct {
	Name string `json:"name"`
	// Scheduled reports whether the module is as it runs. Otherwise the temporaries are
	// an estimate: XLA has not fused and ordered it yet.
	Scheduled bool `json:"scheduled"`
	measure.Totals
}

// Place is blocks that one place allocated.
type Place struct {
	What   string `json:"what"`
	Where  string `json:"where,omitempty"` // the operation and the line of the program
	Bytes  uint64 `json:"bytes"`
	Blocks uint64 `json:"blocks"`
}

// IsFile reports whether a word names a file to answer about, and no program: one that
// cannot be run, or that is a module or a recording, or - for standard input.
func IsFile(word string) bool {
	if word == "-" {
		return true
	}
	st, err := os.Stat(word)
	if err != nil || !st.Mode().IsRegular() {
		return err == nil && !st.IsDir() && st.Mode()&0o111 == 0
	}
	return st.Mode()&0o111 == 0 || isAnswerable(word)
}

// isAnswerable reports whether a file begins as a module or as a recording does.
func isAnswerable(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, 4<<10)
	n, _ := io.ReadFull(f, head)
	head = head[:n]
	return !bytes.HasPrefix(head, []byte("#!")) && (isRecording(head) || measure.Looks(head))
}

// isRecording reports whether content begins as a recording does.
func isRecording(head []byte) bool {
	return len(head) > 0 && !measure.LooksNamed(head) && formats.All().Recognise(head) != ""
}

// File answers about a module of XLA or a recording, by its content; of the configuration
// the card, Context, As and Progress count. Errors are those of measure.Read, of trace.Formats.Open
// or of advise.Run.
func File(ctx context.Context, path string, cfg Config) (*FileReport, error) {
	if cfg.GPUs > 1 {
		return nil, fmt.Errorf("%s is of one GPU: leave *%d out", path, cfg.GPUs)
	}
	in, err := input.Open(ctx, path, input.Options{Kind: "a module or a recording", Progress: func(done, total int64) {
		if cfg.Progress != nil && total > 0 {
			cfg.Progress("reading", float64(done)/float64(total))
		}
	}})
	if err != nil {
		return nil, err
	}
	defer in.Close()
	head, err := in.Head()
	if err != nil {
		return nil, err
	}
	known := isRecording(head)
	switch {
	case strings.HasSuffix(path, ".py") && !known:
		return nil, pythonProgram(path)
	case filepath.Base(path) == modelConfig && !known:
		return nil, ofModel(path, filepath.Dir(path))
	case bytes.HasPrefix(bytes.TrimSpace(head), []byte("module @")):
		return nil, in.Fail("is StableHLO, which XLA has not compiled; jitted.lower(...).compile().as_text() is a module, " +
			"and XLA_FLAGS=--xla_dump_to=DIR writes them")
	case known || !measure.Looks(head):
		t, err := formats.All().ReadFrom(in, trace.Options{})
		if err != nil {
			return nil, err
		}
		defer t.Close()
		return recording(ctx, t, cfg)
	}
	program, err := measure.Read(ctx, in)
	if err != nil {
		return nil, err
	}
	report, err := module(ctx, program, in.Name(), cfg)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", in.Name(), err)
	}
	return report, nil
}

// module answers about a program, which is changed if it is not scheduled.
func module(ctx context.Context, program *measure.Program, name string, cfg Config) (*FileReport, error) {
	fact := &Module{Name: program.Module.Name, Scheduled: program.Module.Scheduled}
	var largest []measure.LiveValue
	err := until(ctx, func() (err error) {
		fact.Totals, largest, err = program.Measure(mostParts)
		return err
	})
	if err != nil {
		return nil, err
	}
	list := requests(program, fact.Temporaries)
	t, err := played(ctx, list, name)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	asked := advise.Config{Sim: cfg.Sim, Context: cfg.Context, Constants: fact.Constants, As: cmp.Or(cfg.As, "jax"), Progress: cfg.Progress}
	report, err := advise.Run(ctx, t, asked)
	if err != nil {
		return nil, err
	}
	report.Trace.Format = "hlo"
	answer := &FileReport{Report: report, Module: fact, Peak: []Place{}}
	for _, v := range largest {
		where := named(v.OpName)
		if v.Source != "" {
			where += " " + v.Source
		}
		answer.Peak = append(answer.Peak, Place{v.Instruction + " " + v.Shape, where, v.Bytes, 1})
	}
	if n := report.Candidates[0].FirstRefused; n != nil && *n <= uint64(len(list)) {
		answer.Refused = &list[*n-1]
	}
	answer.Summary = answer.summarize()
	return answer, nil
}

// until calls f, which knows no context, and returns early with the cause when ctx ends. Then f
// goes on by itself, and nothing that it makes is looked at.
func until(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// requests returns those of one run of a module, in XLA's order.
func requests(program *measure.Program, temporaries uint64) (list []Place) {
	for _, p := range program.Arguments() {
		list = append(list, Place{What: "the argument " + cmp.Or(named(p.OpName), p.Instruction), Bytes: p.Bytes, Blocks: 1})
	}
	arguments := len(list)
	for _, p := range program.Results() {
		if p.InPlace {
			continue
		}
		what := "the result"
		for _, i := range p.Index {
			what += " " + strconv.Itoa(i)
		}
		list = append(list, Place{What: what, Bytes: p.Bytes, Blocks: 1})
	}
	slices.SortStableFunc(list[arguments:], func(a, b Place) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return append(list, Place{What: "the temporaries, in one block", Bytes: temporaries, Blocks: 1})
}

// named returns an operation's name without the escapes that it has in a module.
func named(op string) string { return strings.ReplaceAll(op, `\'`, "'") }

// played is the recording of requests.
func played(ctx context.Context, list []Place, name string) (*trace.Trace, error) {
	var file bytes.Buffer
	w, err := trace.NewWriter(&file)
	for i, p := range list {
		err = errors.Join(err, w.Alloc(trace.Call{ID: uint64(i), Bytes: p.Bytes, Site: p.What}))
	}
	if err = errors.Join(err, w.Flush()); err != nil {
		return nil, err
	}
	return formats.Read(ctx, &file, name, trace.Options{})
}

// recording answers about a recording.
func recording(ctx context.Context, t *trace.Trace, cfg Config) (*FileReport, error) {
	report, err := advise.Run(ctx, t, advise.Config{Sim: cfg.Sim, Context: cfg.Context, As: cfg.As, Progress: cfg.Progress})
	if err != nil {
		return nil, err
	}
	peak, err := lines(ctx, t, largestPool(t, report).Name)
	if err != nil {
		return nil, err
	}
	answer := &FileReport{Report: report, Peak: peak}
	answer.Summary = answer.summarize()
	return answer, nil
}

// largestPool returns the pool of a GPU with the highest peak.
func largestPool(t *trace.Trace, r *advise.Report) (pool *trace.Pool) {
	for _, p := range t.Pools {
		out := slices.ContainsFunc(r.LeftOut, func(l advise.LeftOut) bool { return l.Pool == p.Name })
		if !out && (pool == nil || p.PeakLive > pool.PeakLive) {
			pool = p
		}
	}
	return pool // there is one, or advise has refused the recording
}
