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
	sigstkflt        = 16 // no processor's fault any more
	sigrtmin         = 34 // musl's own, but the program's with glibc, which the libraries need
)

func init() {
	t := sigtable()
	for _, s := range []int{sigstkflt, sigchld, sigprof, sigrtmin} { // but not 32 and 33, which are glibc's own
		t[s].flags &^= sigUnblock
	}
	settle() // with these masks
}
