//go:build !linux

package privdir

import (
	"errors"
	"fmt"
)

// Open fails on this system: the check is written for Linux, as leases are.
func Open(path string) (*Dir, error) {
	return nil, fmt.Errorf("%s: private folders need Linux: %w", path, errors.ErrUnsupported)
}
