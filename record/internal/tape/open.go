package tape

// Opening a recording: options, the list of formats, recognition by content.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"gpumem/internal/input"
)

// Error describes bad input: what is wrong, and where.
type Error = input.Error

// Options say how to read a recording. The zero value is a good default.
type Options struct {
	// Format is the name of the format, one of the list's; "" recognises it by
	// content.
	Format string
	// KeepPaths shows the directories of files in stacks, and saves them. Without it only
	// the base name of each file is shown, since paths name users and machines.
	KeepPaths bool
	// SpoolLimit is how many bytes of encoded events stay in memory before the
	// rest goes to a temporary file; an event takes about 3 to 11 bytes. 0 means
	// 64 MiB; below 0 everything goes to the file.
	SpoolLimit int
	// TempDir is where the temporary file is made; "" means os.TempDir().
	TempDir string
	// Progress is called from Open's goroutine each time about 1 MiB of the
	// source has been read, and at its end. bytesTotal is 0 if not known. nil
	// is allowed.
	Progress func(bytesRead, bytesTotal int64)
}

// defaultSpoolLimit holds about 15 million events in memory.
const defaultSpoolLimit = 64 << 20

// Format is a format of recordings. See the package's documentation for how to add one.
type Format struct {
	Name string // for Options.Format
	What string // what a file of it is, and what writes it
	// Looks reports whether content begins as this format does. head is all of it
	// if it is short, else its first 64 KiB, and never empty.
	Looks func(head []byte) bool
	// Read reads a whole recording into b.
	Read func(in *input.Reader, b *Builder) error
	// Refuses, which may be nil, returns what content is that is no recording of any format,
	// and what to do with it; "" if it may be one. It is asked before Looks.
	Refuses func(file string, head []byte) string
}

// Formats is a list of formats. Content is tried from the last to the first, which
// is text: a comment in it may hold anything.
type Formats []Format

// Open reads the whole recording at path once ("-" is stdin) and keeps it as
// compact events, so that it can be replayed any number of times. The caller
// closes the trace.
//
// Memory follows the most blocks that are live at once, the sites, and
// Options.SpoolLimit. Four formats need more while they are read: torch, whose whole
// pickle is in memory as a tree, about six times the size of the file; xplane, up to
// twice its size unpacked; minimalloc, about twice its size; and torch-timeline, about three
// times its size. All that is bounded
// by the size of the file: a small file that stands for very much is refused.
//
// Bad input, a file that cannot be opened and a read that fails give an *Error.
// If ctx ends first, Open stops at once, and errors.Is(err, context.Cause(ctx))
// holds. Any other error is about the spool (a full disk).
func (fs Formats) Open(ctx context.Context, path string, opt Options) (*Trace, error) {
	name := path
	if path == "-" {
		name = "stdin"
	}
	return fs.read(name, opt, func() (*input.Reader, error) { return input.Open(ctx, path, opt.input()) })
}

// Read reads a recording from r, see [Formats.Open]. Messages call it name. If ctx ends while
// r.Read blocks, Read returns and leaves that one call behind in a goroutine: r
// must not be used again then.
func (fs Formats) Read(ctx context.Context, r io.Reader, name string, opt Options) (*Trace, error) {
	return fs.read(name, opt, func() (*input.Reader, error) { return input.New(ctx, r, name, opt.input()) })
}

// input returns how a recording is read.
func (opt Options) input() input.Options {
	return input.Options{Kind: "one recording", Progress: opt.Progress}
}

// read does the work of Open and Read.
func (fs Formats) read(name string, opt Options, open func() (*input.Reader, error)) (*Trace, error) {
	if _, err := fs.named(name, opt.Format); err != nil {
		return nil, err
	}
	in, err := open()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return fs.ReadFrom(in, opt)
}

