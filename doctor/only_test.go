package doctor

import (
	"os"
	"strings"
	"testing"
)

func TestOnly98(t *testing.T) {
	n := 0
	for _, l := range thirdParties(t) {
		if found := l.check(t, l.log, l.state); found != "" {
			t.Logf("WRONG %s (%s)\n%s", l.File, l.Cause, found)
		} else {
			n++
		}
	}
	t.Logf("right %d", n)
}

func TestShow(t *testing.T) {
	for _, name := range strings.Fields(os.Getenv("SHOW")) {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		e := newEvidence(nil)
		s := scanner{region: e.region}
		if err := s.scan(strings.NewReader(string(b))); err != nil {
			t.Fatal(err)
		}
		e.gather()
		for _, st := range e.statements.all() {
			t.Logf("%d [%s|%s] refused %v faint %v mild %v advice %v over %v lib %q handle %v memory %v layer %d topics %+v\n   %q", st.line, st.head, st.from, st.refused, st.faint, st.mild, st.advice, st.over, st.library, st.handle, st.memory, st.layer, st.topics, clipped(st.text))
			for _, a := range st.amounts {
				t.Logf("      %+v", a)
			}
		}
		for _, r := range e.failed {
			q := *r
			q.st, q.lines = nil, nil
			t.Logf("refusal line %d %+v", r.st.line, q)
		}
		t.Logf("marks %v", e.marks)
		for k, v := range e.factsOf {
			t.Logf("%s %+v", k, v.all())
		}
	}
}
