// Environments: the variables of a program.

package policy

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// An Environment is the variables of a program.
type Environment struct {
	names  []string // in the order given, each once
	values map[string]string
	// root and dir are the directories that absolute and relative file names
	// begin from; empty: this program's.
	root, dir string
	// NoPages reports that the device has no virtual memory management, NoPools that its
	// driver has no stream-ordered pools.
	NoPages, NoPools bool
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

// Lookup returns the value of a variable, and reports whether it is set.
func (e Environment) Lookup(name string) (value string, ok bool) {
	value, ok = e.values[name]
	return value, ok
}

// Get returns the value of a variable; empty if it is not set.
func (e Environment) Get(name string) string { return e.values[name] }

// Names returns the names of the variables, in the order given.
func (e Environment) Names() []string { return e.names }

// In returns e with the files that its values name looked for where another
// program finds them: absolute names below root, relative ones below dir.
func (e Environment) In(root, dir string) Environment {
	e.root, e.dir = root, dir
	return e
}

// OnGPU returns e without the variables that choose JAX's platform, for a program
// that is to use the GPU whatever they say.
func (e Environment) OnGPU() Environment {
	return e.Without("JAX_PLATFORMS").Without("JAX_PLATFORM_NAME")
}

// maxFlagFile is the most that is read of a file, in bytes.
const maxFlagFile = 1 << 20

// ReadFile reads a file that a value names. It does not wait for one that is no
// regular file, and refuses one of more than maxFlagFile bytes.
func (e Environment) ReadFile(name string) (string, error) {
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

// With returns e with one variable set.
func (e Environment) With(name, value string) Environment {
	e = e.Without(name)
	e.names = append([]string{name}, e.names...)
	e.values[name] = value
	return e
}

// Without returns e without one variable.
func (e Environment) Without(name string) Environment {
	e.names = slices.DeleteFunc(slices.Clone(e.names), func(n string) bool { return n == name })
	values := map[string]string{}
	maps.Copy(values, e.values)
	delete(values, name)
	e.values = values
	return e
}

// Apply returns e after a fix (see [Warning]): words NAME=value and -NAME.
func (e Environment) Apply(fix string) Environment {
	for word := range strings.FieldsSeq(fix) {
		if name, ok := strings.CutPrefix(word, "-"); ok {
			e = e.Without(name)
		} else {
			name, value, _ := strings.Cut(word, "=")
			e = e.With(name, value)
		}
	}
	return e
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
	// CPU reports that nothing is refused, but that the settings choose the CPU.
	CPU bool   `json:"cpu,omitempty"`
	Fix string `json:"fix,omitempty"` // as in [Warning]
}

// Error returns Text.
func (e *SettingError) Error() string { return e.Text }
