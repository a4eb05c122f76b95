package torch

// The pickle machine: every opcode that is data, every one that
// is refused, and damage of all kinds.

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"gpumem/record/internal/test/tracetest"
)

func unpickleString(s string) (any, error) {
	v, _, err := unpickleFrom(strings.NewReader(s), "p")
	return v, err
}

// showTree writes a tree as Python would, lists for all that is like a list.
func showTree(v any, depth int) string {
	if depth > 20 {
		return "..."
	}
	switch v := v.(type) {
	case *list:
		var parts []string
		for _, it := range v.items {
			parts = append(parts, showTree(it, depth+1))
		}
		return "[" + strings.Join(parts, " ") + "]"
	case *dict:
		var parts []string
		for _, it := range v.items {
			parts = append(parts, showTree(it.key, depth+1)+":"+showTree(it.value, depth+1))
		}
		return "{" + strings.Join(parts, " ") + "}"
	case string:
		return fmt.Sprintf("%q", v)
	case wideInt:
		return "wide"
	case float64:
		return fmt.Sprintf("%gf", v)
	}
	return fmt.Sprint(v)
}

func TestPickle(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"none and bools", "\x80\x02(N\x88\x89l.", "[<nil> true false]"},
		{"small ints", "(K\xffM\xff\xffJ\xff\xff\xff\xffJ\x00\x00\x00\x80l.", "[255 65535 -1 -2147483648]"},
		{"longs", "(\x8a\x00\x8a\x01\xff\x8a\x02\xff\x00\x8a\x06\x00\x00\x00\x00\x00\x7f\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80l.",
			"[0 -1 255 139637976727552 -9223372036854775808]"},
		{"longs at 2^63", "(\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00l.",
			"[9223372036854775808 18446744073709551615]"},
		{"longs not in shortest form", "(\x8a\x09\x07\x00\x00\x00\x00\x00\x00\x00\x00\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\xffl.", "[7 -1]"},
		{"wide longs", "(\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01\x8a\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\xffl.", "[wide wide wide]"},
		{"long with 4-byte length", "(\x8b\x00\x00\x00\x00\x8b\x02\x00\x00\x00\x00\x01\x8b\x0b\x00\x00\x0012345678901l.", "[0 256 wide]"},
		{"float", "(G\x3f\xf8\x00\x00\x00\x00\x00\x00l.", "[1.5f]"},
		{"unicode", "(\x8c\x02\xc3\xa9X\x01\x00\x00\x00x\x8d\x01\x00\x00\x00\x00\x00\x00\x00yl.", `["é" "x" "y"]`},
		{"old strings", "(U\x01aT\x01\x00\x00\x00bl.", `["a" "b"]`},
		{"bytes", "(C\x01aB\x01\x00\x00\x00b\x8e\x01\x00\x00\x00\x00\x00\x00\x00c\x96\x01\x00\x00\x00\x00\x00\x00\x00dl.", `["a" "b" "c" "d"]`},
		{"tuples", "()K\x01\x85K\x01K\x02\x86K\x01K\x02K\x03\x87(K\x04tl.", "[[] [1] [1 2] [1 2 3] [4]]"},
		{"lists", "]K\x01a(K\x02K\x03e.", "[1 2 3]"},
		{"empty list of nothing", "(l.", "[]"},
		{"dicts", "}K\x01K\x02s(K\x03K\x04K\x05K\x06u.", "{1:2 3:4 5:6}"},
		{"dict from mark", "(K\x01K\x02d.", "{1:2}"},
		{"sets", "\x8f(K\x01K\x02\x90.", "[1 2]"},
		{"frozenset", "(K\x01K\x02\x91.", "[1 2]"},
		{"memo", "(K\x07\x94K\x08q\x01K\x09r\x02\x00\x00\x00h\x00h\x01j\x02\x00\x00\x00l.", "[7 8 9 7 8 9]"},
		{"memo far away", "(K\x07r\xff\xff\xff\xff0j\xff\xff\xff\xffl.", "[7]"},
		{"memo overwritten", "(K\x07q\x00K\x08q\x00h\x00l.", "[7 8 8]"},
		{"shared and not copied", "(]q\x00h\x00K\x01al.", "[[1] [1]]"},
		{"pop and dup", "(K\x01K\x02020l.", "[1]"},
		{"pop of a mark", "K\x01(0.", "1"},
		{"pop mark", "K\x01(K\x02K\x031.", "1"},
		{"frame is only a hint", "\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff].", "[]"},
		{"list in itself", "]\x94h\x00a.", strings.Repeat("[", 21) + "..." + strings.Repeat("]", 21)},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := unpickleString(c.in)
			if err != nil {
				t.Fatal(err)
			}
			if got := showTree(v, 0); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestPickleErrors(t *testing.T) {
	const cut = "the pickle ends before its STOP opcode; the file is cut short"
	for _, c := range []struct{ name, in, want string }{
		{"empty", "", "p: " + cut},
		{"no stop", "]", "p: byte 1: " + cut},
		{"cut in a number", "]J\x01", "p: byte 3: " + cut},
		{"cut in a string", "]X\x05\x00\x00\x00abc", "p: byte 9: " + cut},
		{"string of 4 GiB", "]X\xff\xff\xff\xffabc", "p: byte 9: " + cut},
		{"string of 2^64", "]\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc", "p: byte 13: " + cut},
		{"bytearray of 2^63", "]\x96\x00\x00\x00\x00\x00\x00\x00\x80abc", "p: byte 13: " + cut},
		{"long of 2 GiB", "]\x8b\xff\xff\xff\x7fabc", "p: byte 9: " + cut},
		{"long of less than nothing", "]\x8b\xff\xff\xff\xffabc", "p: byte 9: " + cut},
		{"stop with nothing", ".", "p: the opcode finds nothing on the stack; the pickle is damaged"},
		{"pop of nothing", "K\x0100.", "p: byte 3: the opcode finds nothing on the stack; the pickle is damaged"},
		{"dup of nothing", "](2.", "p: byte 2: the opcode finds nothing on the stack; the pickle is damaged"},
		{"below the mark", "]K\x01(a.", "p: byte 4: the opcode finds nothing on the stack; the pickle is damaged"},
		{"tuple of too few", "K\x01\x86.", "p: byte 2: the opcode finds fewer than 2 values on the stack; the pickle is damaged"},
		{"tuple across the mark", "K\x01(K\x02\x86.", "p: byte 5: the opcode finds fewer than 2 values on the stack; the pickle is damaged"},
		{"no mark", "]K\x01e.", "p: byte 3: the opcode finds no MARK on the stack; the pickle is damaged"},
		{"append to a number", "K\x01K\x02a.", "p: byte 4: the opcode adds to something that is not a list; the pickle is damaged"},
		{"items of a list", "](K\x01K\x02u.", "p: byte 6: the opcode sets items of something that is not a dict, or a key has no value; the pickle is damaged"},
		{"key without a value", "}(K\x01u.", "p: byte 4: the opcode sets items of something that is not a dict, or a key has no value; the pickle is damaged"},
		{"memo of nothing", "\x94.", "p: the opcode finds nothing on the stack; the pickle is damaged"},
		{"memo number not there", "]h\x01.", "p: byte 1: the memo has no number 1; the pickle is damaged"},
		{"protocol 6", "\x80\x06].", "p: the pickle has protocol 6; this version reads 2 to 5"},
		{"not an opcode", "]\xff.", "p: byte 1: 0xff is not an opcode that pickle protocols 2 to 5 write; the file is damaged"},
		{"a text opcode", "]I7\na.", "p: byte 1: 0x49 is not an opcode that pickle protocols 2 to 5 write; the file is damaged"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := unpickleString(c.in)
			tracetest.WantInputError(t, err, c.want)
		})
	}
}

