package wire_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/iotest"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/internal/input"
	"gpumem/internal/test/tracetest"
	"gpumem/internal/wire"
	"gpumem/trace"
)

const maxTake = input.MaxLine

// walkWire walks a whole file whose field 1 is messages, and lists what it has.
func walkWire(data []byte, whole bool) (string, error) {
	// One byte at a time, so that every number and text is cut by a read.
	in, err := input.New(context.Background(), iotest.OneByteReader(bytes.NewReader(data)), "in", input.Options{Error: func(e *input.Error) error { return (*trace.Error)(e) }})
	if err != nil {
		return "", err
	}
	defer in.Close()
	w := wire.NewStream(in, func([]byte) bool { return true })
	var out strings.Builder
	var visit func(field protowire.Number) error
	visit = func(field protowire.Number) error {
		if _, err := w.Number(); err == nil || field == 4 || field == 6 {
			out.WriteString(string(rune('0'+field)) + "n ")
			return nil
		}
		if field == 1 {
			out.WriteString("{ ")
			err := w.Within(visit)
			out.WriteString("} ")
			return err
		}
		if !whole {
			return nil
		}
		b, err := w.Take("a text")
		out.WriteString(string(b) + " ")
		return err
	}
	err = w.Fields(visit)
	return strings.TrimSpace(out.String()), err
}

func TestWire(t *testing.T) {
	good := tracetest.PB{}.Bytes(1, tracetest.PB{}.Num(2, 300).Text(3, "inner").Bytes(1, nil)).Fixed(4, 7).Text(5, "outer")
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
		{"cut in a tag", append(tracetest.PB{}.Num(2, 1), 0x88), "in: byte 3: the file is cut short here" + again},
		{"cut in a number", append(tracetest.PB{}.Num(2, 1), 0x18, 0x80), "in: byte 4: the file is cut short here" + again},
		{"cut in a text", tracetest.PB{}.Text(2, "four")[:4], "in: byte 4: the file is cut short here" + again},
		{"cut in a fixed number", tracetest.PB{}.Num(2, 1).Fixed(4, 7)[:6], "in: byte 3: the file is cut short here" + again},
		{"number of 65 bits", append(tracetest.PB{}.Num(2, 1), 0x18, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2), "in: byte 2: damaged: a number has more than 64 bits" + again},
		{"field 0", append(tracetest.PB{}.Num(2, 1), 0x00, 1), "in: byte 2: damaged: no field begins with 0" + again},
		{"group", append(tracetest.PB{}.Num(2, 1), 0x1b), "in: byte 2: damaged: field 3 is of the kind 3, which is not in use" + again},
		{"text beyond its message", tracetest.PB{}.Bytes(1, tracetest.PB{}.Text(2, "four")[:4]).Num(3, 1).Num(3, 1), "in: byte 2: damaged: field 2 goes beyond the message that it is in" + again},
		{"number beyond its message", tracetest.PB{}.Bytes(1, tracetest.PB{}.Num(2, 300)[:2]).Num(3, 1), "in: byte 2: damaged: field 2 goes beyond the message that it is in" + again},
		{"huge length", append(tracetest.PB{}.Num(2, 1), 0x1a, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1), "in: byte 2: damaged: field 3 goes beyond the message that it is in" + again},
		{"a long text", tracetest.PB{}.Num(2, 1).Text(3, strings.Repeat("x", maxTake+1)), "in: byte 2: damaged: a text of 65537 bytes" + again},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := walkWire(c.data, true)
			tracetest.WantInputError(t, err, c.want)
		})
	}
	// What is skipped may have any length.
	if _, err := walkWire(tracetest.PB{}.Text(3, strings.Repeat("x", 3*maxTake)), false); err != nil {
		t.Error(err)
	}
}
