// Commands that start engines.

package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Named returns the engine that a command starts, by its words and, of a Python program, by
// what that imports; "" if it is none that is known.
func Named(command []string) string {
	for _, e := range engines {
		imports := regexp.MustCompile(`(?m)^\s*(?:import|from)\s+` + e.name + `\b`)
		for i, word := range command {
			module := i > 0 && command[i-1] == "-m" && (word == e.name || strings.HasPrefix(word, e.name+"."))
			script := i > 0 && command[i-1] == "-c" && imports.MatchString(word)
			if module || script || filepath.Base(word) == e.name && i == 0 {
				return e.name
			}
			if strings.HasSuffix(word, ".py") && imports.MatchString(head(word)) {
				return e.name
			}
		}
	}
	return ""
}

// head returns the beginning of a file; "" if it cannot be read.
func head(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	text := make([]byte, 64<<10)
	n, _ := f.Read(text)
	return string(text[:n])
}

// hubName is what models are called on a hub: OWNER/NAME.
var hubName = regexp.MustCompile(`^\w[\w.-]*/[\w.-]+$`)

// Serve returns the command that serves the model of a folder with an engine, by its name or the
// path of its program. Of the folder config.json is enough.
func Serve(program, folder string, flags []string) ([]string, error) {
	if len(flags) > 0 && !strings.HasPrefix(flags[0], "-") {
		return nil, fmt.Errorf("behind -- stand flags of the engine alone, such as --max-model-len 8192, and not %q", flags[0])
	}
	config := filepath.Join(folder, "config.json")
	text, err := readConfig(config)
	if err != nil && hubName.MatchString(folder) && errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: no such folder, and models of a hub are not fetched: download its config.json into a folder, and name that", folder)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: want a folder with the config.json of a model (%w)", folder, err)
	}
	if err := json.Unmarshal(text, new(map[string]any)); err != nil {
		return nil, fmt.Errorf("%s: want a model's configuration, a JSON object (%w)", config, err)
	}
	for _, e := range engines {
		if e.name != filepath.Base(program) {
			continue
		}
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%s is not on PATH: activate the environment in which it is installed, or give its path (%w)", e.name, err)
		}
		return slices.Concat([]string{program}, e.serve, []string{folder}, flags), nil
	}
	return nil, fmt.Errorf("engine %q is not known; known are %s", program, Known())
}

// mostConfig is the size of the largest configuration that is read. Those of models have kilobytes.
const mostConfig = 64 << 20

// readConfig reads a configuration, which may be anything.
func readConfig(path string) ([]byte, error) {
	is, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !is.Mode().IsRegular():
		return nil, errors.New("config.json is no regular file")
	case is.Size() > mostConfig:
		return nil, fmt.Errorf("config.json has %d bytes", is.Size())
	}
	return os.ReadFile(path)
}
