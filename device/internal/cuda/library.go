//go:build linux && (amd64 || arm64) && !nodriver

// A shared library's functions by number: where dlsym found them, and how they
// are called. The only file, with call.go, that knows of purego.

package cuda

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
)

// function is an entry point of a library.
type function struct {
	symbol string // as dlsym knows it
	since  int    // the CUDA version that brought it, such as 11020 for 11.2; 0: old
	as     string // its name in errors, where that is not the symbol's
	// ordered: it goes into a stream, in order with the work there, and so is
	// legal while other threads capture graphs.
	ordered bool
}

// name is the function's name in errors: as manuals call it, without the
// version of its interface. Copies and fills for the host have the name of the
// call that waits, as on every device.
func (f function) name() string {
	if f.as != "" {
		return f.as
	}
	if i := strings.LastIndex(f.symbol, "_v"); i > 0 {
		return f.symbol[:i]
	}
	return f.symbol
}

// library is a loaded library. It does not change once loaded.
type library struct {
	functions []function
	at        []uintptr // by number; 0 where the library lacks the function
}

// missing is the result of a call to a function that the library lacks. No
// CUresult and no nvmlReturn is negative.
const missing = -1

// lookup finds a symbol of a library.
type lookup func(symbol string) (uintptr, error)

// open loads the first library that can be loaded, with its symbols kept to
// itself, and never unloads it: the driver's own threads run in it.
func open(names ...string) (lookup, error) {
	// The reason of a failure is kept for the thread that met it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var first error
	for _, name := range names {
		lib, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
		if err == nil {
			return func(symbol string) (uintptr, error) { return purego.Dlsym(lib, symbol) }, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// bind looks all functions up. Those that are missing are reported by the calls
// that want them.
func bind(functions []function, find lookup) *library {
	l := &library{functions: functions, at: make([]uintptr, len(functions))}
	for i, f := range functions {
		if at, err := find(f.symbol); err == nil {
			l.at[i] = at
		}
	}
	return l
}

// has reports whether the library has all functions from first to last.
func (l *library) has(first, last int) bool {
	for _, at := range l.at[first : last+1] {
		if at == 0 {
			return false
		}
	}
	return true
}

// ask calls function f and returns its result, or missing. For the calls that
// are made seldom: it allocates. What the arguments point to is kept alive and
// in its place by the directive.
//
//go:uintptrescapes
func (l *library) ask(f int, args ...uintptr) int32 {
	if l.at[f] == 0 {
		return missing
	}
	r, _, _ := purego.SyscallN(l.at[f], args...)
	return int32(r)
}

// version is a CUDA version as people write it.
func version(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

// text is the C string in b, which may lack its end.
func text(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

// textAt is the C string whose address the library wrote to *p; at most 256
// bytes of it.
func textAt(p *uintptr) string {
	s := *(**[256]byte)(unsafe.Pointer(p))
	if s == nil {
		return ""
	}
	n := 0
	for n < len(s) && s[n] != 0 {
		n++
	}
	return string(s[:n])
}
