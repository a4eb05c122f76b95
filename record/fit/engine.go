// Engines that serve models.

package fit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"

	"gpumem/device/sim"
	"gpumem/record/internal/engine"
	"gpumem/record/trace"
)

// Engine is the answer about an engine that serves models.
type Engine = engine.Answer

// EngineFigures is what lies on a GPU of an engine.
type EngineFigures = engine.Figures

// EngineOther is what another setting or card gives an engine.
type EngineOther = engine.Other

// engineNotes returns what the processes of an engine on GPUs of a size have noted, each with what its
// recording has live at its end. The error is about the first note that cannot be read.
func (r *ran) engineNotes(on uint64) (list []*engine.Note, bad error) {
	paths, err := filepath.Glob(escaped(r.found) + ".*.engine")
	for _, path := range paths {
		pid := strings.TrimSuffix(strings.TrimPrefix(path, r.found+"."), ".engine")
		n, err := engine.Read(path)
		if err != nil {
			bad = cmp.Or(bad, fmt.Errorf("what process %s of the engine has noted: %w", pid, err))
			continue
		}
		if n == nil { // it was removed meanwhile
			continue
		}
		n.On = on
		for _, p := range r.processes {
			if fmt.Sprint(p.pid) == pid && p.trace != nil && !p.segments {
				n.Recorded = endLive(p.trace)
			}
		}
		list = append(list, n)
	}
	return list, cmp.Or(bad, err)
}

func endLive(t *trace.Trace) (sum uint64) {
	for _, pool := range t.Pools {
		sum += pool.EndLive
	}
	return sum
}

// answerEngine is the report about an engine that became ready on a GPU of p.RanOn.
func answerEngine(cfg Config, p program, r *ran, a *Engine) *Report {
	if p.RanOn == cfg.Sim.Total {
		a.Settings(cfg.Context)
	} else {
		a.Serves = false
	}
	a.OtherCards(cfg.Sim.Total, cfg.Sim.CCMajor, cfg.Sim.CCMinor)
	rep := bareReport(cfg, p, r.largestTrace())
	rep.Engine, rep.Fits, rep.AsItIs = a, a.Serves, a.Serves
	rep.Contents = []item{{"weights", a.Weights}, {"activations", a.Activations}, {"graphs", a.Graphs}, {"outside", a.Outside}, {"KV cache", a.Cache}}
	if a.Need > 0 {
		rep.SmallestDevice = &a.Need
	}
	rep.Differs = rep.Differences()
	if cfg.Record != "" {
		rep.NotKept = r.keep(cfg.Record)
	}
	return rep
}

// Named returns the name of the engine that a command starts, by its words and, of a Python
// program, by what it imports; "" if it is none that is known.
func Named(command []string) string { return engine.Named(command) }

// Serve returns the command that serves the model of a folder, whose config.json is enough,
// with an engine, by its name or path, and flags of it.
func Serve(program, folder string, flags []string) ([]string, error) {
	return engine.Serve(program, folder, flags)
}

// EngineContext is the memory that a process of an engine is taken to have on the card before it
// measures, in bytes: its CUDA context. In start-up logs of cards it is .4 to .5 GiB, and what the
// libraries take later is a part of the measurement.
const EngineContext = 512 << 20

// engineRefused is the report about an engine that was refused memory on a simulated GPU: its own reason,
// and the options that it chose for the card, which it is to have on a larger one, too.
func engineRefused(cfg Config, p program, why string, notes []*engine.Note, on uint64) *Report {
	p.RanOn, p.TooLarge = on, on == largest
	r := bareReport(cfg, p, nil)
	r.Engine, r.onAny = engine.RefusedAnswer(notes, why, on), engine.OnAnyCard(notes)
	r.chosen, r.ofCard = engine.Chosen(notes), engine.OfCard(notes)
	r.Differs = r.Differences()
	if cfg.Record != "" {
		r.NotKept = notServed(cfg.Record)
	}
	return r
}

// engineOptions returns the options that go before an engine's own, as JSON.
func (cfg *Config) engineOptions() string {
	text, _ := json.Marshal(chosen(cfg.options, nil)) // words alone
	return string(text)
}

// chosen returns options with those that go before them.
func chosen(options, before map[string]string) map[string]string {
	all := maps.Clone(options)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, before)
	return all
}

// SimCard is a card to run for.
type SimCard struct {
	Name    string
	Sim     sim.Config
	GPUs    int
	Context uint64
}

// RanCard is a run for a card.
type RanCard struct {
	Card   string  `json:"card"`
	Engine *Engine `json:"engine"`
	Error  string  `json:"error,omitempty"` // why there is no answer; then Engine is nil
}

// RunCards answers for several cards, for each by a run. The report is of the first on which the
// engine serves, or of the first that has an answer. The error is that of each card if none has.
func RunCards(ctx context.Context, cfg Config, cards []SimCard) (*Report, error) {
	if Named(cfg.Command) == "" {
		return nil, errors.New("several cards are for engines that serve models: a program is answered for one, with the smallest that it fits")
	}
	if cfg.Record != "" {
		return nil, errors.New("the recording is kept of a run for one card")
	}
	var best *Report
	var ran []RanCard
	var first error
	for _, c := range cards {
		one := cfg
		one.Sim, one.GPUs, one.Context = c.Sim, c.GPUs, c.Context
		r, err := Run(ctx, one)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, err
		case err == nil && r.Engine == nil:
			err = errors.New("no engine was seen to become ready, nor why it did not")
		}
		if err != nil {
			ran, first = append(ran, RanCard{Card: c.Name, Error: err.Error()}), cmp.Or(first, err)
			continue
		}
		ran = append(ran, RanCard{Card: c.Name, Engine: r.Engine})
		if best == nil || r.Fits && !best.Fits {
			best = r
		}
	}
	if best == nil {
		return nil, noCard(ran, first)
	}
	best.Ran = ran
	return best, nil
}

// noCard returns the error of cards that all failed, the first of them with first.
func noCard(ran []RanCard, first error) error {
	var alike []string
	more := ""
	for _, c := range ran {
		if c.Error == first.Error() {
			alike = append(alike, c.Card)
		} else {
			more += fmt.Sprintf("; for %s: %s", c.Card, c.Error)
		}
	}
	return fmt.Errorf("for %s: %w%s", strings.Join(alike, ", "), first, more)
}

// engineDifferences are the ways in which an engine's start differed from one on a card.
func engineDifferences(a *Engine) []string {
	list := []string{"Other is buffers of the engine, and what lies outside of PyTorch's pool: start-up logs of cards have .01 to .06 GiB of the latter on one GPU " +
		"and .2 to 1.4 GiB with several, of which the simulated GPU shows little."}
	if a.Captured > 0 {
		list = append(list, fmt.Sprintf("What the driver takes for %d graphs is not in the answer: start-up logs of cards have .1 to .3 MiB for each, those of vLLM 0.11 to 0.19 up to 1.3.", a.Captured))
	}
	if a.Activations == 0 {
		list = append(list, fmt.Sprintf("%s does not measure activations: those of captured graphs are in the graphs, and others come out of what is left.", a.Engine))
	}
	switch a.Compiled {
	case engine.Cold:
		list = append(list, "Measured with a cold compile cache, as in a first start, in which PyTorch also takes memory to time kernels.")
	case engine.Warm:
		list = append(list, "Measured with a warm compile cache: a first start, which compiles, measures larger activations.")
	}
	return append(list, "A request was not served: kernels did nothing.")
}
