package replay

// Several policies at once, and how far all of them are.

import (
	"context"
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

// atOnce runs n jobs, at most so many at once, and begins them in their order. If one fails,
// those after it are stopped, and those before it go on: the error is that of the first
// job in the order that fails, as if they ran one by one.
func atOnce(ctx context.Context, n, workers int, job func(ctx context.Context, i int) error) error {
	var all sync.WaitGroup
	var mu sync.Mutex // guards the rest
	next, failed := 0, n
	var first error
	stops := make([]context.CancelFunc, n)
	for range min(max(1, workers), n) {
		all.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				if i >= failed || i >= n {
					mu.Unlock()
					return
				}
				own, stop := context.WithCancel(ctx)
				stops[i] = stop
				mu.Unlock()
				err := job(own, i)
				stop()
				mu.Lock()
				if err != nil && i < failed {
					failed, first = i, err
					for _, stop := range stops[i+1:] {
						if stop != nil {
							stop()
						}
					}
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return first
}
