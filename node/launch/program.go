// The name under which a program's measurements are kept.

package launch

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Programs that run others, which is what a measurement is of: interpreters, of which those
// in valued have options with a value, and launchers.
var (
	isPython   = regexp.MustCompile(`^(python|pypy)[0-9.]*$`)
	isLauncher = regexp.MustCompile(`^(sh|bash|dash|zsh|ksh|fish|node|julia|perl|ruby|Rscript|lua[0-9.]*|luajit|torchrun|accelerate|deepspeed|` +
		`uv|uvx|poetry|pdm|pipenv|conda|mamba|pytest|jupyter|env|nice|ionice|nohup|time|timeout|stdbuf|numactl|taskset|mpirun|mpiexec|srun|xvfb-run|strace|gdb)$`)
	valued = []string{"-W", "-X", "--check-hash-based-pycs"} // of Python
)

// programName returns the name under which a command's measurements are kept: the program's
// path and, if it runs others, the script, module (-m) or code (-c) that it runs. Paths are
// made absolute from dir. It is "" for an interpreter that reads its program from standard
// input, which may be another one each time.
func programName(command []string, dir string) string {
	if len(command) == 0 {
		return ""
	}
	name := command[0]
	if path, err := lookPath(name); err == nil {
		name = path
	}
	name = absolute(name, dir)
	switch base := filepath.Base(name); {
	case isPython.MatchString(base):
		return joined(name, ofPython(command[1:], dir))
	case isLauncher.MatchString(base):
		return joined(name, ofLauncher(command[1:], dir))
	}
	return name
}

func joined(name, what string) string {
	if what == "" {
		return ""
	}
	return name + " " + what
}

// ofPython returns the script, module or code that a Python runs with these arguments.
func ofPython(args []string, dir string) string {
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case (a == "-m" || a == "-c") && i+1 == len(args), a == "-":
			return ""
		case a == "-m":
			return "-m " + args[i+1]
		case a == "-c":
			return "-c " + digest(args[i+1])
		case slices.Contains(valued, a):
			i++
		case !strings.HasPrefix(a, "-"):
			return absolute(a, dir)
		}
	}
	return ""
}

// ofLauncher returns the first file among the arguments that is no program to be found in PATH,
// or a module; else all of the arguments, shortened.
func ofLauncher(args []string, dir string) string {
	for i, a := range args {
		if a == "-m" && i+1 < len(args) {
			return "-m " + args[i+1]
		}
		if strings.HasPrefix(a, "-") {
			continue
		}
		path := absolute(a, dir)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && !isPython.MatchString(filepath.Base(path)) {
			return path
		}
	}
	if len(args) == 0 {
		return ""
	}
	return digest(strings.Join(args, "\x00"))
}

// digest stands for a text of any length.
func digest(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:12] }

func absolute(path, dir string) string {
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	return filepath.Clean(path)
}
