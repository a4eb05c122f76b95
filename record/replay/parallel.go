package replay

// Several policies at once, and how far all of them are.

import (
	"slices"
	"strings"
	"sync"
)

// Progress is how far a replay is.
type Progress struct {
	Doing string  // the policies that run, or what else is being done
	Part  float64 // of that, from 0 to 1; of a single pass if Total is 0
	// Done and Total are events, over all passes of all policies. Total is 0 where it
	// is not known how many passes there will be, as in the search for a device.
	Done, Total uint64
}

// Step returns a function that reports the progress of what is no replay; nil without
// Config.Progress.
func (c *Config) Step(doing string) func(part float64) {
	if c.Progress == nil {
		return nil
	}
	return func(part float64) { c.Progress(Progress{Doing: doing, Part: part}) }
}

// meter adds up the events of all passes. Its methods may be called at once.
type meter struct {
	mu     sync.Mutex // guards the rest, and is held while report is called
	report func(Progress)
	now    Progress
	jobs   []running
}

// running is the current pass of a job.
type running struct {
	doing       string // "" if there is none
	done, whole uint64 // events
}

func newMeter(report func(Progress), jobs int, total uint64) *meter {
	return &meter{report: report, now: Progress{Total: total}, jobs: make([]running, jobs)}
}

// pass ends a job's pass and begins one of that many events. It returns the new one's
// callback, nil if nothing is reported.
func (m *meter) pass(job int, doing string, events uint64) func(part float64) {
	if m.report == nil {
		return nil
	}
	m.begin(job, running{doing: doing, whole: events})
	return func(part float64) {
		m.mu.Lock()
		defer m.mu.Unlock()
		r := &m.jobs[job]
		done := uint64(part * float64(events))
		m.now.Done += done - r.done
		r.done = done
		var names []string
		for _, r := range m.jobs {
			if r.doing != "" && !slices.Contains(names, r.doing) { // on several pools
				names = append(names, r.doing)
			}
		}
		m.now.Doing, m.now.Part = strings.Join(names, ", "), part
		if m.now.Total > 0 {
			m.now.Part = float64(m.now.Done) / float64(m.now.Total)
		}
		m.report(m.now)
	}
}

// begin ends a job's pass, if there is one, and begins another.
func (m *meter) begin(job int, r running) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Done += m.jobs[job].whole - m.jobs[job].done
	m.jobs[job] = r
}
