package doctor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// quoted is text as a string of JSON, with < > & escaped as Go and others do.
func quoted(text string) string {
	out, err := json.Marshal(text)
	if err != nil {
		panic(err) // there is no such string
	}
	return string(out)
}

// collectors are lines that hold a message.
var collectors = []struct {
	name string
	line func(message string) string
}{
	{"docker", func(m string) string {
		return `{"log":` + quoted(m+"\n") + `,"stream":"stderr","time":"2031-02-03T04:05:06.789Z"}`
	}},
	{"cloud logging", func(m string) string {
		return `{"insertId":"x1","logName":"projects/p/logs/stderr","severity":"ERROR","textPayload":` + quoted(m) + `}`
	}},
	{"cloud logging, printed over lines", func(m string) string { return `    "textPayload": ` + quoted(m) + `,` }},
	{"fields within fields", func(m string) string {
		return `{"jsonPayload": {"level": 3, "message": ` + quoted(m) + `}, "n": [1, 2]}`
	}},
	{"journal", func(m string) string { return `{"PRIORITY":"6","MESSAGE":` + quoted(m) + `}` }},
	{"python's logging", func(m string) string {
		return `{"levelname": "ERROR", "message": "it failed", "exc_info": ` + quoted(m) + `}`
	}},
	{"in docker, a program that logs JSON", func(m string) string { return `{"log":` + quoted(`{"msg":`+quoted(m)+`}`+"\n") + `}` }},
	{"behind a prefix", func(m string) string { return `2031-02-03T04:05:06Z {"message":` + quoted(m) + `}` }},
	{"cut off", func(m string) string { return `{"log":` + strings.TrimSuffix(quoted(m), `"`) }},
	{"colours", func(m string) string { return "\x1b[32m{\"log\"\x1b[0m:\x1b[33m" + quoted(m) + "\x1b[0m}" }},
	{"colours in it", func(m string) string { return `{"log":` + quoted("\x1b[1;31m"+m+"\x1b[0m") + `}` }},
	{"what is no message before it", func(m string) string { return `{"message":7,"log" : "no key","event":{},"msg":` + quoted(m) + `}` }},
}

// inLine gives facts the line 1.
func inLine(all []Fact) []Fact {
	for i := range all {
		all[i].Line = 1
	}
	return all
}

