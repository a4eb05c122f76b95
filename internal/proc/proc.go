// Package proc looks at another process from outside: who it is, the environment
// that it was started with, and the frameworks that it has loaded. It only reads
// what Linux shows under /proc; on other systems every call is an error.
//
// The process runs on meanwhile, and may end at any moment. Then a call is an
// error; it never returns a part.
//
// Every error is one line that names the process.
package proc

import "fmt"

// A Framework is one that a process has loaded.
type Framework struct {
	Name    string `json:"name"`    // "jax", "tensorflow", "pytorch" or "cupy"
	Version string `json:"version"` // of its Python package, such as "0.4.30" or "2.3.0+cu121"; empty if unknown
	Path    string `json:"path"`    // of one of its libraries, as the process sees it
}

// Environ returns the lines NAME=value that a process was started with. What it
// set itself later is not among them. A process that has written over them, as
// some do to change what ps shows, is an error.
func Environ(pid int) ([]string, error) { return environ(pid) }

// Frameworks returns the frameworks that a process has loaded, in the order of
// [Framework.Name]'s comment. It knows them by the libraries in their Python
// packages, and their versions by the packages' metadata beside them. Where a
// library's file is gone since it was loaded, as after an upgrade, the version
// is unknown.
func Frameworks(pid int) ([]Framework, error) { return frameworks(pid) }

// A Library is a file of code that a process has loaded.
type Library struct {
	Path    string // as the process sees it, without symbolic links
	Deleted bool   // something else may lie there by now
	Copies  int    // in the process's memory
}

// Loaded returns the libraries that a process has loaded and whose file names begin with
// prefix, by their places in its memory.
func Loaded(pid int, prefix string) ([]Library, error) { return loaded(pid, prefix) }

func check(pid int) error {
	if pid <= 0 {
		return fmt.Errorf("%d is not the number of a process; want one above 0", pid)
	}
	return nil
}
