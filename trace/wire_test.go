package trace

// This file is for walking protocol buffers, and for making some: the tests of
// the readers above use what is here.

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// pb is a message that is being made. Each method returns a longer one and leaves
// its own as it is.
type pb []byte

func (m pb) num(field protowire.Number, v uint64) pb {
	return protowire.AppendVarint(protowire.AppendTag(slices.Clip(m), field, protowire.VarintType), v)
}

func (m pb) bytes(field protowire.Number, b []byte) pb {
	return protowire.AppendBytes(protowire.AppendTag(slices.Clip(m), field, protowire.BytesType), b)
}

func (m pb) text(field protowire.Number, s string) pb { return m.bytes(field, []byte(s)) }

func (m pb) fixed(field protowire.Number, v uint64) pb {
	return protowire.AppendFixed64(protowire.AppendTag(slices.Clip(m), field, protowire.Fixed64Type), v)
}

// takenForText is what becomes of data where a tool takes it for UTF-8.
func takenForText(data []byte) []byte {
	var out []byte
	for len(data) > 0 {
		r, n := utf8.DecodeRune(data)
		out = utf8.AppendRune(out, r)
		data = data[n:]
	}
	return out
}

// walkWire walks a whole file whose field 1 is messages, and lists what it has.
func walkWire(data []byte, whole bool) (string, error) {
	// One byte at a time, so that every number and text is cut by a read.
	in := bufio.NewReaderSize(iotest.OneByteReader(bytes.NewReader(data)), headBytes)
	w := newWire(in, "in", func([]byte) bool { return true })
	var out strings.Builder
	var walk func(end int64) error
	walk = func(end int64) error {
		for {
			ok, err := w.next(end)
			if err != nil || !ok {
				return err
			}
			switch {
			case w.typ != protowire.BytesType:
				out.WriteString(string(rune('0'+w.num)) + "n ")
			case w.num == 1:
				out.WriteString("{ ")
				var inner int64
				if inner, err = w.inner(); err == nil {
					err = walk(inner)
				}
				out.WriteString("} ")
			case whole:
				var b []byte
				b, err = w.take("a text")
				out.WriteString(string(b) + " ")
			default:
				err = w.skip()
			}
			if err != nil {
				return err
			}
		}
	}
	err := walk(toEOF)
	return strings.TrimSpace(out.String()), err
}

func TestWire(t *testing.T) {
	good := pb{}.bytes(1, pb{}.num(2, 300).text(3, "inner").bytes(1, nil)).fixed(4, 7).text(5, "outer")
	good = protowire.AppendFixed32(protowire.AppendTag(good, 6, protowire.Fixed32Type), 9)
	for _, whole := range []bool{true, false} {
		want := "{ 2n { } } 4n 6n"
		if whole {
			want = "{ 2n inner { } } 4n outer 6n"
		}
		got, err := walkWire(good, whole)
		if err != nil || got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	const again = "; copy the file again"
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"cut in a tag", append(pb{}.num(2, 1), 0x88), "in: byte 3: the file is cut short here" + again},
		{"cut in a number", append(pb{}.num(2, 1), 0x18, 0x80), "in: byte 4: the file is cut short here" + again},
		{"cut in a text", pb{}.text(2, "four")[:4], "in: byte 4: the file is cut short here" + again},
		{"cut in a fixed number", pb{}.num(2, 1).fixed(4, 7)[:6], "in: byte 3: the file is cut short here" + again},
		{"number of 65 bits", append(pb{}.num(2, 1), 0x18, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2), "in: byte 2: damaged: a number has more than 64 bits" + again},
		{"field 0", append(pb{}.num(2, 1), 0x00, 1), "in: byte 2: damaged: no field begins with 0" + again},
		{"group", append(pb{}.num(2, 1), 0x1b), "in: byte 2: damaged: field 3 is of the kind 3, which is not in use" + again},
		{"text beyond its message", pb{}.bytes(1, pb{}.text(2, "four")[:4]).num(3, 1).num(3, 1), "in: byte 2: damaged: field 2 goes beyond the message that it is in" + again},
		{"number beyond its message", pb{}.bytes(1, pb{}.num(2, 300)[:2]).num(3, 1), "in: byte 2: damaged: field 2 goes beyond the message that it is in" + again},
		{"huge length", append(pb{}.num(2, 1), 0x1a, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1), "in: byte 2: damaged: field 3 goes beyond the message that it is in" + again},
		{"a long text", pb{}.num(2, 1).text(3, strings.Repeat("x", maxTake+1)), "in: byte 2: damaged: a text of 65537 bytes" + again},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := walkWire(c.data, true)
			wantInputError(t, err, c.want)
		})
	}
	// What is skipped may have any length.
	if _, err := walkWire(pb{}.text(3, strings.Repeat("x", 3*maxTake)), false); err != nil {
		t.Error(err)
	}
}

