package cause

import (
	"strings"
	"testing"
)

// TestRemediesAreSourced: every line of the table is one, with a source, a need that is known,
// and releases in order.
func TestRemediesAreSourced(t *testing.T) {
	lines := 0
	for line := range strings.Lines(remediesText) {
		if line[0] != '#' {
			lines++
		}
	}
	if lines != len(rows) {
		t.Errorf("%d lines, and %d remedies", lines, len(rows))
	}
	names := map[string]bool{}
	for _, r := range rows {
		if r.need == "name" {
			names[r.framework] = true
		}
	}
	for _, r := range rows {
		known := leads[r.need] != "" || r.need == "name" || r.need == "host" || r.need == "handle"
		if !known || r.text == "" || r.source == "" || r.source == "-" && r.need != "name" && r.framework != "any" {
			t.Errorf("%+v", r)
		}
		if r.since != "" && r.until != "" && !older(r.since, r.until) {
			t.Errorf("%+v: releases out of order", r)
		}
		if name, _, ok := strings.Cut(r.text, " | "); ok != strings.HasPrefix(name, "set ") || ok && !strings.Contains(name, "=") {
			t.Errorf("%+v: a setting is \"set NAME=VALUE | WHY\"", r)
		}
	}
}

// TestReleasesOfRemedies: a release has what it has, and an unknown one is told which do.
func TestReleasesOfRemedies(t *testing.T) {
	for _, tt := range []struct {
		since, until, release, want string
	}{
		{"", "", "", "x"},
		{"", "", "1.0", "x"},
		{"0.10.2", "", "", "x (since 0.10.2)"},
		{"0.10.2", "", "0.10.2", "x"},
		{"0.10.2", "", "0.10.1", ""},
		{"0.10.2", "", "0.9.9", ""},
		{"", "0.17", "", "x (up to 0.17)"},
		{"", "0.17", "0.17.1", "x"},
		{"", "0.17", "0.18", ""},
		{"0.3.6", "0.5.14", "", "x (0.3.6 to 0.5.14)"},
		{"0.3.6", "0.5.14", "0.5.14.post1", "x"},
		{"0.3.6", "0.5.14", "0.5.15", ""},
		{"0.3.6", "0.5.14", "0.2.15", ""},
	} {
		got, ok := row{text: "x", since: tt.since, until: tt.until}.of(tt.release)
		if !ok {
			got = ""
		}
		if got != tt.want {
			t.Errorf("%s to %s in %q: %q, want %q", tt.since, tt.until, tt.release, got, tt.want)
		}
	}
}
