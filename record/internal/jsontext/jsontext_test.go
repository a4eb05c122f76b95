package jsontext

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"gpumem/internal/input"
)

// smallest is a buffer that everything that is read in one piece fits in, and not much more.
const smallest = maxScalar + 2

func scanner(t testing.TB, text string, buffer int) *Scanner {
	t.Helper()
	in, err := input.New(t.Context(), iotest.HalfReader(strings.NewReader(text)), "in", input.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.Close)
	return newScanner(in, buffer)
}

// value reads any value with the scanner, as encoding/json has it.
func value(s *Scanner) any {
	switch s.Peek() {
	case '{':
		v := map[string]any{}
		for s.Enter('{'); s.More(); {
			k := string(s.Key())
			v[k] = value(s)
		}
		return v
	case '[':
		v := []any{}
		for s.Enter('['); s.More(); {
			v = append(v, value(s))
		}
		return v
	case '"':
		return string(s.Text())
	}
	switch word := string(s.Scalar()); word {
	case "true", "false":
		return word == "true"
	case "null":
		return nil
	default:
		return json.Number(word)
	}
}

// same compares what is read and what is skipped with encoding/json.
func same(t *testing.T, text string, buffer int) {
	t.Helper()
	s := scanner(t, text, buffer)
	got := value(s)
	ended := s.End()
	skipped := scanner(t, text, buffer)
	skipped.Skip()
	skippedAll := skipped.End()
	if !json.Valid([]byte(text)) {
		return // looser than JSON; it must only end
	}
	var want any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&want); err != nil {
		t.Fatal(err)
	}
	if s.Err() != nil || !ended || !reflect.DeepEqual(got, want) {
		t.Errorf("%q: %v (%v, at its end %v), encoding/json has %v", text, got, s.Err(), ended, want)
	}
	if skipped.Err() != nil || !skippedAll {
		t.Errorf("%q: skipped: %v, at its end %v", text, skipped.Err(), skippedAll)
	}
}

var texts = []string{
	`{}`, `[]`, `""`, `0`, `null`, ` [ 1 , -2.5e+3,true ,false,null ] `,
	`{"a":1,"b":{"c":[{},[],{"d":[[]]}]},"e":"x"}`,
	`{"a" : "b" , "c" :2}`,
	`{"\"a\\":"\u0041\n\ud83d \/"}`,
	`{"` + strings.Repeat("k", 90) + `"      :"` + strings.Repeat("é", 90) + `","b":[]}`,
	`["` + strings.Repeat(`\"`, 200) + `","` + strings.Repeat(`\u00e9`, 50) + `"]`,
	strings.Repeat(`[`, 200) + strings.Repeat(`]`, 200),
	"[" + strings.Repeat(" ", 300) + "1" + strings.Repeat("\n", 300) + "," + strings.Repeat("1234567890", 6) + "]",
}

func TestValuesAreThoseOfEncodingJSON(t *testing.T) {
	for _, text := range texts {
		for buffer := smallest; buffer < 2*smallest; buffer++ { // so that every token is cut everywhere
			same(t, text, buffer)
		}
	}
}

func FuzzScanner(f *testing.F) {
	for _, text := range texts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Count(text, "[")+strings.Count(text, "{") > maxDepth || len(text) > MaxText ||
			strings.Contains(text, `\u`) || !json.Valid([]byte(text)) || hasLongNumber(text) || strings.ToValidUTF8(text, "") != text {
			s := scanner(t, text, smallest)
			value(s)
			s = scanner(t, text, smallest)
			s.Skip()
			return
		}
		same(t, text, smallest)
	})
}

// hasLongNumber reports whether there may be a number that is too long to be read.
func hasLongNumber(text string) bool {
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return r >= 0x80 || !inScalar(byte(r)) }) {
		if len(word) > maxScalar {
			return true
		}
	}
	return false
}

func TestDamageIsSaidWithItsPlace(t *testing.T) {
	for text, want := range map[string]string{
		``:                              `in: the file is cut short: a value is missing; copy the file again`,
		`{"a":1`:                        `in: byte 6: the file is cut short: "}" is missing; copy the file again`,
		`{"a`:                           `in: byte 3: the file is cut short: the end of a string is missing; copy the file again`,
		`{"a\`:                          `in: byte 4: the file is cut short: the end of a string is missing; copy the file again`,
		`{"a" 1}`:                       `in: byte 5: damaged: "1" where ":" should be; copy the file again`,
		`[1 2]`:                         `in: byte 3: damaged: "2" where "]" should be; copy the file again`,
		`[1,]`:                          `in: byte 3: damaged: "]" where another value should be; copy the file again`,
		`[}`:                            `in: byte 1: damaged: "}" where a value should be; copy the file again`,
		`{1:2}`:                         `in: byte 1: damaged: "1" where a string should be; copy the file again`,
		"[\x01]":                        `in: byte 1: damaged: the byte 1 where a value should be; copy the file again`,
		strings.Repeat("[", maxDepth+1): `in: byte 256: damaged: values lie more than 256 deep in each other; copy the file again`,
		"[" + strings.Repeat("1", 80):   `in: byte 1: damaged: "1" where a value should be; copy the file again`,
	} {
		s := scanner(t, text, smallest)
		if value(s); s.Err() == nil || s.Err().Error() != want {
			t.Errorf("%q: %v, want %s", text, s.Err(), want)
		}
	}
}

// A string that is longer than anybody wants is cut, and what stands behind it is read.
func TestLongStringIsCut(t *testing.T) {
	for _, char := range []string{"x", `\n`, "é"} {
		s := scanner(t, `["`+strings.Repeat(char, 3*MaxText)+`",7]`, bufferBytes)
		s.Enter('[')
		s.More()
		n := len(s.Text())
		if n > MaxText || n < MaxText-4 { // no character is cut in two
			t.Errorf("%s: %d bytes", char, n)
		}
		if behind := s.More() && string(s.Scalar()) == "7" && !s.More(); !behind || s.Err() != nil {
			t.Errorf("%s: what stands behind it is not read: %v", char, s.Err())
		}
	}
}

func TestEverySkippedTokenCostsNoMemory(t *testing.T) {
	text := "[" + strings.Repeat(`{"name":"aten::mul","args":{"dims":[[1,2],[3]],"x\n":true}},`, 1000) + "1]"
	in, err := input.New(t.Context(), bytes.NewReader([]byte(text)), "in", input.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	s := New(in)
	s.Enter('[')
	s.More()
	if n := testing.AllocsPerRun(900, func() { s.Skip(); s.More() }); n > 0 {
		t.Errorf("%v allocations a value", n)
	}
	if s.Err() != nil {
		t.Error(s.Err())
	}
}
