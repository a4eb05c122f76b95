// Package load reads modules from files: text or binary, gzip or not. It is the door for
// them: a module that [File] returns has passed xla/internal/verify, and the rooms that measure and
// plan rely on that.
//
// Package hlo parses text. Of a binary module wire.go reads the fields of messages,
// binary.go the module, computation.go and instruction.go what is in it, attributes.go,
// shape.go and literal.go the texts of its parts; async.go gives asynchronous operations
// the form that they have in text.
package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"gpumem/internal/input"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/verify"
)

// File reads a module and checks it: it is well formed, and all its shapes have a size. binary
// are the bytes of a binary module, which [Rewrite] makes others of; nil for a text. The path -
// is standard input. The error names the file and, where the problem is in its text, the line
// and the column.
func File(ctx context.Context, path string) (m *hlo.Module, binary []byte, err error) {
	in, err := input.Open(ctx, path, input.Options{Kind: "a module"})
	if err != nil {
		return nil, nil, err
	}
	defer in.Close()
	return Read(ctx, in)
}

// Module is File without the bytes.
func Module(ctx context.Context, path string) (*hlo.Module, error) {
	m, _, err := File(ctx, path)
	return m, err
}

// Contents are what a file has of a compiled program: a module, XLA's assignment of its
// memory, or both. The other one is nil.
type Contents struct {
	Module     *hlo.Module
	Binary     []byte // of the module, nil for a text
	Assignment *Assignment
}

// Any is File for a file that may also be XLA's buffer assignment, or have one in it.
func Any(ctx context.Context, path string) (c Contents, err error) {
	in, err := input.Open(ctx, path, input.Options{Kind: "a module"})
	if err != nil {
		return c, err
	}
	defer in.Close()
	switch head, _ := in.Head(); { // a failed read fails again
	case isAssignmentText(head):
		c.Assignment, err = assignmentText(in)
		return c, err
	case bytes.HasPrefix(head, []byte("Memory Space: ")):
		return c, in.Fail("a memory usage report of XLA, which has the sum alone (gpumem doctor shows it); " +
			"the file NAME-buffer-assignment.txt beside it has what gpumem hlo reads")
	case bytes.HasPrefix(bytes.TrimSpace(head), []byte("CompiledMemoryStats(")):
		return c, in.Fail("what JAX prints of memory_analysis(), which gpumem doctor shows; " +
			"compiled.as_text() is a module that gpumem hlo reads")
	}
	m, binary, text, err := parse(in)
	if binary != nil && (err == nil || errors.Is(err, ErrNoModule)) {
		a, wrong := DecodeAssignment(binary, in.Take)
		if c.Assignment = a; wrong != nil && !errors.Is(wrong, ErrNoAssignment) {
			return c, place(ctx, in, text, wrong)
		}
		if err != nil && a != nil {
			return c, nil
		}
	}
	if err = place(ctx, in, text, check(m, err)); err == nil {
		c.Module, c.Binary = m, binary
	}
	return c, err
}

// Looks reports whether content begins as a module does, of which head is all or 4 KiB and
// more. A binary one is a message whose first field is a message or a text, as many are.
func Looks(head []byte) bool {
	text := bytes.TrimSpace(head)
	for bytes.HasPrefix(text, []byte("//")) {
		_, text, _ = bytes.Cut(text, []byte("\n"))
		text = bytes.TrimSpace(text)
	}
	return bytes.HasPrefix(text, []byte("HloModule")) || len(head) > 0 && head[0] == 1<<3|2 && isBinary(head[:min(len(head), peeked)])
}

// Read is File for input that is open.
func Read(ctx context.Context, in *input.Reader) (*hlo.Module, []byte, error) {
	m, binary, text, err := parse(in)
	if err = place(ctx, in, text, check(m, err)); err != nil {
		return nil, nil, err
	}
	return m, binary, nil
}

// check checks a module that was parsed without an error.
func check(m *hlo.Module, err error) error {
	if err == nil {
		err = verify.Module(m)
	}
	if err == nil {
		err = sized(m)
	}
	return err
}

// place puts in front of an error where it is: the file, and the line if it is in a text.
func place(ctx context.Context, in *input.Reader, text string, err error) error {
	var at *hlo.SyntaxError
	var wrong *verify.Error
	var unread *input.Error
	switch {
	case err == nil, errors.As(err, &unread), ctx.Err() != nil:
		return err
	case errors.As(err, &at):
		return fmt.Errorf("%s:%w", in.Name(), err) // FILE:LINE:COLUMN:
	case errors.As(err, &wrong) && wrong.Instruction != nil && wrong.Instruction.Line > 0:
		i := wrong.Instruction
		return fmt.Errorf("%s:%d:%d: %s in %s: %s", in.Name(), i.Line, column(text, i), i.Name, wrong.Computation.Name, wrong.Problem)
	}
	return fmt.Errorf("%s: %s", in.Name(), strings.TrimPrefix(err.Error(), "xla/internal/load: "))
}

// peeked is how many bytes of a module are looked at to tell text.
const peeked = 4 << 10

// parse reads a module, and its bytes or its text.
func parse(in *input.Reader) (m *hlo.Module, binary []byte, text string, err error) {
	head, err := in.Content().Peek(peeked)
	if err != nil && err != io.EOF {
		return nil, nil, "", err
	}
	if isBinary(head) {
		if binary, err = in.ReadAll(); err == nil {
			m, _, err = Decode(binary, in.Take)
		}
		return m, binary, "", err
	}
	if text, err = in.Text(); err == nil {
		m, err = hlo.ParseWithin(text, in.Take)
	}
	return m, nil, text, err
}

// isBinary reports whether bytes are no text: a protobuf message has control characters
// near its beginning, the lengths of its fields.
func isBinary(head []byte) bool {
	return slices.ContainsFunc(head, func(b byte) bool { return b < '\t' || b > '\r' && b < ' ' && b != 0x1b })
}

// sized checks that all shapes have a size.
func sized(m *hlo.Module) error {
	for i := range m.All() {
		if _, err := i.Shape.TotalBytes(); err != nil {
			return &verify.Error{Computation: i.Parent, Instruction: i, Problem: strings.TrimPrefix(err.Error(), "hlo: ")}
		}
	}
	return nil
}

// column is where an instruction's name stands in its line, from 1.
func column(text string, i *hlo.Instruction) int {
	for range i.Line - 1 {
		_, text, _ = strings.Cut(text, "\n")
	}
	line, _, _ := strings.Cut(text, "\n")
	return strings.Index(line, i.Name) + 1
}
