package formats

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"gpumem/record/internal/test/tracetest"
	"gpumem/record/trace"
)

// FuzzOpen is the whole way: gzip, recognition, every reader.
func FuzzOpen(f *testing.F) {
	f.Add([]byte("a 0 100\na 1 200\nf 0\n"))
	f.Add(tracetest.Zipped([]byte("a 0 100\na 1 200\nf 0\n")))
	f.Add(tracetest.Zipped(tracetest.Zipped([]byte("a 0 100\na 1 200\nf 0\n")))[:40])
	f.Add([]byte("\x80\x04}."))
	f.Add([]byte("\x89gpumem\x01"))
	for _, name := range []string{"rmm.csv", "memdebug.log", "minimalloc.csv"} {
		f.Add(tracetest.Sample(f, name))
	}
	for _, name := range []string{"torch2023.pickle", "torch2025.pickle", "torch2026.pickle"} {
		f.Add(tracetest.Sample(f, name))
		f.Add(tracetest.Zipped(tracetest.Sample(f, name)))
	}
	for name := range profiles {
		f.Add(tracetest.Sample(f, name))
	}
	f.Fuzz(func(t *testing.T, in []byte) { tracetest.FuzzRead(t, all, in, "") })
}

// TestBrokenLines: an error of reading keeps its place in the file; it is not
// one of a line.
func TestBrokenLines(t *testing.T) {
	for name, format := range map[string]string{"rmm.csv": "rmm", "memdebug.log": "memdebug", "minimalloc.csv": "minimalloc", "torch2025.pickle": "torch"} {
		z := tracetest.Zipped(tracetest.Sample(t, name))
		_, err := Read(context.Background(), bytes.NewReader(z[:len(z)-12]), "in", trace.Options{Format: format})
		var e *trace.Error
		if !errors.As(err, &e) || e.Line != 0 || e.Offset == 0 || !strings.Contains(e.Msg, "cut short") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSavedOfFormats: what is saved of a recording in any format is read as the same.
func TestSavedOfFormats(t *testing.T) {
	for _, name := range tracetest.Samples(t) {
		t.Run(name, func(t *testing.T) {
			tr := tracetest.MustRead(t, all, tracetest.Sample(t, name), trace.Options{})
			var file bytes.Buffer
			if err := tr.Save(context.Background(), &file); err != nil {
				t.Fatal(err)
			}
			again := tracetest.MustRead(t, all, file.Bytes(), trace.Options{})
			if d := tracetest.Diff(tr, again); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestFormatOption(t *testing.T) {
	for _, c := range []struct{ name, format, want string }{
		{"unknown", "txet", `in: there is no format "txet"; the formats are text, memdebug, torch, kineto, torch-timeline, xplane, rmm, nsys, memdump, pprof, minimalloc, gpumem`},
		{"text as torch", "torch", `in: this is not of the format torch; it is lines "a ID BYTES" and "f ID", of the format text: leave --format out`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Read(context.Background(), strings.NewReader("a 0 100\n"), "in", trace.Options{Format: c.format})
			tracetest.WantInputError(t, err, c.want)
		})
	}
	// What is said of a file that is no recording is said under --format, too.
	_, err := Read(context.Background(), strings.NewReader("\x89PNG\r\n\x1a\n"), "in", trace.Options{Format: "kineto"})
	tracetest.WantInputError(t, err, "in: this is no recording; it is a picture (PNG)")
	// Every format says of every other's file what that is.
	for _, name := range tracetest.Samples(t) {
		data := tracetest.Sample(t, name)
		own := all.Recognise(data)
		for _, f := range all {
			if f.Name == own {
				continue
			}
			tr, err := Read(context.Background(), bytes.NewReader(data), name, trace.Options{Format: f.Name})
			if err == nil {
				tr.Close()
				t.Errorf("%s is read as %s", name, f.Name)
			} else if want := fmt.Sprintf("this is not of the format %s; it is ", f.Name); !strings.Contains(err.Error(), want) {
				t.Errorf("%s as %s: %v", name, f.Name, err)
			}
		}
	}
	_, err = Read(context.Background(), strings.NewReader("?\x04]."), "in", trace.Options{Format: "text"})
	tracetest.WantInputError(t, err, `in:1: "?\x04].": byte 2 of the line is the control character 0x04; this is not a text recording`)
}
