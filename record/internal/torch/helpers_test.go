package torch

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
)

var formats = tape.Formats{tape.Text, Format, tape.Binary}

func mustRead(t testing.TB, data []byte, opt tape.Options) *tape.Trace {
	t.Helper()
	return tracetest.MustRead(t, formats, data, opt)
}

func readString(s string) (*tape.Trace, error) {
	return formats.Read(context.Background(), strings.NewReader(s), "in", tape.Options{})
}

// unpickleFrom is unpickle for a reader.
func unpickleFrom(r io.Reader, name string) (v any, more bool, err error) {
	in, err := input.New(context.Background(), r, name, input.Options{})
	if err != nil {
		return nil, false, err
	}
	defer in.Close()
	return unpickle(in)
}

// readTrees reads the tree of a snapshot.
func readTrees(ctx context.Context, tree any, opt tape.Options) (*tape.Trace, error) {
	return tape.Formats{{Name: "torch", Looks: func([]byte) bool { return true }, Read: func(in *input.Reader, b *tape.Builder) error {
		return readTree(tree, in, b)
	}}}.Read(ctx, strings.NewReader("x"), "in", opt)
}

// saved is a trace in our own format.
func saved(t testing.TB, tr *tape.Trace) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := tr.Save(context.Background(), &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func unzipFile(t testing.TB, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
