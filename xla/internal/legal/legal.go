// Package legal checks that a planner's module computes what the given one did.
//
// A planner recomputes values, moves them, marks them, or lets them wait in the host's memory.
// [Options.Check] reports the first way in which the planned module is not such a change of the given
// one. It shares no code with the planners, nor with the analyses that they rely on: it
// imports hlo and xla/internal/verify only, so that a fault there is found here.
//
// Four questions are asked, each in a file:
//
//   - number.go: what does each instruction compute? Both modules are numbered by value, so
//     that an instruction and its clone have one number. Each instruction of the planned module
//     needs a number that its computation had before, and the results need the same one.
//   - compare.go: how often, and in which order? What has an effect runs exactly as often and
//     in the same order, here and in all that is called; loops and collectives not more often.
//     Control dependencies, channels and the owners of fused computations are kept.
//   - stacks.go: where the state of loops changed, is what leaves it computed again?
//   - overwrite.go: is the value still there when it is read? Both schedules are run on memory
//     in which values that must share a buffer do, such as a donated parameter and the result
//     that takes its place. A reader must find what was written for it, as no copies are
//     inserted after scheduling.
package legal

import (
	"fmt"
	"slices"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/verify"
)

// Options are what a plan may do beyond recomputing what is repeatable. The zero value is the
// strictest.
type Options struct {
	// Collectives allows collectives and random bits made from a state to run more often, and
	// collectives in another order. All devices must then run the same plan. XLA's pass
	// does so.
	Collectives bool
	// Loops allows loops, conditionals and custom calls without side effect to run more
	// often, as jax.checkpoint does.
	Loops bool
}

// An Error is the first way in which a change is not legal.
type Error struct {
	// Instruction is where it is in the planned module; nil if it is in the module as a whole.
	Instruction *hlo.Instruction
	Problem     string
}

// Error returns one line, such as "not legal: add.3 in main: " and the problem. A line of the
// text would be one of the planned module, which may not be written.
func (e *Error) Error() string {
	if e.Instruction == nil {
		return "not legal: " + e.Problem
	}
	return "not legal: " + e.Instruction.Name + " in " + e.Instruction.Parent.Name + ": " + e.Problem
}

func refuse(i *hlo.Instruction, format string, a ...any) error {
	return &Error{i, fmt.Sprintf(format, a...)}
}

// Check reports the first way in which after is no legal change of before by recomputing,
// moving or marking values, or by moving them to the host. before must have passed
// xla/internal/verify; after is verified first. Faults that before has are not held against after: text
// written by hand may rely on copies that XLA inserts. The error is an [*Error] or a
// [*verify.Error]. Neither module is changed. It takes time linear in both, but for tuples of
// tuples.
func (o Options) Check(before, after *hlo.Module) error {
	if err := verify.Module(after); err != nil {
		return err
	}
	if err := sameHeader(before, after); err != nil {
		return err
	}

	loops, err := changedLoops(before, after, false)
	if err == nil {
		err = o.checkWith(before, after, loops)
	}
	if err != nil {
		if loops, all := changedLoops(before, after, true); all == nil && len(loops) > 0 && o.checkWith(before, after, loops) == nil {
			return nil
		}
	}
	return err
}

// checkWith is Check with the loops whose state changed.
func (o Options) checkWith(before, after *hlo.Module, loops []*changedLoop) error {
	var was, is map[*hlo.Instruction]*loopSide
	if len(loops) > 0 {
		was, is = map[*hlo.Instruction]*loopSide{}, map[*hlo.Instruction]*loopSide{}
		for _, k := range loops {
			was[k.before.w], is[k.after.w] = &k.before, &k.after
		}
	}

	t := newTable()
	c := &comparison{o: o, t: t, loops: loops, paired: map[*hlo.Computation]*hlo.Computation{}}
	c.before, c.after = t.numberModule(before, was), t.numberModule(after, is)
	if err := c.compareModules(); err != nil {
		return err
	}
	if !after.Scheduled {
		return nil // XLA inserts copies when it schedules
	}
	return findOverwrites(c.before, c.after)
}

// sameHeader compares what modules have beside their computations.
func sameHeader(before, after *hlo.Module) error {
	if before.Name != after.Name {
		return refuse(nil, "module %s was %s", after.Name, before.Name)
	}
	if before.Scheduled != after.Scheduled {
		return refuse(nil, "is_scheduled was %t and is %t", before.Scheduled, after.Scheduled)
	}
	if !slices.EqualFunc(before.Aliases, after.Aliases, func(a, b hlo.Alias) bool {
		return slices.Equal(a.Output, b.Output) && a.Parameter == b.Parameter && slices.Equal(a.Index, b.Index) && a.Must == b.Must
	}) {
		return refuse(nil, "input_output_alias differs")
	}

	old := map[string]string{}
	for _, a := range before.Attributes {
		old[a.Key] = a.Value
	}

	for _, a := range after.Attributes {
		if v, ok := old[a.Key]; !ok || v != a.Value {
			return refuse(nil, "the module's attribute %s differs", a.Key)
		}
		delete(old, a.Key)
	}

	for key := range old {
		return refuse(nil, "the module's attribute %s is missing", key)
	}
	return nil
}
