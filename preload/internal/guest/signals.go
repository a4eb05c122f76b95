//go:build libgpumem && linux && (amd64 || arm64)

package guest

// sigtable is the runtime's table of signals. The linker wants -checklinkname=0 for it,
// so this file is part of the libraries alone.
func sigtable() *[65]sigTabT

// sigTabT is the runtime's.
type sigTabT struct {
	flags int32
	name  string
}

const (
	sigUnblock       = 128 // the runtime's _SigUnblock
	sigchld, sigprof = 17, 27
)

func init() {
	t := sigtable()
	t[sigchld].flags &^= sigUnblock
	t[sigprof].flags &^= sigUnblock
	settle() // with these masks
}
