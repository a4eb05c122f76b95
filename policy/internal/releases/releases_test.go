package releases_test

import (
	"testing"

	"gpumem/policy"
	"gpumem/policy/internal/releases"
)

// does is what a release in these tests does.
type does struct {
	Pool  bool
	Names releases.Words
}

func TestTableAt(t *testing.T) {
	table, err := releases.Read[does]("t.txt", `# head
1.0 2020
	change: Begins.
	source: asked
	does: "names": "a b"
1.2 2021-05
	change: A pool,
		and three names.
	source: asked, too
	does: "pool": true, "names": "a b c"
1.3 2022
	change: In words only.
	source: asked
`)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		v    policy.Version
		pool bool
		n    int
	}{{policy.Version{0, 9}, false, 0}, {policy.Version{1}, false, 2}, {policy.Version{1, 1}, false, 2}, {policy.Version{1, 2}, true, 3}, {policy.Newest, true, 3}} {
		if r := table.At(tc.v); r.Pool != tc.pool || len(r.Names) != tc.n {
			t.Errorf("%s: %+v", tc.v, r)
		}
	}
	changes := table.Changes()
	if want := (policy.Change{Version: "1.2.0", Date: "2021-05", Text: "A pool, and three names.", Source: "asked, too"}); len(changes) != 3 || changes[1] != want {
		t.Errorf("%+v", changes)
	}
	if table[0].Version != (policy.Version{1}) {
		t.Error(table[0].Version)
	}
}

func TestReadTableErrors(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"empty", "# nothing\n", "t.txt: no releases"},
		{"no version", "# head\nsoon 2020\n", `t.txt:2: "soon" is not a known release; want one such as 0.4.30`},
		{"out of order", "1.2 2021\n1.1 2020\n", "t.txt:2: 1.1.0 is not newer than the release before it"},
		{"an unknown field", "1.2 2021\n\tdoes: \"poool\": true\n", `t.txt:1: json: unknown field "poool"`},
		{"another type", "1.2 2021\n\tdoes: \"pool\": 1\n", "t.txt:1: json: cannot unmarshal number into Go struct field does.Pool of type bool"},
		{"no such part", "1.2 2021\n\tdose: x\n", `t.txt:2: "dose: x": want a field of an entry, each at most once, of change, source, does`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := releases.Read[does]("t.txt", tc.text); err == nil || err.Error() != tc.want {
				t.Errorf("%v\nwant %s", err, tc.want)
			}
		})
	}
}
