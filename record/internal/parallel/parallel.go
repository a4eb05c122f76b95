// Package parallel runs replays at once, with the errors of replays one by one.
package parallel

import (
	"context"
	"sync"
)

// Run runs n jobs, at most so many at once, and begins them in their order. If one fails,
// those after it are stopped, and those before it go on: the error is that of the first
// job in the order that fails, as if they ran one by one.
func Run(ctx context.Context, n, workers int, job func(ctx context.Context, i int) error) error {
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
