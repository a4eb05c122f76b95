//go:build !linux

package launch

import (
	"context"
	"errors"

	"gpumem/node/share"
)

// Leases are for Linux alone: nothing here is reached, since no lease can be taken.

func inherited() map[int]bool { return nil }

func (p *Plan) become([]string, []holding) error { return errors.ErrUnsupported }

func (p *Plan) copies(context.Context, [][]string, [][]*share.Lease) ([]int, error) {
	return nil, errors.ErrUnsupported
}

// Keep fails on this system.
func Keep(string, []string) error { return errors.ErrUnsupported }
