package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"gpumem/trace"
)

// This file is for replay --save: the recording that was read, in our own
// format.

// checkSave says whether path is the recording at source, which would be gone if
// it cannot be read to its end. It must be asked before the recording is read.
func checkSave(path, source string) error {
	out, err := os.Stat(path)
	if err != nil {
		return nil // it is to be made, or saving will say what is wrong
	}
	in, err := os.Stdin.Stat()
	if source != "-" {
		in, err = os.Stat(source)
	}
	if err == nil && os.SameFile(in, out) {
		return fmt.Errorf("--save: %s is the recording itself; name another file", path)
	}
	return nil
}

// saveRecording makes the file at path, whole or not at all.
func saveRecording(ctx context.Context, path string, t *trace.Trace) error {
	err := writeWhole(ctx, path, func(w io.Writer) error { return t.Save(ctx, w) })
	if err != nil {
		return fmt.Errorf("--save: %w", err)
	}
	return nil
}
