package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestRunReturnsTheFirstErrorInOrder: whatever ends first, the error is that of the first job that fails, jobs
// before it are not stopped, and those after it are.
func TestRunReturnsTheFirstErrorInOrder(t *testing.T) {
	for _, tc := range []struct {
		name    string
		workers int
		fail    []int // of six jobs; each waits until all jobs that may run at once do
		want    int   // -1: no error
		ran     []int // jobs that began
		stopped []int // and that were told to end early
	}{
		{"one by one", 1, nil, -1, []int{0, 1, 2, 3, 4, 5}, nil},
		{"one by one, third fails", 1, []int{2, 4}, 2, []int{0, 1, 2}, nil},
		{"no workers are one", 0, []int{0}, 0, []int{0}, nil},
		{"all at once", 6, nil, -1, []int{0, 1, 2, 3, 4, 5}, nil},
		{"more workers than jobs, two fail", 9, []int{4, 1}, 1, []int{0, 1, 2, 3, 4, 5}, []int{2, 3, 4, 5}},
		{"the last fails", 6, []int{5}, 5, []int{0, 1, 2, 3, 4, 5}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var mu sync.Mutex
			var ran, stopped []int
			var together sync.WaitGroup
			if tc.workers >= 6 {
				together.Add(6)
			}
			err := Run(t.Context(), 6, tc.workers, func(ctx context.Context, i int) error {
				if tc.workers >= 6 {
					together.Done()
					together.Wait()
				}
				mu.Lock()
				ran = append(ran, i)
				mu.Unlock()
				if slices.Contains(tc.fail, i) {
					return fmt.Errorf("job %d", i)
				}
				if slices.Contains(tc.stopped, i) {
					<-ctx.Done()
					mu.Lock()
					stopped = append(stopped, i)
					mu.Unlock()
					return ctx.Err()
				}
				return ctx.Err()
			})
			slices.Sort(ran)
			slices.Sort(stopped)
			want := slices.DeleteFunc(slices.Clone(tc.stopped), func(i int) bool { return slices.Contains(tc.fail, i) })
			if !slices.Equal(ran, tc.ran) || !slices.Equal(stopped, want) {
				t.Errorf("ran %v, stopped %v; want %v and %v", ran, stopped, tc.ran, want)
			}
			if tc.want < 0 && err != nil || tc.want >= 0 && (err == nil || err.Error() != fmt.Sprint("job ", tc.want)) {
				t.Errorf("%v, want that of job %d", err, tc.want)
			}
		})
	}
}

// TestRunKeepsToTheWorkers: as many jobs run at once as there are workers. Time is the test's own.
func TestRunKeepsToTheWorkers(t *testing.T) {
	for workers := range 4 {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			running, most := 0, 0
			if err := Run(t.Context(), 8, workers, func(context.Context, int) error {
				mu.Lock()
				running++
				most = max(most, running)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				running--
				mu.Unlock()
				return nil
			}); err != nil {
				t.Error(err)
			}
			if want := max(1, workers); most != want {
				t.Errorf("%d jobs ran at once, want %d", most, want)
			}
		})
	}
}

// TestRunStopsWithTheContext: the end of the context ends all jobs.
func TestRunStopsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var once sync.Once
	err := Run(ctx, 5, 2, func(ctx context.Context, i int) error {
		once.Do(cancel)
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