// ReadFrom reads a recording from input that is open, see [Formats.Open].
func (fs Formats) ReadFrom(in *input.Reader, opt Options) (*Trace, error) {
	f, err := fs.named(in.Name(), opt.Format)
	if err != nil {
		return nil, err
	}
	head, err := in.Head()
	if err != nil {
		return nil, err
	}
	var other error // what is said where reading fails
	if f != nil {
		other = fs.otherFormat(f, in.Name(), head)
	} else if f, err = fs.recognise(in.Name(), head); err != nil {
		return nil, err
	}
	b := newBuilder(in, f.Name, opt)
	if err = f.Read(in, b); err == nil {
		err = b.finish()
	}
	if err != nil {
		b.trace.Close() // the error of reading is the one to report
		var bad *Error
		if other != nil && errors.As(err, &bad) {
			err = other
		}
		return nil, err
	}
	in.Report()
	return b.trace, nil
}

// otherFormat returns what content is that does not begin as the format does that was asked for;
// nil where that is not known.
func (fs Formats) otherFormat(f *Format, file string, head []byte) error {
	if len(head) == 0 || f.Looks(head) {
		return nil
	}
	if is, _ := fs.named(file, fs.Recognise(head)); is != nil {
		return &Error{File: file, Msg: fmt.Sprintf("this is not of the format %s; it is %s, of the format %s: leave --format out", f.Name, is.What, is.Name)}
	}
	return fs.refused(file, head)
}

// refused returns the error of content that is known to be no recording; nil for other.
func (fs Formats) refused(file string, head []byte) error {
	for _, f := range fs {
		if f.Refuses == nil {
			continue
		}
		if msg := f.Refuses(file, head); msg != "" {
			return &Error{File: file, Msg: msg}
		}
	}
	return nil
}

// named returns the format of a name; nil if the name is "".
func (fs Formats) named(file, name string) (*Format, error) {
	if name == "" {
		return nil, nil
	}
	for i := range fs {
		if fs[i].Name == name {
			return &fs[i], nil
		}
	}
	return nil, &Error{File: file, Msg: fmt.Sprintf("there is no format %s; the formats are %s",
		input.Quote(name), strings.Join(fs.Names(), ", "))}
}

// Names returns the names of the formats.
func (fs Formats) Names() []string {
	var out []string
	for _, f := range fs {
		out = append(out, f.Name)
	}
	return out
}

// Recognise returns the name of the format that content begins as, see Format.Looks, and "" if
// it begins as none. head is not empty.
func (fs Formats) Recognise(head []byte) string {
	for _, f := range slices.Backward(fs) {
		if f.Looks(head) {
			return f.Name
		}
	}
	return ""
}

// recognise returns the format of a recording that begins with head, see
// Format.Looks. Content that no format knows is an *Error.
func (fs Formats) recognise(file string, head []byte) (*Format, error) {
	if len(head) == 0 {
		return nil, &Error{File: file, Msg: "the recording is empty: no events"}
	}
	if err := fs.refused(file, head); err != nil {
		return nil, err
	}
	if name := fs.Recognise(head); name != "" {
		return fs.named(file, name)
	}
	reads := fs.Names()
	reads[0] += " (" + fs[0].What + ")" // the file may be written by hand
	msg := "not a recording that this version knows; it reads " + input.And(reads)
	line, n := input.FirstLine(head)
	if n == 0 || !input.IsPrintable(line) {
		return nil, &Error{File: file, Msg: msg}
	}
	for start, what := range markup {
		if len(line) >= len(start) && strings.EqualFold(string(line[:len(start)]), start) {
			return nil, &Error{File: file, Msg: "this is no recording; it is " + what}
		}
	}
	return nil, &Error{File: file, Line: n, Msg: input.Quote(line) + ": " + msg + "; the log of a program is for gpumem doctor"}
}

// markup is what files are that begin so.
var markup = map[string]string{
	"<!doctype html": htmlPage, "<html": htmlPage,
	"<?xml": "XML, perhaps a drawing (SVG), as profilers of time make one", "<svg": "a drawing (SVG), as profilers of time make one",
}

const htmlPage = "a page (HTML); what it was drawn from is what is read, and of PyTorch's memory timeline NAME.raw.json.gz"