// TestCollected: the facts of a message in JSON are those of its text.
func TestCollected(t *testing.T) {
	for _, c := range collectors {
		t.Run(c.name, func(t *testing.T) {
			for _, tt := range formats {
				if !utf8.ValidString(tt.line) {
					continue // JSON has none
				}
				if d := cmp.Diff(inLine(facts(t, tt.line)), facts(t, c.line(tt.line))); d != "" {
					t.Errorf("%s: %s", tt.name, d)
				}
			}
			// Several in one message, as programs print a traceback.
			text := "step 1\n[rank1]: Limit:      1073741824\r\nW0101 01:02:03.456789 12 client.cc:9] " + refused + "\n\n{'bytes_in_use': 4096}\nInUse:      4096"
			want := inLine(facts(t, text))
			if len(want) != 4 || want[0].From != "rank1" || want[1].Level != "W" {
				t.Fatalf("%+v", want)
			}
			if d := cmp.Diff(want, facts(t, c.line(text))); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestMessages(t *testing.T) {
	message := `"log":"Limit:      4096\nInUse:      2048\n"`
	tests := []struct {
		name, log string
		want      []string // line, writer and text
	}{
		{"a line each", `{"log":"Limit:      4096\n"}` + "\n" + `{"log":"InUse:      2048\n"}`, []string{"1  Limit:      4096", "2  InUse:      2048"}},
		{"two messages", `{"message":"Limit:  4096","error":"InUse:  2048"}`, []string{"1  Limit:  4096", "1  InUse:  2048"}},
		{"beside it", `{"bytes_in_use": 4096, ` + message + `, "bytes_in_use": 2048}`,
			[]string{`1  {"bytes_in_use": 4096,`, "1  Limit:      4096", "1  InUse:      2048", `1  , "bytes_in_use": 2048}`}},
		{"who wrote the line", `worker-1  | {` + message + `}`, []string{"1 worker-1 Limit:      4096", "1 worker-1 InUse:      2048"}},
		{"who wrote the message", `worker-1  | {"log":"[rank3]: Limit:  4096\n"}`, []string{"1 rank3 Limit:  4096"}},
		{"in Python's quotes", `[rank1]: {'log': 'it failed\nLimit:   4096\nInUse:  2048\n'}`, []string{"1 rank1 Limit:   4096", "1 rank1 InUse:  2048"}},
		{"under another key", `{"output":"it failed\nLimit:   4096\n[rank2]: InUse:  2048\n"}`, []string{"1  Limit:   4096", "1 rank2 InUse:  2048"}},
		{"an error's repr", `RuntimeError('` + refused + `\n')`, []string{`1  RuntimeError('` + refused}},
		{"escaped twice", `{"log":"E('it failed\\nLimit:   4096\\n')\n"}`, []string{"1  Limit:   4096"}},
		{"too deep", `{"log":` + quoted(`{"log":`+quoted(`{"log":`+quoted(`{"log":"`+refused+`"}`)+`}`)+`}`) + `}`, []string{`1  {"log":"` + refused + `"}`}},
		{"a table", `{"log":` + quoted("|   2  Some Card   On  | 00000000:1A:00.0 Off |      0 |\n| 30%   45C    P2    90W / 300W |   1000MiB / 8192MiB |     12%      Default |") + `}`,
			[]string{"1  GPU 2", "1  GPU 2", "1  GPU 2"}},
		{"a table by lines", `{"log":` + quoted("|   2  Some Card   On  | 00000000:1A:00.0 Off |      0 |\n") + `,"stream":"stdout"}` + "\n" + `{"log":` + quoted("| 30%   45C    P2    90W / 300W |   1000MiB / 8192MiB |     12%      Default |\n") + `,"stream":"stdout"}`,
			[]string{"1  GPU 2", "1  GPU 2", "2  GPU 2"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, f := range facts(t, tt.log) {
				text := f.Text
				if f.Device >= 0 {
					text = fmt.Sprintf("GPU %d", f.Device)
				}
				got = append(got, fmt.Sprintf("%d %s %s", f.Line, f.From, text))
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestManyMessages: the work for a line of nothing but messages is bounded, or
// this does not end.
func TestManyMessages(t *testing.T) {
	for _, unit := range []string{`"log":`, `"log":"`, `"log":"x",`, `"log":"\`, `"log":"\"log\":\"x\""`, `"log":"InUse:  1\n`, `InUse:  1\n`, `\n`} {
		facts(t, strings.Repeat(unit, bufferSize/len(unit)))
	}
}

func TestUnquote(t *testing.T) {
	tests := []struct{ in, want, rest string }{
		{``, ``, ``},
		{`"`, ``, ``},
		{`a"b`, `a`, `b`},
		{`a\"b"c"`, `a"b`, `c"`},
		{`\\"n`, `\`, `n`},
		{`\n\t\r\/"`, "\n\t\r/", ``},
		{`\b\f"`, "  ", ``},
		{`\u003c\u003C"`, "<<", ``},
		{`\u00e9\u20ac"`, "é€", ``},
		{`\ud83d\ude80"`, "🚀", ``},
		{`\ud83dx"`, "\ufffdx", ``},
		{`\ud83d\u0041"`, "\ufffdA", ``},
		{`\ud83dde80"`, "\ufffdde80", ``},
		{`\ude80"`, "\ufffd", ``},
		{`\u12"x`, `\u12`, `x`},
		{`\u+123"`, `\u+123`, ``},
		{`\x"`, `\x`, ``},
		{`cut off`, `cut off`, ``},
		{`cut off\`, `cut off\`, ``},
		{`cut off\u00`, `cut off\u00`, ``},
		{`cut off\ud83d\u`, "cut off\ufffd\\u", ``},
	}
	for _, tt := range tests {
		out, end := unquote([]byte("before "), []byte(`""`+tt.in), 2)
		if got, rest := strings.TrimPrefix(string(out), "before "), (`""` + tt.in)[end:]; got != tt.want || rest != tt.rest {
			t.Errorf("%q: %q and %q, want %q and %q", tt.in, got, rest, tt.want, tt.rest)
		}
	}
}

// TestUnquoteRandom: what encoding/json makes of a text is read back.
func TestUnquoteRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := strings.NewReplacer("\b", " ", "\f", " ").Replace(rapid.String().Draw(t, "text"))
		rest := rapid.String().Draw(t, "rest")
		out, end := unquote(nil, []byte(quoted(text)+rest), 1)
		if string(out) != text || end != len(quoted(text)) {
			t.Fatalf("%q, end %d", out, end)
		}
	})
}

// texts are all that a line may be quoted as: the line, with its escapes read
// once, and so on.
func texts(text []byte) [][]byte {
	all := [][]byte{uncolour(text)}
	for range maxNested {
		var out []byte
		for rest := all[len(all)-1]; len(rest) > 0; {
			var end int
			out, end = unquote(out, rest, 0)
			if end <= len(rest) && end > 0 && rest[end-1] == '"' {
				out = append(out, '"')
			}
			rest = rest[end:]
		}
		all = append(all, uncolour(out))
	}
	return all
}

// quotes says whether a fact may quote a line so.
func quotes(text []byte, quotation string) bool {
	for _, t := range texts(text) {
		if bytes.Contains(t, []byte(quotation)) {
			return true
		}
	}
	return false
}
