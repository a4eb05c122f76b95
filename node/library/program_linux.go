package library

import (
	"os"
	"slices"
	"strings"
	"syscall"
)

// capable reports whether a program gets capabilities by its file, see capabilities(7).
func capable(path string) bool {
	n, err := syscall.Getxattr(path, "security.capability", nil)
	return err == nil && n > 0
}

// Leave starts this program again without the library, with the same process number, if
// it was started in a lease that has it: what it reports of a GPU and of leases is the
// driver's own. It returns if there is nothing to do, or if that fails.
func Leave() {
	folder, search := os.Getenv(EnvFolder), foldersOf(os.Getenv(EnvSearch))
	if folder == "" || !slices.Contains(search, folder) {
		return
	}
	exe, err := os.Executable()
	if err != nil {
		return
	}
	rest := slices.DeleteFunc(search, func(f string) bool { return f == folder })
	env := slices.DeleteFunc(os.Environ(), func(line string) bool { return strings.HasPrefix(line, EnvSearch+"=") })
	if len(rest) > 0 {
		env = append(env, EnvSearch+"="+strings.Join(rest, ":"))
	}
	_ = syscall.Exec(exe, os.Args, env)
}
