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
	// if it is short, else headBytes of it, and never empty.
	looks func(head []byte) bool
	// read reads a whole recording into b.
	read func(ctx context.Context, in *bufio.Reader, b *builder) error
}

// formats is the table. Content is tried from the last row to the first: text
// comes last, as a comment may hold anything, and before it a log, whose lines may.
var formats = []format{
	{Format{"text", `lines "a ID BYTES" and "f ID"`}, looksText, readText},
	{Format{"memdebug", "a log with lines of [mem-debug] of XLA or TensorFlow near its start"}, hasMemDebug, readMemDebug},
	{Format{"torch", "a pickle of torch.cuda.memory._dump_snapshot"}, looksPickled, readTorch},
	{Format{"xplane", "a profile of JAX, XLA or TensorFlow, *.xplane.pb"}, looksXPlane, readXPlane},
	{Format{"rmm", "a CSV log of RMM"}, looksRMM, readRMM},
	{Format{"memdump", "a pool dump of TF_BFC_MEMORY_DUMP"}, looksMemDump, readMemDump},
	{Format{"pprof", "a device memory profile of JAX"}, looksPprof, readPprof},
	{Format{"minimalloc", "a problem of MiniMalloc, CSV"}, looksMinimalloc, readMinimalloc},
	{Format{"gpumem", "our own, which --save writes"}, looksBinary, readBinary},
}

// Formats returns all formats.
func Formats() []Format {
	var out []Format
	for _, f := range formats {
		out = append(out, f.Format)
	}
	return out
}

func formatNames() []string {
	var out []string
	for _, f := range formats {
		out = append(out, f.Name)
	}
	return out
}

// formatNamed returns the format of a name.
func formatNamed(file, name string) (*format, error) {
	for i := range formats {
		if formats[i].Name == name {
			return &formats[i], nil
		}
	}
	return nil, &Error{File: file, Msg: fmt.Sprintf("there is no format %s; the formats are %s",
		quote(name), strings.Join(formatNames(), ", "))}
}

// recognise returns the format of a recording that begins with head: all of it
// if it is short, else headBytes of it. Content that nothing knows is an *Error.
func recognise(file string, head []byte) (*format, error) {
	if len(head) == 0 {
		return nil, &Error{File: file, Msg: "the recording is empty: no events"}
	}
	line, n := firstLine(head)
	if !isPrintable(line) {
		n = 0 // content without lines
	}
	for i := len(formats) - 1; i >= 0; i-- {
		if f := &formats[i]; f.looks(head) {
			return f, nil
		}
	}
	reads := formatNames()
	if isZip(head) {
		return nil, &Error{File: file, Msg: "looks like a zip file (torch.save writes those; a snapshot comes from torch.cuda.memory._dump_snapshot); what is read: " + and(reads)}
	}
	reads[0] += " (" + formats[0].What + ")" // for who wrote the file by hand
	msg := "not a recording that this version knows; it reads " + and(reads)
	if n > 0 {
		msg = quote(line) + ": " + msg + "; the log of a program is for gpumem doctor"
	}
	return nil, &Error{File: file, Line: n, Msg: msg}
}

// and joins words as people do: "a, b and c".
func and(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}
