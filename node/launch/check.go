package launch

// What is wrong with a plan, in the words of the flags of gpumem run.

import (
	"errors"
	"fmt"
	"time"
)

// most is the most copies, and the most processes of each.
const most = 1024

// Check returns an error for a plan with a number out of range or a word that means nothing, before
// a lease is taken. It writes Limits.Remat in the form of [RematLimit].
func (p *Plan) Check() (err error) {
	hasPool := p.Pool != "" && p.Pool != NoPool
	switch {
	case hasPool && p.Limits.Allocator != "":
		return fmt.Errorf("--pool %s and --allocator %s both say what serves JAX's memory; give one of them", p.Pool, p.Limits.Allocator)
	case p.Limits.Procs < 1 || p.Limits.Procs > most:
		return fmt.Errorf("--procs %d: want a number from 1 to %d", p.Limits.Procs, most)
	case p.Copies < 1 || p.Copies > most:
		return fmt.Errorf("--copies %d: want a number from 1 to %d", p.Copies, most)
	case p.LendPinned && !p.byTurns():
		return errors.New("--lend-pinned is about memory that --lend or --turns moves; give one of them, too")
	}

	if hasPool {
		if err := CheckPool(p.Pool); err != nil {
			return fmt.Errorf("--pool: %w", err)
		}
	}
	if p.Limits.Remat != "" {
		if p.Limits.Remat, err = RematLimit(p.Limits.Remat); err != nil {
			return fmt.Errorf("--remat: %w", err)
		}
	}
	return nil
}

// SetBytes sets the size of the lease.
func (p *Plan) SetBytes(n uint64) error {
	if n == 0 {
		return errors.New("--mem 0 leaves nothing to run in; give a size such as 6GiB")
	}
	p.Bytes = n
	return nil
}

// SetShare sets the fraction of what can be shared.
func (p *Plan) SetShare(fraction float64) error {
	if !(fraction > 0 && fraction <= 1) {
		return fmt.Errorf("--share %v: want a number above 0 and at most 1, such as .5 for half", fraction)
	}
	p.Share = fraction
	return nil
}

// Forever is the word of [Plan.SetWait] for a wait without a limit.
const Forever = "forever"

// SetWait sets how long to wait: a duration such as 10m, or Forever.
func (p *Plan) SetWait(word string) (err error) {
	p.Wait = -1
	if word == Forever {
		return nil
	}
	if p.Wait, err = time.ParseDuration(word); err != nil || p.Wait <= 0 {
		return fmt.Errorf("--wait %q: want a duration such as --wait 10m, or --wait alone for as long as it takes", word)
	}
	return nil
}
