package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestManual: every command that help lists has a page, with its flags, in lines that
// man(7) reads as text or as requests that it knows.
func TestManual(t *testing.T) {
	dir := t.TempDir()
	root := newRoot(io.Discard, io.Discard)
	if err := writeManual(t.Context(), root, dir); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range root.Commands() {
		page, err := os.ReadFile(filepath.Join(dir, "man1", "gpumem-"+cmd.Name()+".1"))
		if !cmd.IsAvailableCommand() {
			if err == nil {
				t.Errorf("%s is hidden and has a page", cmd.Name())
			}
			continue
		}
		if err != nil {
			t.Error(err)
			continue
		}
		for line := range strings.Lines(string(page)) {
			request, _, _ := strings.Cut(strings.TrimSpace(line), " ")
			if strings.HasPrefix(line, ".") && !strings.Contains(".TH .SH .TP .PP .B .BR .nf .fi ", request+" ") {
				t.Errorf("%s: %q", cmd.Name(), line)
			}
		}
		if cmd.Name() == "run" && !strings.Contains(string(page), `\fB\-\-mem\fR \fISIZE\fR`) {
			t.Errorf("the page of run has no --mem:\n%s", page)
		}
	}
	for _, name := range []string{"gpumem.bash", "_gpumem", "gpumem.fish", "gpumem.ps1"} {
		if st, err := os.Stat(filepath.Join(dir, "completions", name)); err != nil || st.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "man1", "gpumem.1")); err != nil {
		t.Error(err)
	}
}

// TestTopHelp: the help of top has each key, and its list keeps its lines on a narrow
// screen.
func TestTopHelp(t *testing.T) {
	cmd := topCommand()
	describe(cmd)
	text := helpText(cmd, 40)
	for _, key := range []string{"m", "p", "a", "g", "n", "/", "?", "arrows", "q, Esc"} {
		if !strings.Contains(text, "\n  "+key+" ") {
			t.Errorf("no key %s", key)
		}
	}
	list, _, _ := strings.Cut(text, "\n\nUsage:")
	for line := range strings.Lines(list) {
		if strings.HasPrefix(line, "   ") {
			t.Errorf("a line of the list goes on in the next: %q", line)
		}
	}
}
