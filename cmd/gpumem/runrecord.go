// gpumem run --record: the file, and what was recorded in the end.

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gpumem/share/launch"
)

// recording is what a run is recorded to.
type recording struct {
	file   string          // its path is absolute
	before map[string]bool // files that were there
}

// newRecording is the error of a file that cannot be recorded to: nothing that is
// there is overwritten.
func newRecording(file string, copies int) (*recording, error) {
	path, err := filepath.Abs(file)
	switch {
	case file == "" || os.IsPathSeparator(file[len(file)-1]):
		return nil, fmt.Errorf("--record %q: want the name of a file that is not there yet", file)
	case err != nil:
		return nil, fmt.Errorf("--record %s: %w", file, err)
	}
	r := &recording{file: path, before: map[string]bool{}}
	for c := range copies {
		name := launch.RecordFile(path, c, copies)
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		switch {
		case errors.Is(err, fs.ErrExist):
			return nil, fmt.Errorf("--record: %s is there already; give another name, or remove it", name)
		case err != nil:
			return nil, fmt.Errorf("--record: %w", err)
		}
		if err := errors.Join(f.Close(), os.Remove(name)); err != nil { // the program is to make it
			return nil, fmt.Errorf("--record: %w", err)
		}
	}
	for _, name := range r.files() {
		r.before[name] = true
	}
	return r, nil
}

// files are those in the folder that may be of this recording.
func (r *recording) files() []string {
	entries, err := os.ReadDir(filepath.Dir(r.file))
	if err != nil {
		return nil
	}
	base := filepath.Base(r.file)
	var found []string
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), base)
		if ok && (rest == "" || rest[0] == '.' || rest[0] == '_') && !strings.HasSuffix(rest, ".part") {
			found = append(found, filepath.Join(filepath.Dir(r.file), e.Name()))
		}
	}
	return found
}

// tell says in a line what was recorded. No recording has nothing to say.
func (r *recording) tell(say func(string)) {
	if r == nil {
		return
	}
	var fresh []string
	for _, name := range r.files() {
		if !r.before[name] {
			fresh = append(fresh, name)
		}
	}
	switch n := len(fresh); n {
	case 0:
		say("nothing was recorded to " + r.file + ": PyTorch writes there when it has used a GPU and ends by itself, JAX and TensorFlow when a pool is out of memory")
	case 1:
		say("recorded " + fresh[0] + "; gpumem replay reads it")
	default:
		say(fmt.Sprintf("recorded %s and %d more beside it; gpumem replay reads each", fresh[0], n-1))
	}
}
