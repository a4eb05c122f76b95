package table

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRead(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       []Entry
		err        string
	}{
		{name: "nothing", text: "# only a comment\n\n"},
		{name: "entries", text: "# head\nA b\n\tone: x: y\n\ttwo: a text\n\t\tgoes on\n\nB\n\tone: z", want: []Entry{
			{2, "A b", map[string]string{"one": "x: y", "two": "a text goes on"}}, {7, "B", map[string]string{"one": "z"}},
		}},
		{name: "a field of no entry", text: "\tone: x\n", err: `t.txt:1: "one: x": want a field of an entry, each at most once, of one, two`},
		{name: "an unknown field", text: "A\n\tthree: x\n", err: `t.txt:2: "three: x": want a field of an entry, each at most once, of one, two`},
		{name: "a field without text", text: "A\n\tone:\n", err: `t.txt:2: "one:": want a field of an entry, each at most once, of one, two`},
		{name: "a field twice", text: "A\n\tone: x\n\tone: y\n", err: `t.txt:3: "one: y": want a field of an entry, each at most once, of one, two`},
		{name: "a text that goes on before any", text: "A\n\t\tx\n", err: `t.txt:2: "\tx": want a field of an entry, each at most once, of one, two`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Read("t.txt", tc.text, "one", "two")
			text := ""
			if err != nil {
				text = err.Error()
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || text != tc.err {
				t.Errorf("%s\nerror %s\n want %s", diff, text, tc.err)
			}
		})
	}
}
