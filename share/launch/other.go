//go:build !linux

package launch

import (
	"context"
	"errors"

	"gpumem/share"
)

// Leases are for Linux alone: nothing here is reached, since no lease can be taken.

// Inherited returns nil on this system.
func Inherited() map[int]bool { return nil }

func (p *Plan) become([]string, []holding) error { return errors.ErrUnsupported }

func (p *Plan) copies(context.Context, [][]string, [][]*share.Lease) (Outcome, error) {
	return Outcome{}, errors.ErrUnsupported
}

// Keeper is the process that stays beside a program. Here there is none.
type Keeper struct {
	Program string
	Meter   share.Meter
}

// NewKeeper fails on this system.
func NewKeeper([]string) (*Keeper, error) { return nil, errors.ErrUnsupported }

// Detach fails on this system.
func (k *Keeper) Detach() (bool, error) { return true, errors.ErrUnsupported }

// Run does nothing on this system.
func (k *Keeper) Run() {}

// Witness does nothing on this system.
func Witness() {}
