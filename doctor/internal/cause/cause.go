// Package cause has the reasons why memory ran out: what speaks for each, how much that weighs, and
// what to do about it.
//
// Nearly every cause has a file, and looks at the account on its own. The numbers of one message and
// an engine's own check are read once for all causes, in message.go and engine.go. What is found is
// an [Explanation] with a rank; the doctor takes the highest. A rank says how one comes to know:
//
//	900s  somebody who knows says so: the limiter, the kernel, the driver, the program
//	800s  the kind of refusal leaves no other: NCCL's buffers, a graph, a module
//	700s  an engine's own check
//	600s  the numbers of one message, beyond what rounding can hide
//	500s  a context, a start, a whole pool
//	400s  a pool's report, or the compiler's
//	300s  a library that failed, by what is around it
//	200s  a refusal and nothing more
//	100s  a warning
//
// Within a hundred the order is that of the evidence: what is told before what is computed, a
// named holder before an unnamed rest. An explanation is sure, or it only fits.
package cause

import (
	"cmp"
	"slices"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

// Explanation is one cause that fits a log, with what speaks for it.
type Explanation struct {
	Cause    string
	Rank     int
	Sure     bool
	Argument string // what found it, in a few words
	Evidence []statement.Evidence
	Certain  []string // what is sure in any case
	Needs    []Need   // facts that would decide, where it is not sure
	Decide   Command  // would tell it from the others
	Verdict  string   // instead of what Sure implies
	Alone    bool     // what fits beside it is about something else
	Only     bool     // it counts only where nothing above it is sure
	Beside   bool     // it competes with what is sure, though it only fits
	Remedy   Remedy
}

// found are the explanations of one finder.
type found = []Explanation

// A finder is a cause's file.
type finder struct {
	id   string
	find func(*view) found
}

// Explain returns what fits a log, the most telling first.
func Explain(e *account.Case) []Explanation {
	c := newView(e)
	all := c.weighed()
	c.repeatAdvice(all)
	c.fitTools(all)
	return all
}

// weighed are the explanations that count.
func (c *view) weighed() (all []Explanation) {
	all = slices.Concat(own(c), c.message, c.fromEngine(), c.fromPlan())
	for _, f := range finders {
		for _, x := range f.find(c) {
			x.Cause = f.id
			all = append(all, x)
		}
	}
	if c.FreeCard().Bytes > 0 { // nobody else was there
		all = slices.DeleteFunc(all, func(x Explanation) bool { return x.Cause == "device_occupied" && !x.Sure })
	}
	if c.OnlyBytes() {
		all = slices.DeleteFunc(all, func(x Explanation) bool { return x.Rank < 300 })
	}
	slices.SortStableFunc(all, func(a, b Explanation) int { return cmp.Compare(b.Rank, a.Rank) })
	if len(all) > 0 && all[0].Rank >= 300 { // what is known of a refusal goes before what it alone may mean
		all = slices.DeleteFunc(all, func(x Explanation) bool { return x.Rank < 300 })
	}
	sure := slices.IndexFunc(all, func(x Explanation) bool { return x.Sure })
	if sure < 0 {
		return all
	}
	top := all[sure].Rank
	return slices.DeleteFunc(all, func(x Explanation) bool { return x.Rank < top && (x.Only || !x.Sure && !x.Beside) })
}

// finders are the causes. The order counts where ranks are equal.
var finders = []finder{
	{"bad_setting", badSetting}, {"vmm_unsupported", vmmUnsupported}, {"device_busy", deviceBusy}, {"limiter_bug", limiterBug},
	{"external_quota", externalQuota},
	{"unified_memory", unifiedMemory}, {"host_memory", hostMemory}, {"leak", leak}, {"nccl_headroom", ncclHeadroom},
	{"cuda_graph_headroom", graphHeadroom},
	{"no_headroom_module_load", moduleLoad}, {"startup_race", startupRace}, {"estimator_underestimates", underestimate},
	{"remat_insufficient", rematShort},
	{"jax_plus_tf", jaxAndTensorFlow}, {"same_process_second_pool", secondPool}, {"multi_process_preallocation", multiProcess},
	{"prealloc_starves_library", starvedLibrary},
	{"fragmentation", fragmentation}, {"program_too_big", tooBig}, {"pool_limit", poolLimit}, {"device_occupied", occupied},
	{"library_mismatch", libraryMismatch}, {"not_memory", notMemory}, {"nonfatal_warning", warning},
}

// sure is an explanation that the evidence shows.
func sure(rank int, argument string, remedy Remedy, lines ...statement.Evidence) Explanation {
	return Explanation{Rank: rank, Sure: true, Argument: argument, Remedy: remedy, Evidence: lines}
}

// fits is an explanation that others compete with.
func fits(rank int, argument string, remedy Remedy, decide Command, lines ...statement.Evidence) Explanation {
	return Explanation{Rank: rank, Argument: argument, Remedy: remedy, Decide: decide, Evidence: lines}
}

// and adds lines that speak for it, too.
func (x Explanation) and(more ...statement.Evidence) Explanation {
	x.Evidence = slices.Concat(x.Evidence, more)
	return x
}

// of makes it one of a cause.
func (x Explanation) of(cause string) Explanation {
	x.Cause = cause
	return x
}

// needs adds the facts that would decide.
func (x Explanation) needs(n ...Need) Explanation {
	x.Needs = append(x.Needs, n...)
	return x
}

// certainly adds what is sure in any case.
func (x Explanation) certainly(said ...string) Explanation {
	x.Certain = append(x.Certain, said...)
	return x
}

// only makes it count where nothing above it is sure.
func (x Explanation) only() Explanation {
	x.Only = true
	return x
}

// beside keeps it where another is sure.
func (x Explanation) beside() Explanation {
	x.Beside = true
	return x
}

// A view is a case, and what several causes ask of it.
type view struct {
	*account.Case
	vendor string // of the GPU, as far as the log shows
	total  account.Sized
	others []account.Holder
	told   bool // the processes are listed
	seen   bool // and there are some: a list without anybody was taken when the program was gone
	held   uint64
	fatal  bool // memory of the GPU was refused, and that was no warning
	bare   *account.Refusal

	message found // what the numbers of one message leave
}

func newView(e *account.Case) *view {
	c := &view{Case: e, vendor: e.Vendor(), total: e.Total(), fatal: e.Fatal()}
	c.others, c.told = e.Others()
	c.held, c.seen = account.HeldBy(c.others), e.AnyHolder()
	c.bare = c.bareRefusal()
	c.message = c.fromMessage()
	return c
}

// othersLines are the lines that name the other processes.
func (c *view) othersLines() []statement.Evidence { return account.Readings(c.others) }

// totalLine is the line that says how much memory the GPU has, if one does.
func (c *view) totalLine() []statement.Evidence {
	if c.total.Bytes == 0 {
		return nil
	}
	return []statement.Evidence{c.total.From}
}

// lines joins evidence.
func lines(all ...[]statement.Evidence) []statement.Evidence { return slices.Concat(all...) }

// one is evidence of one line.
func one(st *statement.Statement, reading string) []statement.Evidence {
	if st == nil {
		return nil
	}
	return []statement.Evidence{st.Quoted(reading)}
}

// quote is a line with what it shows, as [account.Say] has it.
func quote(st *statement.Statement, format string, args ...any) statement.Evidence {
	return st.Quoted(account.Say(format, args...))
}

// with is a line with what it shows.
func with(s account.Sized, format string, args ...any) statement.Evidence {
	from := s.From
	from.Reading = account.Say(format, args...)
	return from
}

// about is the line of a topic with what it shows.
func (c *view) about(topic, reading string) []statement.Evidence { return one(c.About(topic), reading) }
