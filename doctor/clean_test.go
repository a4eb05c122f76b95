package doctor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf16"

	"pgregory.net/rapid"
)

// encode16 is text in UTF-16 with a mark: the slow obvious way.
func encode16(text string, order binary.AppendByteOrder) []byte {
	out := order.AppendUint16(nil, 0xfeff)
	for _, unit := range utf16.Encode([]rune(text)) {
		out = order.AppendUint16(out, unit)
	}
	return out
}

func TestDecoded(t *testing.T) {
	little := func(text string) string { return string(encode16(text, binary.LittleEndian)) }
	big := func(text string) string { return string(encode16(text, binary.BigEndian)) }
	tests := []struct{ name, in, want string }{
		{"nothing", "", ""},
		{"one byte", "x", "x"},
		{"two bytes", "xy", "xy"},
		{"plain", "step 1\r\nstep 2", "step 1\r\nstep 2"},
		{"bytes of any kind", "\xff\x00\xfe\x1b", "\xff\x00\xfe\x1b"},
		{"half a mark", "\xef\xbb", "\xef\xbb"},
		{"a mark alone", "\xef\xbb\xbf", ""},
		{"utf-8 with a mark", "\xef\xbb\xbfstep 1", "step 1"},
		{"a mark within", "x\xef\xbb\xbf", "x\xef\xbb\xbf"},
		{"little endian", little("step 1\r\nHöhe 🚀\n"), "step 1\r\nHöhe 🚀\n"},
		{"big endian", big("step 1\r\nHöhe 🚀\n"), "step 1\r\nHöhe 🚀\n"},
		{"little endian, a mark alone", little(""), ""},
		{"big endian, a mark alone", big(""), ""},
		{"an odd byte", little("x") + "y", "x\ufffd"},
		{"an odd byte alone", "\xff\xfey", "\ufffd"},
		{"half a pair at the end", little("x") + "\x3d\xd8", "x\ufffd"},
		{"half a pair and an odd byte", little("x") + "\x3d\xd8y", "x\ufffd\ufffd"},
		{"a first half before a letter", little("x") + "\x3d\xd8y\x00", "x\ufffdy"},
		{"a second half alone", little("x") + "\x00\xdey\x00", "x\ufffdy"},
		{"two first halves, then a second", little("") + "\x3d\xd8\x3d\xd8\x80\xde", "\ufffd🚀"},
		{"zero", little("\x00"), "\x00"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for name, in := range map[string]io.Reader{"": strings.NewReader(tt.in), "by bytes": iotest.OneByteReader(strings.NewReader(tt.in)), "its end with the data": iotest.DataErrReader(strings.NewReader(tt.in))} {
				if got, err := io.ReadAll(decoded(in)); err != nil || string(got) != tt.want {
					t.Errorf("%s: %q, %v, want %q", name, got, err, tt.want)
				}
			}
		})
	}
}

// TestDecodedError: what came before an error is given, then the error.
func TestDecodedError(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct{ in, want string }{
		{"", ""}, {"x", "x"}, {"step", "step"}, {"\xff\xfe", ""}, {"\xff\xfex", "\ufffd"}, {"\xff\xfex\x00", "x"}, {"\xfe\xff\x00x\x00y", "xy"},
	} {
		got, err := io.ReadAll(decoded(io.MultiReader(strings.NewReader(tt.in), iotest.ErrReader(broken))))
		if !errors.Is(err, broken) || string(got) != tt.want {
			t.Errorf("%q: %q, %v", tt.in, got, err)
		}
	}
}

func TestDecodedRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text") + strings.Repeat("é🚀x", rapid.IntRange(0, 3000).Draw(t, "long"))
		var in io.Reader = bytes.NewReader(encode16(text, rapid.SampledFrom([]binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian}).Draw(t, "order")))
		if rapid.Bool().Draw(t, "in halves") {
			in = iotest.HalfReader(in)
		}
		if err := iotest.TestReader(decoded(in), []byte(text)); err != nil {
			t.Fatal(err)
		}
	})
}

func BenchmarkDecoded(b *testing.B) {
	text := strings.Repeat("step 1234 loss 0.1234 throughput 1234.5 tokens/s\n", 1e4)
	for _, in := range []struct {
		name string
		log  []byte
	}{{"utf-8", []byte(text)}, {"utf-16", encode16(text, binary.LittleEndian)}} {
		b.Run(in.name, func(b *testing.B) {
			b.SetBytes(int64(len(in.log)))
			for b.Loop() {
				_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, decoded(bytes.NewReader(in.log)), make([]byte, 256<<10))
			}
		})
	}
}
