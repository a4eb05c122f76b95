//go:build libgpumem

package callsite

import (
	"errors"
	"io"
	"time"
)

// Use is what the live blocks of one site come to.
type Use struct {
	Site   uint32
	Blocks int
	Bytes  uint64 // of whole blocks
}

// WriteProfile returns an error: the pool library has no profiles.
func (*Table) WriteProfile(io.Writer, time.Time, string, []Use) error {
	return errors.New("profile: not in the pool library")
}
