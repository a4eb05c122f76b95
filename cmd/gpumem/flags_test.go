package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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

// TestHelpFits: no line of any help is longer than the screen is wide, unless it is one
// word, and a command in an example that is broken can be copied all the same.
func TestHelpFits(t *testing.T) {
	for _, width := range []int{80, 60, 40} {
		var each func(cmd *cobra.Command)
		each = func(cmd *cobra.Command) {
			text := helpText(cmd, width)
			for line := range strings.Lines(text) {
				line = strings.TrimRight(line, "\n")
				if n := utf8.RuneCountInString(line); n > width && len(strings.Fields(strings.TrimSuffix(line, `\`))) > 1 {
					t.Errorf("%s at %d: a line of %d characters: %s", cmd.CommandPath(), width, n, line)
				}
				if strings.TrimRight(line, " ") != line {
					t.Errorf("%s at %d: blanks at the end of %q", cmd.CommandPath(), width, line)
				}
			}
			_, examples, _ := strings.Cut(text, "\nExamples:\n")
			examples, _, _ = strings.Cut(examples, "\n\n")
			if got := strings.ReplaceAll(examples, " \\\n    ", " "); got != cmd.Example {
				t.Errorf("%s at %d: the examples are\n%s\nwant\n%s", cmd.CommandPath(), width, got, cmd.Example)
			}
			for _, sub := range cmd.Commands() {
				each(sub)
			}
		}
		each(newRoot(io.Discard, io.Discard))
	}
}

func TestFlagHelp(t *testing.T) {
	cmd := runCommand()
	for name, want := range map[string]string{
		"wait":   "--wait[=DURATION]|wait for room, at most DURATION; alone: as long as it takes (default: do not wait)",
		"mem":    "--mem SIZE|SIZE of the lease on each GPU, for each copy, with all that the program holds outside its pool",
		"procs":  "--procs N|divide each lease among N processes that use a GPU at once, such as the workers of pytest -n N (default 1)",
		"growth": "--growth|allocate on demand instead of preallocating; the limit still applies",
	} {
		if head, usage := flagHelp(cmd.Flags().Lookup(name)); head+"|"+usage != want {
			t.Errorf("%s|%s, want %s", head, usage, want)
		}
	}
}

// What is no value of a flag is one line in words for people, not the parser's.
func TestNoFlagShowsItsParser(t *testing.T) {
	words := map[string]string{"replay": "x", "advise": "x", "leaks": "x", "hlo": "x", "remat": "x"}
	for _, cmd := range newRoot(io.Discard, io.Discard).Commands() {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() == "string" || f.Value.Type() == "stringArray" {
				return
			}
			for _, value := range []string{"abc", "-1", "", "1e3", "99999999999999999999999"} {
				args := []string{cmd.Name(), "--" + f.Name + "=" + value}
				if word := words[cmd.Name()]; word != "" {
					args = append(args, word)
				}
				var out, errs bytes.Buffer
				code := run(t.Context(), args, &out, &errs)
				text := errs.String()
				if strings.Contains(text, "strconv") || strings.Contains(text, "parsing") || strings.Count(text, "\n") > 1 && code == 2 {
					t.Errorf("%s: status %d, %s", strings.Join(args, " "), code, text)
				}
			}
		})
	}
}
