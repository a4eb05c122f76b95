// UUIDs of simulated GPUs.

package open

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
)

// UUID identifies a GPU, as cuDeviceGetUuid reports it.
type UUID [16]byte

// String returns the UUID as NVIDIA's tools write it: GPU- and 32 hexadecimal digits in
// five groups.
func (u UUID) String() string {
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// UUID returns the UUID of a simulated GPU, ordinal its number in the file of a shared one
// and else 0. Every process computes the same for the same device: that of a shared one
// follows from the absolute path of its file, symbolic links as they are, and so a
// container sees the host's UUID if it has the file at the host's path.
func (s Spec) UUID(ordinal int) (id UUID) {
	name := s.Text
	if s.Kind == Shared {
		name = s.File
		if abs, err := filepath.Abs(name); err == nil {
			name = abs
		}
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", name, ordinal))
	copy(id[:], sum[:])
	return id
}