// TestPickleRefusesCode: each opcode that is not data is named.
func TestPickleRefusesCode(t *testing.T) {
	if len(codeOpcodes) != 15 {
		t.Errorf("%d opcodes are refused; pickletools knows 15 that are not data", len(codeOpcodes))
	}
	for op, name := range codeOpcodes {
		_, err := unpickleString("\x80\x04](" + string([]byte{op}) + "rest\nof\nit.")
		tracetest.WantInputError(t, err, fmt.Sprintf("p: byte 4: opcode 0x%02x (%s) is not data: it would run or load something; only pickles of plain data are read", op, name))
	}
	// What pickle.dumps gives for an object whose __reduce__ is os.system.
	const reduce = "\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x02id\x94\x85\x94R\x94."
	_, err := unpickleString(reduce)
	tracetest.WantInputError(t, err, "p: byte 28: opcode 0x93 (STACK_GLOBAL) is not data: it would run or load something; only pickles of plain data are read")
}

// TestPickleBuffers: strings and numbers across the edges of the buffer.
func TestPickleBuffers(t *testing.T) {
	long := strings.Repeat("abcdefg", pickleBuffer/3)
	n := len(long)
	var b strings.Builder
	b.WriteString("](X" + string([]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}) + long)
	var want []string
	for i := range 3 * pickleBuffer / 9 {
		b.WriteString("\x8a\x07" + string([]byte{byte(i), byte(i >> 8), 0, 0, 0, 0, 1}))
		want = append(want, fmt.Sprint(int64(1)<<48+int64(i)))
	}
	b.WriteString("e.")
	in := b.String()
	for name, r := range map[string]func() (any, bool, error){
		"at once": func() (any, bool, error) { return unpickleFrom(strings.NewReader(in), "p") },
		"bytes":   func() (any, bool, error) { return unpickleFrom(iotest.OneByteReader(strings.NewReader(in)), "p") },
		"EOF with the last bytes": func() (any, bool, error) {
			return unpickleFrom(iotest.DataErrReader(strings.NewReader(in)), "p")
		},
	} {
		v, more, err := r()
		if err != nil || more {
			t.Fatalf("%s: %v, more %v", name, err, more)
		}
		items := v.(*list).items
		if items[0] != long || fmt.Sprint(items[1:]) != fmt.Sprint(want) {
			t.Errorf("%s: %d items", name, len(items))
		}
	}
	broken := errors.New("broken")
	_, _, err := unpickleFrom(iotest.ErrReader(broken), "p")
	if !errors.Is(err, broken) {
		t.Errorf("a failing reader: %v", err)
	}
}