func TestTextHarm(t *testing.T) {
	long := strings.Repeat("é", maxTake)
	for _, c := range []struct {
		name, data string
		want       int64
	}{
		{"empty", "", 0},
		{"ASCII", "abc", 0},
		{"binary", "ab\x80c", 0},
		{"binary with such a character", "ab\ufffd\x80c", 0},
		{"text", "ab\ufffdc\ufffd", 2},
		{"text cut in a character", "a\ufffdb\xef\xbf", 1},
		{"long text cut in a character", "a\ufffd" + long[:maxTake-5], 1},
		{"long text", long[:maxTake], 0},
	} {
		if got := textHarm([]byte(c.data)); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// profiles are what the frameworks wrote for testdata/make_profiles.py.
var profiles = map[string]string{
	"tensorflow.xplane.pb": "xplane",
	"tensorflow.memdump":   "memdump",
	"jax.pprof":            "pprof",
}

// profile is the content of one of profiles.
func profile(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if data[0] == 0x1f {
		return unzipFile(t, filepath.Join("testdata", name))
	}
	return data
}

// TestProfilesDamaged: a file cut anywhere, one with any byte changed and one
// taken for text give an *Error or a consistent trace, and the last a way out.
func TestProfilesDamaged(t *testing.T) {
	for name, format := range profiles {
		t.Run(name, func(t *testing.T) {
			data := profile(t, name)
			try := func(what string, at int, data []byte) error {
				tr, err := Read(context.Background(), bytes.NewReader(data), "in", Options{Format: format})
				if err != nil {
					if !isInput(err) {
						t.Fatalf("%s %d: %v", what, at, err)
					}
					return err
				}
				defer tr.Close()
				if err := checkTrace(tr); err != nil {
					t.Fatalf("%s %d: %v", what, at, err)
				}
				return nil
			}
			if err := try("whole", 0, data); err != nil {
				t.Fatal(err)
			}
			refused := 0
			for n := range data {
				if try("cut to", n, data[:n]) != nil {
					refused++
				}
				bad := bytes.Clone(data)
				bad[n] ^= 1 << (n % 8)
				try("changed at", n, bad)
			}
			// The end of a field is as good as the end of the file: the format
			// has no other.
			if refused < len(data)*3/4 {
				t.Errorf("only %d of %d cut files were refused", refused, len(data))
			}
			err := try("text", 0, takenForText(data))
			if err == nil || !strings.Contains(err.Error(), "the file was taken for text on its way") {
				t.Errorf("got %v", err)
			}
			_, err = readString(string(takenForText(data))) // recognised nevertheless
			if err == nil || !strings.Contains(err.Error(), "the file was taken for text on its way") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestProfilesCancel: the end of the context ends the reading, also between the
// reading of a file and the end of Open, and nothing is left behind.
func TestProfilesCancel(t *testing.T) {
	for name, format := range profiles {
		if format == "xplane" {
			continue // below
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		f, err := formatNamed("in", format)
		if err != nil {
			t.Fatal(err)
		}
		err = f.read(ctx, bufio.NewReaderSize(bytes.NewReader(profile(t, name)), headBytes), newBuilder("in", format, Options{}))
		if !errors.Is(err, context.Canceled) || isInput(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	x := &xpStream{perLine: 20_000}
	for _, after := range []int64{1, x.size() / 2, x.size()} {
		dir := t.TempDir()
		ctx, cancel := context.WithCancel(context.Background())
		x := &xpStream{perLine: x.perLine}
		tr, err := Read(ctx, x, "in", Options{SpoolLimit: -1, TempDir: dir, Progress: func(read, _ int64) {
			if read >= after {
				cancel()
			}
		}})
		cancel()
		if err == nil { // the last word on progress comes when all is done
			tr.Close()
		} else if !errors.Is(err, context.Canceled) || isInput(err) {
			t.Errorf("after %d bytes: %v", after, err)
		}
		if after < x.size() && err == nil {
			t.Errorf("after %d of %d bytes: no error", after, x.size())
		}
		if got := left(t, dir); len(got) > 0 {
			t.Errorf("left behind: %v", got)
		}
	}
	// While the events are sorted and played.
	for _, n := range []int{1, 4, 6} { // of about 10 looks
		ctx, cancel := context.WithCancel(context.Background())
		p := &xplanePlay{b: newBuilder("in", "xplane", Options{})}
		p.pool("p")
		l := newMemEvents(&spool{limit: 1 << 20})
		for i := range 20_000 {
			if err := l.add(memEvent{ns: uint64(i), op: Op(i % 2), addr: 1}); err != nil {
				t.Fatal(err)
			}
		}
		err := p.run(&endsAfter{Context: ctx, cancel: cancel, left: n}, l)
		cancel()
		if !errors.Is(err, context.Canceled) || isInput(err) {
			t.Errorf("at event %d: %v", n, err)
		}
	}
}

// endsAfter is a context that ends when it has been asked some times.
type endsAfter struct {
	context.Context
	cancel context.CancelFunc
	left   int
}

func (e *endsAfter) Err() error {
	if e.left--; e.left == 0 {
		e.cancel()
	}
	return e.Context.Err()
}

// TestProfilesSource: a source that fails and a temporary folder that is not
// there are told.
func TestProfilesSource(t *testing.T) {
	broken := errors.New("the disk is on fire")
	for name, format := range profiles {
		data := profile(t, name)
		for _, n := range []int{0, 1, 20, len(data) / 2, len(data)} {
			in := io.MultiReader(bytes.NewReader(data[:n]), iotest.ErrReader(broken))
			_, err := Read(context.Background(), in, "in", Options{Format: format})
			if !errors.Is(err, broken) || !isInput(err) {
				t.Errorf("%s after %d bytes: %v", name, n, err)
			}
		}
		_, err := Read(context.Background(), bytes.NewReader(data), "in", Options{SpoolLimit: -1, TempDir: filepath.Join(t.TempDir(), "none")})
		if err == nil || isInput(err) || !strings.Contains(err.Error(), "set TMPDIR") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
