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

// launchers start the program that their command names behind options of theirs.
var launchers = []string{
	"chrt", "conda", "env", "ionice", "nice", "nohup", "numactl", "pdm", "pipenv", "poetry", "setsid", "stdbuf", "taskset", "time",
	"timeout", "uv", "xvfb-run",
}

// Named returns the engine that a command starts, by its words, also behind those that launch it (env, nice, uv
// run), and, of a Python program, by what that imports and makes; "" if it is none that is known.
func Named(command []string) string {
	for i, word := range command {
		for _, e := range engines {
			switch {
			case i > 0 && command[i-1] == "-m" && (word == e.name || strings.HasPrefix(word, e.name+".")):
				return e.name
			case i > 0 && command[i-1] == "-c" && e.isMadeIn(word):
				return e.name
			case filepath.Base(word) == e.name && (i == 0 || e.isLaunched(command, i)):
				return e.name
			case strings.HasSuffix(word, ".py") && e.isMadeIn(head(word)):
				return e.name
			}
		}
		if strings.HasSuffix(word, ".py") { // what follows are its arguments
			return ""
		}
	}
	return ""
}

// isLaunched reports whether a word of a command is the engine's program behind one that launches it, and no
// value of an option there, as in uv run --with vllm.
func (k *kind) isLaunched(command []string, i int) bool {
	return slices.Contains(launchers, filepath.Base(command[0])) && i+1 < len(command) && slices.Contains(k.commands, command[i+1])
}

// comment is one of Python.
var comment = regexp.MustCompile(`(?m)#.*$`)

// isMadeIn reports whether a Python program imports the engine's package and makes an engine. One that takes
// other names of it, as some that train do, is none.
func (k *kind) isMadeIn(text string) bool {
	const module = `[\w.]+(?:[ \t]+as[ \t]+\w+)?[ \t]*,[ \t]*` // before it, in import os, vllm
	imports := regexp.MustCompile(`(?m)(?:^|;)[ \t]*(?:from[ \t]+|import[ \t]+(?:` + module + `)*)` + k.name + `\b`)
	makes := regexp.MustCompile(`\b(?:` + strings.Join(k.makes, "|") + `)(?:\.from_\w+)?\(`)
	text = comment.ReplaceAllString(text, "")
	return imports.MatchString(text) && makes.MatchString(text)
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
