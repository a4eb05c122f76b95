// The name under which a program's measurements are kept.

package launch

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Programs that run others, which is what a measurement is of: interpreters, launchers, and
// those launchers that run any program.
var (
	isPython   = regexp.MustCompile(`^(python|pypy)[0-9.]*$`)
	isShell    = regexp.MustCompile(`^(sh|bash|dash|zsh|ksh|fish)$`)
	isLauncher = regexp.MustCompile(`^(node|julia|perl|ruby|Rscript|lua[0-9.]*|luajit|torchrun|accelerate|deepspeed|` +
		`uv|uvx|poetry|pdm|pipenv|conda|mamba|pytest|jupyter)$`)
	isWrapper = regexp.MustCompile(`^(env|nice|ionice|nohup|time|timeout|stdbuf|numactl|taskset|mpirun|mpiexec|srun|xvfb-run|strace|gdb)$`)
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
	base, args := filepath.Base(name), command[1:]
	if what, ok := ofInterpreter(base, args, dir); ok {
		return joined(name, what)
	}
	wraps := isWrapper.MatchString(base)
	if wraps || isLauncher.MatchString(base) {
		return joined(name, ofLauncher(args, dir, wraps))
	}
	return name
}

func joined(name, what string) string {
	if what == "" {
		return ""
	}
	return name + " " + what
}

// ofInterpreter returns what an interpreter runs with these arguments, see [ofPython] and
// [ofShell]; ok is false if the name is that of none.
func ofInterpreter(name string, args []string, dir string) (what string, ok bool) {
	switch {
	case isPython.MatchString(name):
		return ofPython(args, dir), true
	case isShell.MatchString(name):
		return ofShell(args, dir), true
	}
	return "", false
}

// ofPython returns the script, module or code that a Python runs with these arguments. Its
// options may stand together, and so may the last of them with its value: -um pkg, -mpkg.
func ofPython(args []string, dir string) string {
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "--":
			return firstScript(args[i+1:], dir)
		case a == "-" || !strings.HasPrefix(a, "-"):
			return firstScript(args[i:], dir)
		case a == "--check-hash-based-pycs":
			i++
		case strings.HasPrefix(a, "--"):
		default:
			at := strings.IndexAny(a, "cmWX")
			if at < 0 {
				continue
			}
			value := a[at+1:]
			if value == "" {
				if i++; i == len(args) {
					return ""
				}
				value = args[i]
			}
			switch a[at] {
			case 'm':
				return "-m " + value
			case 'c':
				return "-c " + digest(value)
			}
		}
	}
	return ""
}

// ofShell returns the script that a shell runs with these arguments, or the code with its own
// arguments (-c), which mostly say what it runs.
func ofShell(args []string, dir string) string {
	isCode := false
	for i := 0; i < len(args); i++ {
		a := args[i]
		isOption := a != "-" && a != "--" && (strings.HasPrefix(a, "-") || strings.HasPrefix(a, "+"))
		switch {
		case a == "--rcfile" || a == "--init-file":
			i++
		case strings.HasPrefix(a, "--") && isOption:
		case isOption:
			isCode = isCode || a[0] == '-' && strings.Contains(a, "c")
			if !isCode && strings.Contains(a, "s") {
				return "" // it reads its program from standard input
			}
			i += strings.Count(a, "o") + strings.Count(a, "O") // each has a value
		default:
			if a == "-" || a == "--" {
				i++
			}
			rest := args[min(i, len(args)):]
			if isCode && len(rest) > 0 {
				return "-c " + digest(strings.Join(rest, "\x00"))
			}
			return firstScript(rest, dir)
		}
	}
	return ""
}

// firstScript returns the path of the first argument, which a shell also looks up in PATH; ""
// if there is none, or if it is a stream, such as standard input: that has another program each
// time.
func firstScript(args []string, dir string) string {
	if len(args) == 0 || args[0] == "-" {
		return ""
	}
	path := absolute(args[0], dir)
	for _, streams := range []string{"/dev/stdin", "/dev/fd/", "/proc/self/fd/"} {
		if strings.HasPrefix(path, streams) {
			return ""
		}
	}
	if _, err := os.Stat(path); err != nil && !strings.Contains(args[0], "/") {
		if found, err := lookPath(args[0]); err == nil {
			return absolute(found, dir)
		}
	}
	return path
}

// ofLauncher returns what the first interpreter among the arguments runs, the first file that
// is there, or a module; for a wrapper also the first program to be found in PATH. Else it is
// all of the arguments, shortened.
func ofLauncher(args []string, dir string, wraps bool) string {
	program := ""
	for i, a := range args {
		if a == "-m" && i+1 < len(args) {
			return "-m " + args[i+1]
		}
		if strings.HasPrefix(a, "-") {
			continue
		}
		if what, ok := ofInterpreter(filepath.Base(a), args[i+1:], dir); ok {
			return what
		}
		path := absolute(a, dir)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path
		}
		if wraps && program == "" && !isWrapper.MatchString(filepath.Base(a)) {
			if found, err := lookPath(a); err == nil {
				program = absolute(found, dir)
			}
		}
	}
	switch {
	case program != "":
		return program
	case len(args) == 0:
		return ""
	}
	return "(arguments " + digest(strings.Join(args, "\x00")) + ")"
}

// digest stands for a text of any length.
func digest(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:12] }

func absolute(path, dir string) string {
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	return filepath.Clean(path)
}
