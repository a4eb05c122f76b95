package wire_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/iotest"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/internal/input"
	"gpumem/record/internal/test/tracetest"
	"gpumem/record/internal/wire"
)

const maxTake = input.MaxLine

// walkWire walks a whole file whose field 1 is messages, and lists what it has.
func walkWire(data []byte, whole bool) (string, error) {
	// One byte at a time, so that every number and text is cut by a read.
	in, err := input.New(context.Background(), iotest.OneByteReader(bytes.NewReader(data)), "in", input.Options{})
	if err != nil {
		return "", err
	}
	defer in.Close()
	_, m, err := wire.Read(in, func([]byte) bool { return true })
	if err != nil {
		return "", err
	}
	var out strings.Builder
	var visit func(m *wire.Message)
	visit = func(m *wire.Message) {
		for m.Next() {
			switch {
			case m.Type == protowire.VarintType:
				m.Number()
				fallthrough
			case m.Num == 4 || m.Num == 6:
				out.WriteString(string(rune('0'+m.Num)) + "n ")
			case m.Num == 1:
				out.WriteString("{ ")
				visit(m.Message())
				out.WriteString("} ")
			case whole:
				out.WriteString(string(m.Take("a text")) + " ")
			}
		}
	}
	visit(m)
	return strings.TrimSpace(out.String()), m.Err()
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
		{"cut in a fixed number", tracetest.PB{}.Num(2, 1).Fixed(4, 7)[:6], "in: byte 6: the file is cut short here" + again},
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

// The examples of protobuf.dev/programming-guides/encoding, and the ends of each length.
var varints = []struct {
	bytes string
	want  uint64
}{
	{"\x00", 0},
	{"\x01", 1},
	{"\x7f", 127},
	{"\x80\x01", 128},
	{"\x96\x01", 150},
	{"\xac\x02", 300},
	{"\xff\x7f", 16383},
	{"\x80\x80\x01", 16384},
	{"\x80\x80\x80\x80\x10", 1 << 32},
	{"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", 1<<64 - 2}, // int64 -2
	{"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 1<<64 - 1},
	{"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", 1 << 63},
}

// A number is read to its last bit, from a file and from memory, and what follows it
// where it ends.
func TestNumbersAreReadToTheLastBit(t *testing.T) {
	for _, c := range varints {
		data := []byte("\x10" + c.bytes + "\x18\x05") // fields 2 and 3
		in, err := input.New(context.Background(), bytes.NewReader(data), "in", input.Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, m, err := wire.Read(in, func([]byte) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		got, at := map[protowire.Number]uint64{}, map[protowire.Number]int64{}
		for m.Next() {
			at[m.Num] = m.At
			got[m.Num] = m.Number()
		}
		if m.Err() != nil || got[2] != c.want || got[3] != 5 || at[3] != int64(1+len(c.bytes)) {
			t.Errorf("% x: a file has %v at %v, %v", c.bytes, got, at, m.Err())
		}
		clear(got)
		alone := wire.NewMessage(data)
		for alone.Next() {
			got[alone.Num] = alone.Value
		}
		if alone.Err() != nil || got[2] != c.want || got[3] != 5 {
			t.Errorf("% x: a message has %v, %v", c.bytes, got, alone.Err())
		}
	}
}

// A message in memory ends where its last field does; anything else is bad.
func TestMessageEnds(t *testing.T) {
	for _, c := range []struct {
		data   string
		fields int
		bad    bool
	}{
		{"", 0, false},
		{"\x08\x01\x12\x02ab", 2, false},
		{"\x0d\x01\x02\x03\x04\x11\x01\x02\x03\x04\x05\x06\x07\x08\x08\x01", 3, false}, // fixed numbers of 4 and 8 bytes
		{"\x08\x01\x12\x03ab", 1, true},
		{"\x08\x01\x0d\x01\x02\x03", 1, true},
		{"\x08\x01\x08\x80", 1, true},
		{"\x08\x01\x80", 1, true},
		{"\x08\x01\x00\x01", 1, true}, // field 0
		{"\x08\x01\x0c", 1, true},     // the end of no group
	} {
		m := wire.NewMessage([]byte(c.data))
		n := 0
		for m.Next() {
			n++
		}
		if n != c.fields || (m.Err() != nil) != c.bad || m.Next() {
			t.Errorf("% x: %d fields, %v", c.data, n, m.Err())
		}
	}
}
