// The file that a program's memory is recorded to.

package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// recordFile returns the file of one of several copies: file with the copy's number
// behind it where there are several. copy is counted from 0.
func recordFile(file string, copy, copies int) string {
	if file == "" || copies == 1 {
		return file
	}
	return fmt.Sprintf("%s.%d", file, copy+1)
}

// checkRecord makes Record absolute and checks that it can be recorded to, for each
// copy. Nothing that exists is overwritten.
func (p *Plan) checkRecord() error {
	file := p.Record
	path, err := filepath.Abs(file)
	switch {
	case os.IsPathSeparator(file[len(file)-1]):
		return fmt.Errorf("--record %q: want the name of a file that is not there yet", file)
	case err != nil:
		return fmt.Errorf("--record %s: %w", file, err)
	}
	p.Record = path
	for c := range p.Copies {
		name := recordFile(path, c, p.Copies)
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		switch {
		case errors.Is(err, fs.ErrExist):
			return fmt.Errorf("--record: %s is there already; give another name, or remove it", name)
		case err != nil:
			return fmt.Errorf("--record: %w", err)
		}
		if err := errors.Join(f.Close(), os.Remove(name)); err != nil { // the program is to make it
			return fmt.Errorf("--record: %w", err)
		}
	}
	return nil
}

// sayRecord says what is recorded, and where.
func (p *Plan) sayRecord() {
	if p.Record == "" {
		return
	}
	first := recordFile(p.Record, 0, p.Copies)
	to := first
	if p.Copies > 1 {
		to += " to " + recordFile(p.Record, p.Copies-1, p.Copies)
	}
	if p.Limits.Pool != nil {
		p.say("recording to %s: the pool library writes every allocation and free", to)
		return
	}
	const when = "PyTorch writes it when it has used a GPU and ends, JAX and TensorFlow write %s_POOL.TIME when a pool is out of memory"
	p.say("recording to %s: "+when, to, filepath.Base(first))
}
