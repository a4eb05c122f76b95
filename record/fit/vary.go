// The largest value of an argument with which a program fits.

package fit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
)

// Vary is an argument or an environment variable of the program, and values to try.
type Vary struct {
	Name   string   // without dashes
	Values []string // from the one with the least memory to the one with the most
}

// ParseVary reads NAME=VALUE,VALUE...
func ParseVary(s string) (Vary, error) {
	name, values, ok := strings.Cut(s, "=")
	v := Vary{strings.TrimLeft(name, "-"), strings.Split(values, ",")}
	switch {
	case !ok || v.Name == "":
		return Vary{}, fmt.Errorf("%q: want NAME=VALUE,VALUE..., such as batch=8,16,32", s)
	case slices.Contains(v.Values, ""):
		return Vary{}, fmt.Errorf("%q: a value is empty", s)
	}
	for i, x := range v.Values {
		if slices.Contains(v.Values[:i], x) {
			return Vary{}, fmt.Errorf("%q: %s is given twice", s, x)
		}
	}
	return v, nil
}

// In returns the command and the environment with a value in the place of the one that is
// there: of --NAME VALUE, --NAME=VALUE and NAME=VALUE among the arguments, with one dash or
// two, each time that it is given; else of the variable NAME.
func (v Vary) In(command, env []string, value string) (newCommand, newEnv []string, err error) {
	newCommand, newEnv = slices.Clone(command), slices.Clone(env)
	found := false
	for i := 1; i < len(newCommand); i++ {
		name, _, ok := strings.Cut(newCommand[i], "=")
		option := strings.TrimLeft(name, "-")
		switch {
		case option != v.Name || len(name)-len(option) > 2:
		case ok:
			newCommand[i], found = name+"="+value, true
		case name != option && i+1 < len(newCommand) && !strings.HasPrefix(newCommand[i+1], "--"):
			newCommand[i+1], found = value, true
		}
	}
	for i, line := range newEnv {
		if name, _, _ := strings.Cut(line, "="); name == v.Name && !found {
			newEnv[i] = name + "=" + value
			return newCommand, newEnv, nil
		}
	}
	if !found {
		return nil, nil, fmt.Errorf("the command has no argument %s with a value, and the environment no variable of that name", v.Name)
	}
	return newCommand, newEnv, nil
}

// Varied is the answer to a Vary. More memory with each value is assumed, so that not all
// are tried.
type Varied struct {
	Name    string       `json:"name"`
	Largest *string      `json:"largest"` // the last value that fits; nil if none does
	Tried   []TriedValue `json:"tried"`   // in the order of the values
	// Unordered reports that a value takes less than one before it, so that the search may
	// have missed the largest.
	Unordered bool `json:"unordered,omitempty"`
}

// TriedValue is a run with one value.
type TriedValue struct {
	Value string `json:"value"`
	outcome
	Engine *Engine `json:"engine,omitempty"`
}

// RunVary answers for the largest of the values with which the program fits, or for the
// first if none does, see Report.Varied. Each value that is tried is compiled and run; of an
// engine all are, and one that the command has no argument for is given to the engine itself.
func RunVary(ctx context.Context, cfg Config, v Vary) (*Report, error) {
	if cfg.Smallest || cfg.Record != "" {
		return nil, errors.New("values are varied for one card, without a recording")
	}
	var failed error
	isEngine := Named(cfg.Command) != ""
	reports := make([]*Report, len(v.Values))
	fits := func(i int) bool {
		if failed != nil {
			return false
		}
		one := cfg
		if one.Command, one.Env, failed = v.In(cfg.Command, cfg.Env, v.Values[i]); failed != nil {
			if !isEngine {
				return false
			}
			// Command and Env are unchanged.
			one.Command, one.Env, failed = cfg.Command, cfg.Env, nil
			one.options = map[string]string{strings.ReplaceAll(v.Name, "-", "_"): v.Values[i]}
		}
		if reports[i], failed = Run(ctx, one); failed != nil {
			failed = fmt.Errorf("with %s=%s: %w", v.Name, v.Values[i], failed)
			return false
		}
		return reports[i].Fits
	}
	largest := -1
	if isEngine { // each value has its own answer
		for i := range v.Values {
			if fits(i) {
				largest = i
			}
		}
	} else {
		largest = sort.Search(len(v.Values), func(i int) bool { return !fits(i) }) - 1
	}
	if failed != nil {
		return nil, failed
	}
	answer := &Varied{Name: v.Name}
	for i, r := range reports {
		if r == nil {
			continue
		}
		if n := len(answer.Tried); n > 0 && answer.Tried[n-1].Peak > r.PeakBytes && r.Engine == nil {
			answer.Unordered = true
		}
		answer.Tried = append(answer.Tried, TriedValue{v.Values[i], r.outcome(), r.Engine})
	}
	if largest >= 0 {
		answer.Largest = &v.Values[largest]
	}
	report := reports[max(0, largest)]
	report.Varied, report.Largest = answer, answer.Largest
	return report, nil
}
