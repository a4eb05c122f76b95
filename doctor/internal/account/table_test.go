package account

import (
	"regexp"
	"strings"
	"testing"
)

// TestTableIsSound: every section is walked or gone to, every row has a name, and each
// command, fact and operand is known.
func TestTableIsSound(t *testing.T) {
	gone := map[string]bool{}
	for _, s := range Table.sections {
		for _, b := range s.blocks {
			for _, r := range b.findings {
				gone[r.options["go"]] = true
			}
		}
	}
	for _, s := range Table.sections {
		if prepared[s.name] == nil && !gone[s.name] {
			t.Errorf("[%s] is not walked", s.name)
		}
		for _, b := range s.blocks {
			for _, r := range b.findings {
				if r.options["go"] != "" {
					continue
				}
				if r.name == "" || r.cause == "" || r.remedy == "" {
					t.Errorf("[%s] %s: a row without a name, a cause or a remedy: %+v", s.name, b.when, r)
				}
				if id := r.options["decide"]; id != "" && id != "library" && Table.Decides[id] == "" {
					t.Errorf("[%s] %q: decide=%s is not known", s.name, r.name, id)
				}
				for _, id := range strings.Split(r.options["need"], ",") {
					if id != "" && Table.Needs[id] == "" {
						t.Errorf("[%s] %q: need=%s is not known", s.name, r.name, id)
					}
				}
				for key := range r.options {
					if !strings.Contains(" decide need verdict alone if ", " "+key+" ") {
						t.Errorf("[%s] %q: %s is no option", s.name, r.name, key)
					}
				}
			}
		}
	}
}

// TestConditions holds the language of the table to what its head says.
func TestConditions(t *testing.T) {
	s := &Scene{Facts: New(nil), N: map[string]uint64{"want": 10 << 30, "free": 4 << 30, "total": 24 << 30, "yes": 1, "no": 0, "huge": 1<<64 - 5}}
	for when, want := range map[string]bool{
		"yes": true, "no": false, "!no": true, "!yes": false, "unknown": false, "yes, no": false, "yes, no | yes": true, "no | yes & no": false, "no | yes & !no": true,
		"want > free": true, "want-free >= 6GiB": true, "want-free > 6GiB": false, "free-want < 0": true, "want <= total*5/12": true, "want < total*5/12": false,
		"want+free > total/2+1GiB": true, "huge > total": true, "huge*9/10 > total": true,
	} {
		if s.Holds(when) != want {
			t.Errorf("%s: want %v", when, want)
		}
	}
}

// TestReadingsAreFilled: no answer shows the name of a quantity.
func TestReadingsAreFilled(t *testing.T) {
	s := &Scene{N: map[string]uint64{"want": 3 << 30}, Words: map[string]string{"whose": "of others"}}
	if got := s.Expand("{want} {whose} {nothing}"); got != "3 GiB of others 0 B" || regexp.MustCompile(`[{}]`).MatchString(got) {
		t.Error(got)
	}
}
