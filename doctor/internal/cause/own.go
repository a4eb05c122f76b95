package cause

// What gpumem itself prints, which needs no account: a report has its answer, and a refusal of
// gpumem run its numbers and its way out.

import (
	"strings"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

// An answer is what a line of gpumem means. It is by the topic's name, see topics.txt.
type answer struct {
	cause, argument, reading string
	rank                     int
	steps                    []string
}

// Ranks of our lines: an answer goes before what the same line may mean otherwise. The hook's
// last line follows the framework's error, whose numbers say more. A note counts where nothing
// else is told.
const (
	rankAnswer = 966
	rankPart   = 641
	rankNote   = 130
)

const runReports = "gpumem fit or gpumem advise"

// answers are those to our lines.
var answers = map[string]answer{
	"leak": {"leak", "gpumem leaks", "gpumem leaks found what grows", rankAnswer,
		[]string{"look at the places that gpumem leaks names: what is appended, cached or kept there from step to step",
			"gpumem leaks RECORDING again after the change: No leak is its answer then"}},
	"fits": {"program_too_big", runReports, "it does not fit as it is; it does with what is named", rankAnswer,
		[]string{"gpumem explain shows whether a setting reaches the program"}},
	"unfit": {"program_too_big", runReports, "no setting makes it fit", rankAnswer,
		[]string{"make it smaller: a smaller batch; gpumem fit --vary NAME=V,V... -- COMMAND finds the largest that fits"}},
	"unsaved": {"remat_insufficient", "gpumem remat", "no plan of recomputing goes below the limit", rankAnswer,
		[]string{"shard the program, or make its batch smaller; the report's lower bound says what recomputing can reach at most"}},
	"never": {"program_too_big", "gpumem run", "more is requested than the GPU can share with anybody", rankAnswer,
		[]string{"ask for less: a smaller --mem, or a smaller --reserve",
			"gpumem run --record FILE -- COMMAND; gpumem replay FILE --smallest says how much it needs"}},
	"taken": {"device_occupied", "gpumem run",
		"the program was not started: others hold the memory, or wait for it before this one",
		rankAnswer,
		[]string{"wait for room: gpumem run --wait -- COMMAND",
			"or ask for at most what the line says is available, or end one of these programs; gpumem ps shows them"}},
	"inside": {"external_quota", "gpumem run",
		"the program was not started: the lease around it has no more",
		rankAnswer,
		[]string{"ask for at most what the line says, take a larger lease outside, or start it outside of that lease"}},
	"room": {"device_occupied", "gpumem run", "the program was not started: the GPU has not so much free", rankAnswer,
		[]string{"wait for room: gpumem run --wait -- COMMAND; gpumem ps shows who has the GPU"}},
	"full": {"external_quota", "the lease of gpumem run",
		"the lease has no room for one process more: its context and libraries",
		rankAnswer,
		[]string{"take a larger --mem; gpumem ps shows what each process of the lease holds",
			"or start fewer processes in it"}},
	"part": {"external_quota", "the lease of gpumem run",
		"the program's memory is limited to its lease, and the GPU may have more",
		rankPart,
		[]string{"give it more: gpumem run --mem SIZE -- COMMAND, or let it take less: a smaller batch",
			"to see what it needs: gpumem run --record FILE -- COMMAND; gpumem replay FILE --smallest"}},
	"pod": {"external_quota", "a lease that is gone", "without its lease the program gets no memory", rankAnswer,
		[]string{"end the program or its pod, and start it again; the line says where to look"}},
	"number": {"bad_setting",
		"a setting of the pool library",
		"the pool library was started with a setting that it cannot read",
		rankAnswer,
		[]string{"leave the variable out: gpumem run sets it"}},
	"driver": {"library_mismatch", "the pool library",
		"the pool library could not be loaded, or found no driver; no amount of memory helps",
		rankAnswer,
		[]string{"repair what the line names, or run without the library: gpumem run --pool off -- COMMAND"}},
	"ipc": {"not_memory", "the pool library", "memory of the pool cannot be shared between processes", rankAnswer,
		[]string{"gpumem run --pool off -- COMMAND"}},
	"waits": {"nonfatal_warning", "gpumem run",
		"gpumem run waits, and starts the program when there is room",
		rankNote,
		[]string{"wait, or see who has the GPU: gpumem ps"}},
	"beside": {"nonfatal_warning", "gpumem run",
		"a note: the program took memory that its lease does not have",
		rankNote,
		[]string{"take a larger --mem, or a larger --overhead, so that others are not refused"}},
	"figures": {"nonfatal_warning", "gpumem run", "the figures of a run that ended", rankNote, nil},
}

// own explains the last line of gpumem that has an answer, unless memory was refused behind it.
func own(c *view) found {
	st := c.ownLine()
	if st == nil {
		return nil
	}
	t := st.Topic("own")
	a := answers[t.Name]
	remedy := steps(a.steps...)
	if t.Name == "fits" || t.Name == "unfit" {
		remedy = c.reported(st).step(a.steps...)
	}
	x := sure(a.rank, a.argument, remedy, st.Quoted(a.reading))
	switch x.Cause = a.cause; {
	case a.cause == "not_memory":
		x.Verdict = a.cause
	case a.rank == rankNote:
		x.Verdict = "nonfatal"
		x = x.only()
	}
	x.Alone = a.rank == rankAnswer
	return found{x}
}

// reported is what a report advises below its answer: the settings that make it fit, and the
// smallest card.
func (c *view) reported(st *statement.Statement) (r Remedy) {
	var set []string
	card := ""
	for _, s := range c.Statements() {
		switch t := s.Topic("own"); {
		case t == nil || s.Line < st.Line:
		case t.Name == "set" && card == "":
			set = append(set, t.Value)
		case t.Name == "card" && card == "":
			card = t.Value
		}
	}
	switch {
	case len(set) > 0:
		r = r.step("run it with what the report advises: " + strings.Join(set, " "))
	case st.Topic("own").Name == "fits":
		r = r.step(`run it with what the report names behind "It fits with"`)
	}
	return r.step(when(card != "", "another card would do: the smallest that is enough, says the report, has "+card))
}

// ownLine is the last line of ours with an answer; a note only where nothing failed.
func (c *view) ownLine() *statement.Statement {
	last := c.Last(func(r *account.Refusal) bool { return !r.Mild })
	all := c.Statements()
	for i := len(all) - 1; i >= 0; i-- {
		st := all[i]
		t := st.Topic("own")
		switch {
		case t == nil || answers[t.Name].cause == "":
		case last != nil && last.St.Line > st.Line, answers[t.Name].rank == rankNote && (c.fatal || c.Library != nil):
		default:
			return st
		}
	}
	return nil
}
