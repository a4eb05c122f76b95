// Package answer reads logs for package doctor, and writes its diagnoses for the person
// whose program died, as text and as JSON.
package answer

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"gpumem/doctor"
	"gpumem/dump"
	"gpumem/internal/input"
	"gpumem/machine"
)

// Answer is the diagnosis of one log.
type Answer struct {
	Log    string // its name in messages; empty if there is none
	Size   int64  // bytes of its text
	Binary bool   // it has bytes that no text has, near its beginning
	*doctor.Diagnosis
}

// Read diagnoses the log in a file, gzip or not; "-" is standard input, and an empty path
// is no log. The state, and what was taken beside the log, may be nil. progress, if not nil, is called with the bytes read and
// the file's size, 0 if unknown. Errors name the file.
func Read(ctx context.Context, path string, state *machine.Snapshot, beside *doctor.Beside, progress func(read, total int64)) (Answer, error) {
	if path == "" {
		d, err := doctor.DiagnoseWith(strings.NewReader(""), state, beside)
		return Answer{Diagnosis: d}, err
	}
	in, err := openLog(ctx, path, "a log", progress)
	if err != nil {
		return Answer{}, err
	}
	defer in.Close()
	d, err := doctor.DiagnoseWith(in, state, beside)
	if err = in.named(err); err != nil {
		return Answer{}, err
	}
	return Answer{in.Name(), in.size, in.strange, d}, nil
}

// ReadState reads a state file; "-" is standard input. Errors name the file.
func ReadState(ctx context.Context, path string) (*machine.Snapshot, error) {
	in, err := openLog(ctx, path, "a state", nil)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	state, err := machine.Read(in)
	if err = in.named(err); err != nil {
		return nil, err
	}
	return state, nil
}

// ReplayFlags returns the flags of gpumem replay for the pool that a dump's recording
// rebuilds: it has all of the dump's bytes from the start, not rounded, and two ends if
// the dump had.
func ReplayFlags(d *dump.Dump) string {
	ends := ""
	if slices.ContainsFunc(d.Regions, func(r dump.Region) bool {
		return slices.ContainsFunc(r.Chunks, func(c dump.Chunk) bool { return c.Tag == dump.Upper })
	}) {
		ends = ",spatial=true"
	}
	return fmt.Sprintf("--policy bfc:limit=%d%s --device sim:%[1]d,granularity=1", d.Pool, ends)
}

// A logReader is an open log.
type logReader struct {
	*input.Reader
	size    int64 // bytes of text that were read
	wide    bool  // it begins as UTF-16 does
	strange bool  // it has bytes that no text has, near its beginning
	failed  error // of reading, with the name; nil at the end
}

// openLog opens a file of a kind, such as "a log".
func openLog(ctx context.Context, path, kind string, progress func(read, total int64)) (*logReader, error) {
	in, err := input.Open(ctx, path, input.Options{Kind: kind, Progress: progress})
	if err != nil {
		return nil, err
	}
	l := &logReader{Reader: in}
	// What Windows PowerShell redirects into a file is text, though it has zeros.
	head, err := in.Content().Peek(2)
	if err != nil && err != io.EOF {
		in.Close()
		return nil, err
	}
	l.wide = bytes.Equal(head, []byte{0xff, 0xfe}) || bytes.Equal(head, []byte{0xfe, 0xff})
	return l, nil
}

// Read reads the log's text.
func (l *logReader) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	if !l.wide && l.size < 64<<10 && bytes.IndexByte(p[:n], 0) >= 0 {
		l.strange = true
	}
	l.size += int64(n)
	if err != nil && err != io.EOF {
		l.failed = err
	}
	return n, err
}

// named adds the file's name to an error of its content. An error of reading has it.
func (l *logReader) named(err error) error {
	switch {
	case l.failed != nil:
		return l.failed
	case err != nil:
		return fmt.Errorf("%s: %w", l.Name(), err)
	}
	return nil
}
