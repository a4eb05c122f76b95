package main

import (
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// TestJoinWait: a duration behind --wait is its value, and COMMAND's words are not.
func TestJoinWait(t *testing.T) {
	root := newRoot(io.Discard, io.Discard)
	for line, want := range map[string]string{
		"run --wait 5s -- x":              "run --wait=5s -- x",
		"run --mem 6GiB --wait 1m x":      "run --mem 6GiB --wait=1m x",
		"run --growth --wait 1m x":        "run --growth --wait=1m x",
		"run --wait 5 x":                  "run --wait=5 x",
		"run --wait -- 5s":                "run --wait -- 5s",
		"run --wait x 5s":                 "run --wait x 5s",
		"run -- gpumem run --wait 5s x":   "run -- gpumem run --wait 5s x",
		"run x --wait 5s":                 "run x --wait 5s",
		"run --wait=5s --wait":            "run --wait=5s --wait",
		"replay --wait 5s":                "replay --wait 5s",
		"run --wait":                      "run --wait",
		"run --mem=6GiB --wait 5s python": "run --mem=6GiB --wait=5s python",
	} {
		if got := strings.Join(joinWait(root, strings.Fields(line)), " "); got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}

// TestHelpFits: no line of any help is longer than a screen is wide, and no text of a
// flag is longer than is read at a glance.
func TestHelpFits(t *testing.T) {
	var each func(cmd *cobra.Command)
	each = func(cmd *cobra.Command) {
		var b strings.Builder
		cmd.SetOut(&b)
		if err := cmd.Help(); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, " \n")); n >= 100 {
				t.Errorf("%s: a line of %d characters: %s", cmd.CommandPath(), n, line)
			}
		}
		for _, sub := range cmd.Commands() {
			each(sub)
		}
	}
	each(newRoot(io.Discard, io.Discard))
}
