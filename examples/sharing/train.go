// The work of the program: blocks of different sizes, as training allocates and
// frees them.

package main

import (
	"context"
	"time"

	"gpumem"
)

const (
	layers   = 12
	stepTime = 10 * time.Millisecond // that the GPU computes on a step
)

// blocks are the sizes of what a training holds at its peak. They are multiples
// of the pool's unit of 256 bytes and add up to at most need, and nearly that.
type blocks struct {
	weights     uint64         // as long as it runs
	activations [layers]uint64 // from their layer's turn to the end of the step, each larger than the one before
	scratch     uint64         // while a layer computes
}

func divide(need uint64) blocks {
	const unit = 256
	b := blocks{weights: need / 4 &^ (unit - 1), scratch: need / 8 &^ (unit - 1)}
	rest := need - b.weights - b.scratch
	const shares = layers * (layers + 1) / 2
	for i := range b.activations {
		b.activations[i] = rest / shares * uint64(i+1) &^ (unit - 1)
	}
	return b
}

// train does steps for a while, at least one. An error is the pool's.
func train(pool *gpumem.Pool, need uint64, works time.Duration) error {
	end := time.Now().Add(works)
	sizes := divide(need)
	weights, err := pool.Alloc(context.Background(), sizes.weights)
	if err != nil {
		return err
	}
	for {
		left := time.Until(end)
		if err := step(pool, sizes, min(stepTime, left)); err != nil {
			return err
		}
		if left <= stepTime {
			return pool.Free(weights)
		}
	}
}

// step is one forward and one backward pass.
func step(pool *gpumem.Pool, sizes blocks, computes time.Duration) error {
	var live [layers]gpumem.Block
	for i, n := range sizes.activations {
		var err error
		if live[i], err = pool.Alloc(context.Background(), n); err != nil {
			return err
		}
		scratch, err := pool.Alloc(context.Background(), sizes.scratch)
		if err != nil {
			return err
		}
		if err := pool.Free(scratch); err != nil {
			return err
		}
	}
	time.Sleep(computes)
	for i := range live {
		if err := pool.Free(live[layers-1-i]); err != nil {
			return err
		}
	}
	return nil
}
