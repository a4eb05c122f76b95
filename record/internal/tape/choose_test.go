package tape

import (
	"testing"
)

func TestChoose(t *testing.T) {
	one := &Trace{Source: "in", Pools: []*Pool{{}}}
	two := &Trace{Source: "in", Pools: []*Pool{{Name: "a"}, {Name: "b"}}}
	for _, tt := range []struct {
		name string
		t    *Trace
		pool string
		n    int
		err  string
	}{
		{"all of one", one, "", 1, ""},
		{"all of two", two, "", 2, ""},
		{"one of two", two, "b", 1, ""},
		{"a name where there is none", one, "a", 0, "in: no pool is named \"a\"; the recording has one pool, without a name"},
		{"another", two, "A", 0, "in: no pool is named \"A\"; there are \"a\", \"b\""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.t.Choose(tt.pool)
			if tt.err != "" {
				wantInputError(t, err, tt.err)
			} else if err != nil || len(got) != tt.n || tt.pool != "" && got[0].Name != tt.pool {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}
