// A program's environment, and the notes that a framework's reading of it
// leaves.

package policy

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// An Environment is the variables of a program.
type Environment struct {
	names  []string // in the order given, each once
	values map[string]string
	// root and dir are the directories that absolute and relative file names
	// begin from; empty: this program's.
	root, dir string
	// noPages reports that the device has no virtual memory management.
	noPages bool
}

// Environ makes an Environment of lines NAME=value, as [os.Environ] or
// /proc/PID/environ have them. Of a name that comes twice the first counts, as
// in C and in Python. A line without a name and = is left out.
func Environ(lines []string) Environment {
	e := Environment{values: make(map[string]string, len(lines))}
	for _, line := range lines {
		name, value, ok := strings.Cut(line, "=")
		if _, twice := e.values[name]; !ok || name == "" || twice {
			continue
		}
		e.names = append(e.names, name)
		e.values[name] = value
	}
	return e
}

// Lookup is the value of a variable, and whether it is set at all.
func (e Environment) Lookup(name string) (value string, ok bool) {
	value, ok = e.values[name]
	return value, ok
}

// Get is the value of a variable; empty if it is not set.
func (e Environment) Get(name string) string { return e.values[name] }

// In returns e with the files that its values name looked for where another
// program finds them: absolute names below root, relative ones below dir.
func (e Environment) In(root, dir string) Environment {
	e.root, e.dir = root, dir
	return e
}

// OnGPU returns e without the variables that choose JAX's platform, for a program
// that is to use the GPU whatever they say.
func (e Environment) OnGPU() Environment { return e.without(platformsVar).without(platformVar) }

// maxFlagFile is the most that is read of a file, in bytes.
const maxFlagFile = 1 << 20

// readFile reads a file that a value names. It does not wait for one that is no
// regular file, and refuses one of more than maxFlagFile bytes.
func (e Environment) readFile(name string) (string, error) {
	if filepath.IsAbs(name) {
		name = filepath.Join(e.root, name)
	} else {
		name = filepath.Join(e.dir, name)
	}
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", &fs.PathError{Op: "read", Path: name, Err: errors.New("not a regular file")}
	}
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFlagFile+1))
	if err == nil && len(b) > maxFlagFile {
		err = &fs.PathError{Op: "read", Path: name, Err: errors.New("larger than 1 MiB")}
	}
	return string(b), err
}

// renew is e with other variables.
func (e Environment) renew(lines []string) Environment {
	other := Environ(lines)
	other.root, other.dir, other.noPages = e.root, e.dir, e.noPages
	return other
}

// with is e with one variable set.
func (e Environment) with(name, value string) Environment {
	lines := []string{name + "=" + value}
	for _, n := range e.names {
		lines = append(lines, n+"="+e.values[n])
	}
	return e.renew(lines)
}

// without is e less one variable.
func (e Environment) without(name string) Environment {
	var lines []string
	for _, n := range e.names {
		if n != name {
			lines = append(lines, n+"="+e.values[n])
		}
	}
	return e.renew(lines)
}

// apply is e after a repair: words NAME=value and -NAME.
func (e Environment) apply(fix string) Environment {
	for word := range strings.FieldsSeq(fix) {
		if name, ok := strings.CutPrefix(word, "-"); ok {
			e = e.without(name)
			continue
		}
		name, value, _ := strings.Cut(word, "=")
		e = e.without(name).with(name, value)
	}
	return e
}

// assign is the repair NAME=value, or none where the value has blanks, which a
// repair cannot hold, or is empty.
func assign(name, value string) string {
	value = strings.TrimSpace(value)
	if value == "" || len(strings.Fields(value)) > 1 {
		return ""
	}
	return name + "=" + value
}

// A Setting is a variable that plays a part.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Effect string `json:"effect"` // what it does, in a few words
}

// A Warning is about a variable that does not do what its value seems to say.
type Warning struct {
	Name string `json:"name"` // the variable, as the user wrote it
	Text string `json:"text"` // what happens instead, and what to write
	// Fix is what to set instead: assignments NAME=value, and -NAME for a
	// variable to remove, with blanks between. Empty where that depends on what
	// was meant.
	Fix string `json:"fix,omitempty"`
}

// A SettingError is what the framework itself would raise for a setting.
type SettingError struct {
	Name string `json:"name"` // the variable
	Text string `json:"text"` // the framework's own words, without the exception's type
	Then string `json:"then"` // what becomes of the program, one sentence
	// CPU reports that nothing is refused: the settings choose the CPU.
	CPU bool   `json:"cpu,omitempty"`
	Fix string `json:"fix,omitempty"` // as in [Warning]
}

// Error is Text.
func (e *SettingError) Error() string { return e.Text }

// notes are what a reading finds on its way.
type notes struct {
	env      Environment
	settings []Setting
	warnings []Warning
}

// effect notes what a variable does.
func (n *notes) effect(name, format string, args ...any) {
	n.settings = append(n.settings, Setting{name, n.env.Get(name), fmt.Sprintf(format, args...)})
}

// devices says which GPUs the program sees, and whether it sees none.
func (n *notes) devices(f framework) (hidden bool) {
	if text, set := n.env.Lookup(visibleVar); set && f.like != "" {
		if first, _, _ := strings.Cut(text, ","); strings.TrimSpace(first) == "" || strings.TrimSpace(first) == "-1" {
			n.effect(visibleVar, "hides every GPU: the program runs on the CPU and takes no GPU memory")
			hidden = true
		} else {
			n.effect(visibleVar, "only these GPUs are seen, and memory is taken on each of them")
		}
	}
	for _, name := range []string{"JAX_CUDA_VISIBLE_DEVICES", "JAX_ROCM_VISIBLE_DEVICES", "JAX_ONEAPI_VISIBLE_DEVICES"} {
		if text := n.env.Get(name); text != "" && f.name == "jax" {
			fix := "-" + name
			if other := assign(visibleVar, text); other != "" && name == "JAX_CUDA_VISIBLE_DEVICES" && text != "all" {
				fix += " " + other
			}
			n.warn(name, fix, "no release reads it: the flag of this name is set in code only; write %s", visibleVar)
		}
	}
	return hidden
}

// visibleVar is the driver's.
const visibleVar = "CUDA_VISIBLE_DEVICES"

// warn notes what a variable does not do, and what to set instead.
func (n *notes) warn(name, fix, format string, args ...any) {
	n.warnings = append(n.warnings, Warning{name, fmt.Sprintf(format, args...), fix})
}
