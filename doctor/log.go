// Logs are read from files, and diagnosed.

package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"gpumem/internal/input"
	"gpumem/node/machine"
	"gpumem/record/dump"
)

// Answer is the diagnosis of one log.
type Answer struct {
	Log string // its name in messages; empty if there is none
	*Diagnosis
}

// Read diagnoses the log in a file, gzip or not; "-" is standard input, and an empty path
// is no log. The state, and what was taken beside the log, may be nil. progress, if not nil, is
// called with the bytes read and the file's size, 0 if unknown. Errors name the file. A file that
// is no log is an error that says what reads it, and so is an empty one where nothing else is known.
func Read(ctx context.Context, path string, state *machine.Snapshot, beside *Beside, progress func(read, total int64)) (Answer, error) {
	if path == "" {
		d, err := DiagnoseWith(strings.NewReader(""), state, beside)
		return Answer{Diagnosis: d}, err
	}
	in, err := openLog(ctx, path, "a log", progress)
	switch {
	case errors.Is(err, fs.ErrNotExist) && strings.Contains(path, " "):
		return Answer{}, fmt.Errorf("%w; a text is piped in: echo 'TEXT' | gpumem doctor", err)
	case err != nil:
		return Answer{}, err
	}
	defer in.Close()
	head, err := in.Head()
	if err != nil {
		return Answer{}, err
	}
	in.mark = missingMark(head[:min(len(head), markless)])
	in.wide = in.wide || in.mark != ""
	if what := notLog(ctx, path, head); what != "" {
		return Answer{}, in.Fail("%s", what)
	}
	if len(head) == 0 && state == nil && beside == nil {
		return Answer{}, in.Fail("the log is empty; messages often go to stderr: python train.py > train.log 2>&1")
	}
	d, err := DiagnoseWith(in, state, beside)
	switch err = in.named(err); {
	case err != nil:
		return Answer{}, err
	case len(head) > 0 && !in.text, d.Dump == nil && !in.wide && isBinary(head):
		return Answer{}, in.Fail("this is no text; %s", printed)
	}
	if len(head) == 0 {
		return Answer{Diagnosis: d}, nil // the question is about the state alone
	}
	return Answer{in.Name(), d}, nil
}

// ReadState reads a state file; "-" is standard input. Errors name the file.
func ReadState(ctx context.Context, path string) (*machine.Snapshot, error) {
	in, err := openLog(ctx, path, "a state", nil)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if head, _ := in.Content().Peek(512); bytes.Contains(head, []byte("NVIDIA-SMI")) { // of a shorter file what there is
		return nil, in.Fail("this is no state, which gpumem ps --json writes; what nvidia-smi prints belongs to the log: cat LOG FILE | " +
			"gpumem doctor")
	}
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
	size     int64  // bytes of text that were read
	wide     bool   // it begins as UTF-16 does
	mark     string // of UTF-16, which the file itself lacks; given before it
	text     bool   // it has other bytes than zeros
	most     int64  // bytes to be read; 0: no limit
	unbroken int64  // bytes since the end of a line
	failed   error  // of reading, with the name; nil at the end
}

// openLog opens a file of a kind, such as "a log".
func openLog(ctx context.Context, path, kind string, progress func(read, total int64)) (*logReader, error) {
	in, err := input.Open(ctx, path, input.Options{Kind: kind, Progress: progress})
	if err != nil {
		return nil, err
	}
	l := &logReader{Reader: in}
	// What Windows PowerShell redirects into a file has no byte that ends a line.
	head, err := in.Content().Peek(2)
	if err != nil && err != io.EOF {
		in.Close()
		return nil, err
	}
	l.wide = isWide(head)
	return l, nil
}

// maxUnbroken is how many bytes without the end of a line are still taken for text. A device
// such as /dev/zero has no other end. What bars of progress draw over ends with a return.
const maxUnbroken = 64 << 20

// maxBeside bounds a pool's dump that was taken beside a log, in bytes.
const maxBeside = 256 << 20

// ReadDump reads the dump of a pool from a file; nil if it has none, or is larger than 256 MiB.
func ReadDump(ctx context.Context, path string) (*dump.Dump, error) {
	in, err := openLog(ctx, path, "a dump", nil)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	in.most = maxBeside
	d, err := Diagnose(in, nil)
	if err = in.named(err); err != nil {
		return nil, err
	}
	return d.Dump, nil
}

// Read reads the log's text.
func (l *logReader) Read(p []byte) (int, error) {
	if l.mark != "" && len(p) >= len(l.mark) {
		n := copy(p, l.mark)
		l.mark = ""
		return n, nil
	}
	n, err := l.Reader.Read(p)
	if l.unbroken += int64(n); bytes.IndexByte(p[:n], '\n') >= 0 || bytes.IndexByte(p[:n], '\r') >= 0 || l.wide {
		l.unbroken = 0
	}
	switch {
	case l.unbroken > maxUnbroken:
		err = fmt.Errorf("%s: %d MiB without the end of a line: this is no text", l.Name(), maxUnbroken>>20)
	case l.most > 0 && l.size > l.most:
		err = fmt.Errorf("%s: no dump of a pool within %d MiB", l.Name(), l.most>>20)
	}
	l.text = l.text || bytes.Count(p[:n], []byte{0}) < n
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
