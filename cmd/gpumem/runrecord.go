// gpumem run --record: the file.

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"gpumem/share/launch"
)

// recording is what a run is recorded to.
type recording struct {
	file string // its path is absolute
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
	r := &recording{file: path}
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
	return r, nil
}

// say says in a line what is recorded, and where. No recording has nothing to say.
func (r *recording) say(line func(string), copies int) {
	if r == nil {
		return
	}
	first := launch.RecordFile(r.file, 0, copies)
	to := first
	if copies > 1 {
		to += " to " + launch.RecordFile(r.file, copies-1, copies)
	}
	line("recording to " + to + ": PyTorch writes it when it has used a GPU and ends, JAX and TensorFlow write " + filepath.Base(first) + "_POOL.TIME when a pool is out of memory")
}
