//go:build linux

package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gpumem/internal/hostmem"
	"gpumem/node/ledger"
)

// Memory that leaves the GPU and comes back, by the program turns of preload/testdata: its contents, a graph
// whose nodes have addresses in it, what is free meanwhile, and what it costs by size.

// swapSizes are how much leaves and comes back, in MiB.
func (c *call) swapSizes() []int {
	if c.simulated { // its copies take the host's time
		return []int{8, 32, 96}
	}
	return []int{256, 1 << 10, 4 << 10}
}

const (
	swapRounds = 3    // of each size
	besideSwap = 2048 // MiB of a lease for what does not leave, and what is small
)

// swaps checks memory of each size.
func swaps(c *call) error {
	for _, size := range c.swapSizes() {
		room, err := hostmem.Free()
		if err != nil {
			return err
		}
		if lease := uint64(size+besideSwap) * mib; room.Bytes < lease {
			c.note("%d MiB do not leave: %s has room for %s", size, room.By, quantity(float64(room.Bytes), "bytes"))
			continue
		}
		if err := c.swap(size); err != nil {
			return fmt.Errorf("%d MiB: %w", size, err)
		}
	}
	return nil
}

// swap starts a program, and has its memory leave and return some times.
func (c *call) swap(size int) error {
	args := []string{c.command(), "run", "--mem", fmt.Sprintf("%dMiB", size+besideSwap), "--pool", "elastic", "--lend", "24h", "--",
		filepath.Join(c.root, "c/turns"), "graph", fmt.Sprint(size)}
	if !c.simulated { // whose kernels and graphs do nothing
		args = append(args, "computes")
	}
	r, err := c.begin(process{args: args, env: []string{"GPUMEM_REPORT=0"}, talks: true, answers: "ok "})
	if err != nil {
		return err
	}
	h := &holder{program: r}
	defer c.drop(h)
	line, err := r.answer(c.atMost(30 * time.Second))
	if err != nil {
		return err
	}
	path := strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:])
	l, err := ledger.Open(path)
	if err != nil {
		return err
	}
	defer l.Close()
	var all []swapped
	for range swapRounds {
		one, err := c.swapOnce(h, l)
		if err != nil {
			return err
		}
		all = append(all, one)
	}
	c.compareSwaps(size, all)
	return c.release(h)
}

// swapped is one way out and in.
type swapped struct {
	out, in time.Duration
	freed   float64 // bytes of the GPU
}

// swapOnce has the memory leave and return, and the program check what it has.
func (c *call) swapOnce(h *holder, l *ledger.Ledger) (s swapped, err error) {
	before, err := c.device()
	if err != nil {
		return s, err
	}
	if s.out, err = c.move(l, ledger.Pause, ledger.Away); err != nil {
		return s, err
	}
	during, err := c.device()
	if err != nil {
		return s, err
	}
	s.freed = -during.takenSince(before)
	if s.in, err = c.move(l, ledger.Resume, ledger.In); err != nil {
		return s, err
	}
	if _, err := h.in.Write([]byte("\n")); err != nil {
		return s, err
	}
	_, err = h.answer(c.atMost(30 * time.Second))
	return s, err
}

// compareSwaps keeps the medians, and finds fault with memory that left and is not free.
func (c *call) compareSwaps(size int, all []swapped) {
	var out, in []float64
	bytes := float64(size) * mib
	for _, s := range all {
		out, in = append(out, s.out.Seconds()*1e6), append(in, s.in.Seconds()*1e6)
		if s.freed < bytes {
			c.fault("%d MiB left the GPU, and %s are free that were not", size, quantity(s.freed, "bytes"))
		}
	}
	slices.Sort(out)
	slices.Sort(in)
	c.figure(fmt.Sprintf("swap.out.%d", size), out[len(out)/2], "us")
	c.figure(fmt.Sprintf("swap.in.%d", size), in[len(in)/2], "us")
}

// move asks the program by hand, and returns how long it takes until its memory is where it is to be.
func (c *call) move(l *ledger.Ledger, what ledger.Ask, want ledger.State) (time.Duration, error) {
	all := l.Turns()
	if len(all) != 1 {
		return 0, fmt.Errorf("%d processes are in the ledger, want 1", len(all))
	}
	begun := time.Now()
	if err := l.Ask(all[0], what); err != nil {
		return 0, err
	}
	for limit := c.atMost(time.Minute); ; time.Sleep(time.Millisecond) {
		all := l.Turns()
		took := time.Since(begun)
		switch {
		case len(all) != 1:
			return 0, errors.New("the program has ended")
		case all[0].State == want:
			return took, nil
		case all[0].Reason != ledger.NoReason:
			return 0, fmt.Errorf("the memory stays on the GPU: %v", all[0].Reason)
		case took > limit:
			return 0, unanswered{fmt.Errorf("the memory is %v after %v, want %v", all[0].State, limit, want)}
		}
	}
}