// TestPickleLies: a length in a damaged file does not make memory.
func TestPickleLies(t *testing.T) {
	for _, in := range []string{
		"X\xff\xff\xff\xffabc", "\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc", "B\xff\xff\xff\xffabc", "\x96\xff\xff\xff\xff\xff\x00\x00\x00abc",
		"\x8b\xff\xff\xff\x7fabc", "\x95\xff\xff\xff\xff\xff\xff\xff\x7f", "Nr\xff\xff\xff\xff", "T\xff\xff\xff\xff",
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := unpickleString(in)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; err == nil || n > 4*pickleBuffer+256<<10 {
			t.Errorf("%q: %d bytes allocated, error %v", in, n, err)
		}
	}
}

// TestPickleDeep: nesting of a million levels neither overflows a stack nor
// takes long.
func TestPickleDeep(t *testing.T) {
	const n = 1_000_000
	v, err := unpickleString(strings.Repeat("](", n) + "N" + strings.Repeat("e", n) + ".")
	if err != nil {
		t.Fatal(err)
	}
	depth := 0
	for {
		l, ok := v.(*list)
		if !ok {
			break
		}
		v = l.items[0]
		depth++
	}
	if depth != n {
		t.Errorf("depth %d", depth)
	}
	if _, err := unpickleString(strings.Repeat("(", n)); err == nil {
		t.Error("only marks: no error")
	}
}

func TestDictGet(t *testing.T) {
	for _, n := range []int{3, indexAbove, indexAbove + 1, 1000} {
		d := &dict{}
		for i := range n {
			d.items = append(d.items, item{fmt.Sprint("k", i%(n-1)), int64(i)}, item{int64(i), nil})
		}
		for i := range n - 1 {
			want := int64(i)
			if i == 0 {
				want = int64(n - 1) // the later one wins
			}
			if v, ok := d.get(fmt.Sprint("k", i)); !ok || v != want {
				t.Errorf("%d items: k%d is %v, want %d", n, i, v, want)
			}
		}
		if _, ok := d.get("other"); ok {
			t.Error("found what is not there")
		}
	}
}

// FuzzPickle: any bytes give a tree or an *Error.
func FuzzPickle(f *testing.F) {
	for _, name := range snapshots {
		data, err := os.ReadFile(filepath.Join("..", "..", "trace", "testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("\x80\x04(]}\x8f)\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00G\x3f\xf8\x00\x00\x00\x00\x00\x00t."))
	f.Fuzz(func(t *testing.T, in []byte) {
		v, _, err := unpickleFrom(bytes.NewReader(in), "p")
		if err != nil {
			if !tracetest.IsInput(err) {
				t.Fatalf("%v is not an *Error", err)
			}
			return
		}
		showValue(t, v)
	})
}

// showValue checks that the root is one of the kinds that the readers expect.
func showValue(t *testing.T, v any) {
	switch v.(type) {
	case nil, bool, int64, uint64, wideInt, float64, string, *list, *dict:
	default:
		t.Fatalf("a value of type %T", v)
	}
}

// TestPickleOfEmptyValuesIsBounded: an opcode of one byte must not cost a hundred bytes of
// memory, however many there are.
func TestPickleOfEmptyValuesIsBounded(t *testing.T) {
	const n = 10 << 20
	for name, opcodes := range map[string]string{"dicts": "}", "lists": "]", "tuples": ")", "nones": "N", "a memo": "N\x94", "dicts that are dropped": "}0"} {
		t.Run(name, func(t *testing.T) {
			text := "\x80\x04" + strings.Repeat(opcodes, n/len(opcodes)) + "."
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := unpickleString(text)
			runtime.ReadMemStats(&after)
			if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "values in") {
				t.Errorf("error: %v", err)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 40*n { // of which half is garbage of slices that grew
				t.Errorf("%d bytes of memory were allocated for %d", took, n)
			}
		})
	}
}
