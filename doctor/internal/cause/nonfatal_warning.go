package cause

// nonfatal_warning: a warning; the program can go on.

import (
	"fmt"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

// harmless are texts that warn, by their topic.
var harmless = []struct{ topic, reading string }{
	{"collection", "the pool releases free regions to ask for a larger one; it goes on"},
	{"ignored", "a setting that this platform, or this release, does without; the program goes on"},
	{"exceeds", "a large request for host memory, which was served"},
	{"recovering",
		"a program that ended has not released its memory yet; the server waits, and goes on with what is free"},
	{"workingset", "more is allocated than Metal recommends for the GPU; the program goes on, and may be slow"},
	{"reshard", `a slow way from one sharding to another; "rematerialization" here is not about memory that is short`},
}

var nothingToDo = steps("nothing has to be done; if the program did fail, its failure is another line: give the doctor the whole log")

func warning(c *view) (all []Explanation) {
	add := func(x Explanation) {
		x.Verdict = "nonfatal"
		if e := c.LastError; e != nil && e.Weight() == 3 && e.Line > x.Evidence[0].Line {
			x = x.certainly(fmt.Sprintf("the last failure in the log is line %d: %s", e.Line, statement.Clip(e.Quote())))
		}
		all = append(all, x.only())
	}
	if r := c.hostRefusal(); r != nil && r.St.Words["warning"] && r.St.Words["pinned"] {
		if first, _, gpu := c.hostFirst(r); !first && gpu == nil {
			add(sure(945, "without pinned memory", nothingToDo,
				r.St.Quoted("without pinned memory the program goes on, with slower copies")))
		}
	}
	if c.fatal || c.Library != nil || c.Last(func(r *account.Refusal) bool { return !r.Mild }) != nil {
		return all
	}
	for i, h := range harmless {
		if l := c.about(h.topic, h.reading); l != nil {
			add(sure(150-i, "a warning", nothingToDo, l...))
			return all
		}
	}
	r := c.Last(func(r *account.Refusal) bool { return r.Mild })
	switch {
	case r == nil:
	case r.St.Topic("picker") != nil || c.About("picker") != nil || r.St.HasAny("tactic", "tactics"):
		add(sure(140, "a warning", nothingToDo,
			r.St.Quoted("an algorithm that was tried did not fit; another is taken")))
	case r.WentOn != nil:
		add(sure(140, "a warning", nothingToDo,
			r.St.Quoted("memory was refused here"),
			r.WentOn.Quoted("and the program went on after it")))
	case r.St.Again:
		add(sure(140, "a warning", nothingToDo,
			r.St.Quoted("the program says that it tries again, or with something else")))
	default:
		add(sure(140, "a warning", nothingToDo,
			r.St.Quoted("the caller can do without this memory, and says so: it may be slower, and goes on")))
	}
	return all
}
