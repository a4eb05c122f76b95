//go:build linux && (amd64 || arm64)

// Package guest makes Go's runtime a quiet guest in the process of a C program that does
// not know of it, where it came with a library.
//
// While a C thread runs Go, it runs on a goroutine's stack of a few KiB, with other
// memory of Go below. A signal handler that the program installed without SA_ONSTACK
// runs there, too, and would overwrite that memory. Go says that such handlers are
// wrong; but a library that programs do not know of cannot ask them to be right. So each
// thread calls [Grow] first.
//
// And Go unblocks some signals in each of its threads, whatever mask they inherit. A
// handler of the program would run there on a small stack, and a SIGCHLD that the program
// waits for with sigwait or a signalfd would be taken and ignored. Threads that begin
// after this package's initialization leave these (SIGCHLD, SIGPROF, SIGSTKFLT, SIGRTMIN)
// blocked if they inherit them so. The C library's own signals (glibc: 32 and 33) are open
// in each thread: it waits until all have taken them.
//
// And Go's runtime has descriptors, without which it ends the program. poller.txt takes them
// away when a library is built. It ends it, too, where a thread is refused: in a process that
// may have few it makes all of them at its start (threads.go), and limits.h asks before whether
// it may begin.
package guest

// Grow makes the stack of the calling goroutine at least 256 KiB. The memory is not
// touched before it is used. It stays as large only with GODEBUG=gcshrinkstackoff=1.
func Grow()
