// The commands that the README and the documents show.

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A shown is a block of a document: its language, and its lines.
type shown struct {
	doc, lang string
	lines     []string
}

func codeBlocks(t *testing.T, doc string) (list []shown) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", doc))
	if err != nil {
		t.Fatal(err)
	}
	open := false
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSuffix(line, "\n")
		lang, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && !open:
			list = append(list, shown{doc: doc, lang: lang})
			open = true
		case fence:
			open = false
		case open:
			last := &list[len(list)-1]
			last.lines = append(last.lines, line)
		}
	}
	return list
}

// A reader is somebody who types what the documents show: in a folder with the examples,
// with an empty home, no GPU and programs called python that do nothing.
type reader struct {
	dir string
	env []string
}

func newReader(t *testing.T) *reader {
	t.Helper()
	r := &reader{dir: t.TempDir()}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable() // which is gpumem under that name
	if err != nil {
		t.Fatal(err)
	}
	bin, home := filepath.Join(r.dir, "bin"), filepath.Join(r.dir, "home")
	for _, err := range []error{
		os.Mkdir(bin, 0o700), os.Mkdir(home, 0o700), os.Symlink(self, filepath.Join(bin, "gpumem")),
		os.Symlink(filepath.Join(root, "examples"), filepath.Join(r.dir, "examples")),
		os.WriteFile(filepath.Join(bin, "python"), []byte("#!/bin/sh\n"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	r.env = []string{"HOME=" + home, "PATH=" + bin + ":/usr/bin:/bin", "GPUMEM_RUN_DIR=" + filepath.Join(r.dir, "registry")}
	r.run(t, "gpumem devices --device sim@"+r.dir+"/gpu,total=24GiB,create")
	return r
}

// run runs a line. What it shares among programs is a simulated GPU.
func (r *reader) run(t *testing.T, line string, env ...string) string {
	t.Helper()
	cmd := exec.Command("sh", "-c", line)
	cmd.Dir, cmd.Env = r.dir, append(r.env, env...)
	if strings.HasPrefix(line, "gpumem run") || strings.HasPrefix(line, "gpumem ps") {
		cmd.Env = append(cmd.Env, "GPUMEM_DEVICE=sim@"+r.dir+"/gpu")
	}
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	var exit *exec.ExitError
	if no := errors.As(err, &exit) && exit.ExitCode() == exitNo; err != nil && !no {
		t.Errorf("%s: %v\n%s", line, err, errs.String())
	}
	return string(out)
}

var (
	ownTime = regexp.MustCompile(`[0-9]+ ns/event`)
	blanks  = regexp.MustCompile(` +`)
)

// same compares outputs, but for the time on this machine.
func same(t *testing.T, b shown, line, got, want string) {
	t.Helper()
	plain := func(s string) string { // the time's width is that of its column, too
		return blanks.ReplaceAllString(ownTime.ReplaceAllString(strings.TrimSpace(s), "ns/event"), " ")
	}
	if plain(got) != plain(want) {
		t.Errorf("%s: %s prints\n%s\nand it has\n%s", b.doc, line, got, want)
	}
}

// TestDocsPrintWhatTheyShow runs every command behind "$ " in the README and the documents
// and compares its output.
func TestDocsPrintWhatTheyShow(t *testing.T) {
	r := newReader(t)
	docs, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatalf("%d documents, %v", len(docs), err)
	}
	list := []string{"README.md"}
	for _, doc := range docs {
		list = append(list, filepath.Join("docs", filepath.Base(doc)))
	}
	ran := 0
	for _, doc := range list {
		for _, b := range codeBlocks(t, doc) {
			for i := 0; i < len(b.lines); i++ {
				line, ok := strings.CutPrefix(b.lines[i], "$ ")
				if !ok {
					continue
				}
				var want []string
				for i+1 < len(b.lines) && !strings.HasPrefix(b.lines[i+1], "$ ") {
					i++
					want = append(want, b.lines[i])
				}
				same(t, b, line, r.run(t, line), strings.Join(want, "\n"))
				ran++
			}
		}
	}
	if ran < 5 {
		t.Errorf("only %d commands", ran)
	}
}

// figured is a sentence in quotes with a figure, as a command prints it.
var figured = regexp.MustCompile(`"[^"]*[0-9] (?:[KMG]iB|steps|events|blocks)\b[^"]*"`)

// What a command prints with figures stands in a block that is run, not in a sentence that
// nothing compares: such a one was wrong. docs/causes.md has the words of logs, and
// docs/python*.md what needs frameworks.
func TestDocsQuoteNoFiguresInSentences(t *testing.T) {
	docs, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatalf("%d documents, %v", len(docs), err)
	}
	for _, doc := range append(docs, "../../README.md") {
		if name := filepath.Base(doc); name == "causes.md" || strings.HasPrefix(name, "python") {
			continue
		}
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		inBlock := false
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "```") {
				inBlock = !inBlock
			}
			if quote := figured.FindString(line); quote != "" && !inBlock {
				t.Errorf("%s: %s: show it behind \"$ COMMAND\"", doc, quote)
			}
		}
	}
}

// TestReadmeCommandsRun runs what the README shows without an output. Of its first block
// .ci/run runs both lines; the output of the first is the second block, on a screen of 80
// columns.
func TestReadmeCommandsRun(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: six seconds of computing")
	}
	r := newReader(t)
	blocks := codeBlocks(t, "README.md")
	demo, ok := strings.CutPrefix(blocks[0].lines[0], "go run ./cmd/gpumem ")
	if !ok || len(blocks[0].lines) != 2 || blocks[0].lines[1] != "go test ./..." {
		t.Fatalf("the first block is\n%s", strings.Join(blocks[0].lines, "\n"))
	}
	same(t, blocks[1], "gpumem "+demo, r.run(t, "gpumem "+demo, "COLUMNS=80"), strings.Join(blocks[1].lines, "\n"))
	for _, b := range blocks[2:] {
		for _, line := range b.lines {
			if b.lang == "" && strings.HasPrefix(line, "gpumem ") && !strings.Contains(strings.Join(b.lines, "\n"), "$ ") {
				r.run(t, line)
			}
		}
	}
}

// TestReadmeLibraryRuns builds and runs the lines of Go that the README shows.
func TestReadmeLibraryRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: builds a program")
	}
	for _, b := range codeBlocks(t, "README.md") {
		if b.lang != "go" {
			continue
		}
		if len(b.lines) > 12 {
			t.Errorf("%d lines are too many to read at a glance", len(b.lines))
		}
		path := filepath.Join(t.TempDir(), "main.go")
		program := `package main

import (
	"context"
	"errors"
	"fmt"

	"gpumem"
	"gpumem/device/sim"
	"gpumem/policy/frameworks"
)

func main() {
	ctx := context.Background()
` + strings.Join(b.lines, "\n") + `
	if err != nil {
		panic(err)
	}
}
`
		if err := os.WriteFile(path, []byte(program), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("go", "run", path)
		cmd.Dir = filepath.Join("..", "..")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s\n%s", err, out, program)
		}
	}
}

// TestReadmeIsShort: 900 words, of which the first screen fits 80 columns.
func TestReadmeIsShort(t *testing.T) {
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(strings.Fields(string(page))); n > 900 {
		t.Errorf("%d words", n)
	}
	for i, line := range strings.Split(string(page), "\n")[:60] {
		if len(line) > 80 {
			t.Errorf("line %d has %d characters", i+1, len(line))
		}
	}
}
