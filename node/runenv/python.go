// The releases of frameworks that a program may import, by the folders of its Python.
// Nothing is run.

package runenv

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const listSeparator = string(os.PathListSeparator)

// interpreter is a Python, such as python3.11.
var interpreter = regexp.MustCompile(`^python([0-9.]*)$`)

// versionsOf returns the versions of all packages of a name, such as "torch", in the
// folders that the command's Python searches. It is empty if the command is not a
// Python, or unknown.
func versionsOf(name string, command []string, get func(string) string) []string {
	python := pythonOf(command, get)
	if python == "" {
		return nil
	}
	var found []string
	for _, folder := range packageFolders(python, get) {
		names, _ := filepath.Glob(filepath.Join(escape(folder), name+"-*.dist-info"))
		for _, n := range names {
			v := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(n), name+"-"), ".dist-info")
			if !slices.Contains(found, v) {
				found = append(found, v)
			}
		}
	}
	return found
}

// escape returns a folder's name for Glob.
func escape(name string) string {
	return strings.NewReplacer(`[`, `\[`, `*`, `\*`, `?`, `\?`).Replace(name)
}

// pythonOf returns the Python that runs a command: the command itself, or the one that
// its first line names; else "".
func pythonOf(command []string, get func(string) string) string {
	if len(command) == 0 {
		return ""
	}
	program := lookPath(command[0], get)
	if first := shebang(program); len(first) > 0 {
		if filepath.Base(first[0]) == "env" {
			first = slices.DeleteFunc(first[1:], func(w string) bool { return strings.HasPrefix(w, "-") || strings.Contains(w, "=") })
		}
		if len(first) == 0 {
			return ""
		}
		program = lookPath(first[0], get)
	}
	real, err := filepath.EvalSymlinks(program)
	if err != nil || !interpreter.MatchString(filepath.Base(real)) {
		return ""
	}
	return program
}

// deafFlag returns the flag with which a command's Python ignores PYTHONPATH, or runs no
// sitecustomize; "" if there is none.
func deafFlag(command []string, get func(string) string) string {
	if pythonOf(command, get) == "" {
		return ""
	}
	for i := 1; i < len(command) && strings.HasPrefix(command[i], "-"); i++ {
		if strings.HasPrefix(command[i], "--") {
			continue
		}
		for j, letter := range command[i][1:] {
			switch letter {
			case 'E', 'I', 'S':
				return "-" + string(letter)
			case 'c', 'm': // the program's own words follow
				return ""
			case 'W', 'X': // whose value is the rest, or the next word
				if j+2 == len(command[i]) {
					i++
				}
			default:
				continue
			}
			break
		}
	}
	return ""
}

// lookPath finds a program as a shell does.
func lookPath(name string, get func(string) string) string {
	if strings.ContainsRune(name, filepath.Separator) {
		return name
	}
	for _, folder := range filepath.SplitList(get("PATH")) {
		path := filepath.Join(folder, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// shebang returns the words of a script's first line, without #!.
func shebang(path string) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	head, _ := io.ReadAll(io.LimitReader(f, 256)) // the kernel reads as much (BINPRM_BUF_SIZE)
	line, _, _ := bytes.Cut(head, []byte("\n"))
	if text, ok := strings.CutPrefix(string(line), "#!"); ok {
		return strings.Fields(text)
	}
	return nil
}

// packageFolders returns the folders in which a Python has packages: those of
// PYTHONPATH, the user's, and those of its prefix, or of its virtual environment.
func packageFolders(python string, get func(string) string) []string {
	folders := filepath.SplitList(get("PYTHONPATH"))
	real, err := filepath.EvalSymlinks(python)
	if err != nil {
		return folders
	}
	version := "python*"
	if v := interpreter.FindStringSubmatch(filepath.Base(real))[1]; strings.Contains(v, ".") {
		version = "python" + v
	}
	add := func(parts ...string) {
		names, _ := filepath.Glob(filepath.Join(parts...))
		folders = append(folders, names...)
	}
	prefix := filepath.Dir(filepath.Dir(python))
	cfg, err := os.ReadFile(filepath.Join(prefix, "pyvenv.cfg"))
	if err == nil {
		add(escape(prefix), "lib", version, "site-packages")
		if !systemPackages.Match(cfg) {
			return folders
		}
	}
	prefix = escape(filepath.Dir(filepath.Dir(real)))
	add(escape(get("HOME")), ".local", "lib", version, "site-packages")
	for _, packages := range []string{"site-packages", "dist-packages"} {
		add(prefix, "lib", version, packages)
		add(prefix, "local", "lib", version, packages)
	}
	add(prefix, "lib", "python3", "dist-packages") // Debian's
	return folders
}

var systemPackages = regexp.MustCompile(`(?mi)^\s*include-system-site-packages\s*=\s*true\s*$`)
