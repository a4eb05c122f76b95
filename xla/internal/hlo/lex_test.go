package hlo

import (
	"strings"
	"testing"
)

// caught returns what f does, or the error that it stops with.
func caught(f func() string) (text string, err error) {
	defer func() {
		if s, ok := recover().(stop); ok {
			err = s.err
		}
	}()
	return f(), nil
}

func TestRaw(t *testing.T) {
	for _, c := range []struct {
		text      string
		attribute bool
		want      string
		rest      string
	}{
		{`1, b=2`, true, `1`, `, b=2`},
		{` {a, (b, [c])} , d`, true, `{a, (b, [c])}`, `, d`},
		{`"a,\"b}" }`, true, `"a,\"b}"`, `}`},
		{`'a,"b' }`, true, `'a,"b'`, `}`},
		{"a b", true, "a", "b"},
		{"a\n\n{b} /* x */ [c] d", true, "a\n\n{b} /* x */ [c]", "d"},
		{"a // {\n, b", true, "a", ", b"},
		{"{a // }\n} b", true, "{a // }\n}", "b"},
		{"[2,4]<=[8]T(1,0), b", true, "[2,4]<=[8]T(1,0)", ", b"},
		{"@m<a=1,b=2> {a}, b", true, "@m<a=1,b=2> {a}", ", b"},
		{"#x<a->b, [c]>, d", true, "#x<a->b, [c]>", ", d"},
		{"b01f_01io->b01f, c", true, "b01f_01io->b01f", ", c"},
		{"{a < b} c", true, "{a < b}", "c"},
		{"a/b, c", true, "a/b", ", c"},
		{"{1, 2} , 3 // x\n) y", false, "{1, 2} , 3", ") y"},
		{"", false, "", ""},
		{")", true, "", ")"},
	} {
		l := &lexer{text: c.text}
		got, err := caught(func() string { return l.raw(c.attribute) })
		if err != nil || got != c.want || l.text[l.at:] != c.rest {
			t.Errorf("%q: %q, %v and then %q; expected %q and then %q", c.text, got, err, l.text[l.at:], c.want, c.rest)
		}
	}
}

func TestJSON(t *testing.T) {
	for text, want := range map[string]string{
		`{}x`:                 `{}`,
		`{"a": "}\"}", (]} }`: `{"a": "}\"}", (]}`,
		`{{'}'}`:              `{{'}'}`,
	} {
		l := &lexer{text: text}
		if got, err := caught(l.json); got != want || err != nil {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

// The lexer's parts never leave the text, and what they return is part of it.
func FuzzLex(f *testing.F) {
	for _, s := range []string{`a "b\"c" 'd' {e, [f], (g)} <h> -> /* i */ // j`, "<=[8]", "9223372036854775807", "%x.1-y#2", "'\\", "/*", "{\"", "{<]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for name, part := range map[string]func(l *lexer) string{
			"raw":       func(l *lexer) string { return l.raw(false) },
			"attribute": func(l *lexer) string { return l.raw(true) },
			"json":      func(l *lexer) string { return l.json() },
			"name":      func(l *lexer) string { return l.name("a name") },
			"integer":   func(l *lexer) string { l.integer("a number"); return "" },
			"quoted": func(l *lexer) string {
				if l.peek() != '"' && l.peek() != '\'' {
					return ""
				}
				return l.quoted()
			},
			"skip": func(l *lexer) string { l.skip(); return l.found()[:0] },
		} {
			l := &lexer{text: text}
			got, err := caught(func() string { return part(l) })
			if l.at < 0 || l.at > len(text) || !strings.Contains(text, got) {
				t.Fatalf("%s: %q at %d", name, got, l.at)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Fatalf("%s: %q", name, err)
			}
		}
	})
}

func TestUnique(t *testing.T) {
	taken := map[string]bool{"a": true, "a.1": true, "b.7": true, ".1": true, "c.x": true, "d.0": true}
	for name, want := range map[string]string{"new": "new", "a": "a.2", "a.1": "a.2", "b.7": "b.8", ".1": ".1.1", "c.x": "c.x.1", "d.0": "d.0.1"} {
		if got := unique(name, taken); got != want {
			t.Errorf("%s: %s, expected %s", name, got, want)
		}
	}
}
