package trace

// This file is for the table of formats. Open, Options.Format, the texts of
// errors and what Formats tells all follow from it, so a reader more is a line
// more.

import (
	"bufio"
	"context"
	"fmt"
	"strings"
)

// Format is a format of recordings, in words.
type Format struct {
	Name string // for Options.Format
	What string // what a file of it is, and what writes it
}

// format is a row of the table.
type format struct {
	Format
	// looks says whether content begins as this format does. head is all of it
	// if it is short, else headBytes of it, and never empty. nil: the format
	// cannot be told by its content.
	looks func(head []byte) bool
	// read reads a whole recording into b. nil: the format is known, and not
	// read by this version.
	read func(ctx context.Context, in *bufio.Reader, b *builder) error
}

// formats is the table. Content is tried from the last row to the first: text
// comes last, as a comment may hold anything.
var formats = []format{
	{Format{"text", `lines "a ID BYTES" and "f ID"`}, looksText, readText},
	{Format{"torch", "a pickle of torch.cuda.memory._dump_snapshot"}, looksPickled, readTorch},
	{Format{"xplane", "a profile of JAX, XLA or TensorFlow, *.xplane.pb"}, looksXPlane, readXPlane},
	{Format{"rmm", "an RMM log"}, looksRMM, nil},
	{Format{"memdebug", "a log of XLA's [mem-debug] lines"}, nil, nil},
	{Format{"memdump", "a pool dump of TF_BFC_MEMORY_DUMP"}, looksMemDump, readMemDump},
	{Format{"pprof", "a device memory profile of JAX"}, looksPprof, readPprof},
	{Format{"minimalloc", "a minimalloc problem"}, looksMinimalloc, nil},
	{Format{"gpumem", "a recording of this program's own"}, nil, nil},
}

// Formats returns the formats that this version reads.
func Formats() []Format {
	var out []Format
	for _, f := range formats {
		if f.read != nil {
			out = append(out, f.Format)
		}
	}
	return out
}

// formatNames lists the names of the formats that are read, or of all that are
// known.
func formatNames(known bool) []string {
	var out []string
	for _, f := range formats {
		if f.read != nil || known {
			out = append(out, f.Name)
		}
	}
	return out
}

// formatNamed returns the format of a name, which is read by this version.
func formatNamed(file, name string) (*format, error) {
	for i := range formats {
		f := &formats[i]
		switch {
		case f.Name != name:
		case f.read == nil:
			return nil, &Error{File: file, Msg: fmt.Sprintf("format %s is known, but this version does not read it; it reads %s",
				name, and(formatNames(false)))}
		default:
			return f, nil
		}
	}
	return nil, &Error{File: file, Msg: fmt.Sprintf("there is no format %s; the formats are %s",
		quote(name), strings.Join(formatNames(true), ", "))}
}

// recognise returns the format of a recording that begins with head: all of it
// if it is short, else headBytes of it. Content of a format that is known but
// not read, and content that nothing knows, are an *Error.
func recognise(file string, head []byte) (*format, error) {
	if len(head) == 0 {
		return nil, &Error{File: file, Msg: "the recording is empty: no events"}
	}
	line, n := firstLine(head)
	if !isPrintable(line) {
		n = 0 // content without lines
	}
	for i := len(formats) - 1; i >= 0; i-- {
		f := &formats[i]
		switch {
		case f.looks == nil || !f.looks(head):
		case f.read == nil:
			return nil, notRead(file, n, f.What)
		default:
			return f, nil
		}
	}
	if isZip(head) {
		return nil, notRead(file, 0, "a zip file (torch.save writes those; a snapshot comes from torch.cuda.memory._dump_snapshot)")
	}
	reads := formatNames(false)
	reads[0] += " (" + formats[0].What + ")" // for who wrote the file by hand
	msg := "not a recording that this version knows; it reads " + and(reads)
	if n > 0 {
		msg = quote(line) + ": " + msg
	}
	return nil, &Error{File: file, Line: n, Msg: msg}
}

func notRead(file string, line int, kind string) error {
	return &Error{File: file, Line: line, Msg: "looks like " + kind + ", which this version does not read; it reads " + and(formatNames(false))}
}

// and joins words as people do: "a, b and c".
func and(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}
