// Figures prints how large the house is and how it reads, by wing: the figures that
// CONTRIBUTING.md names. Nothing fails on them.
//
//	go run ./internal/test/figures
//
// Tests and their support are left out, and so are the modules kube and bench, and examples.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

// figures are those of some files.
type figures struct {
	lines, code, blank int // code: neither blank nor comment
	wide               int // lines of code of more than 140 columns
	dense              int // lines of code with five or more boolean operators
	functions, long    int // long: more than 80 lines
	oneWord            int // functions whose names are one word
	exported           int // functions, methods and types outside of internal
}

var oneWord = regexp.MustCompile(`^([a-z]+|[A-Z][a-z]*)$`)

func main() {
	wings := map[string]*figures{}
	all := &figures{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", "testdata", "kube", "bench", "examples"}, path) || d.Name() == "testdata" || strings.HasSuffix(path, "internal/test") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		wing, _, below := strings.Cut(filepath.ToSlash(path), "/")
		if !below {
			wing = "gpumem"
		}
		if wings[wing] == nil {
			wings[wing] = &figures{}
		}
		return addFile(path, wings[wing], all)
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	names := make([]string, 0, len(wings))
	for name := range wings {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return wings[b].code - wings[a].code })
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "wing\tcode\tblank\tover 140 columns\t5+ operators\tfunctions\tone word\tover 80 lines\texported\t")
	for _, name := range names {
		wings[name].print(w, name)
	}
	all.print(w, "all")
	w.Flush()
}

func (f *figures) print(w *tabwriter.Writer, name string) {
	fmt.Fprintf(w, "%s\t%d\t%.1f %%\t%.1f / 1000\t%d\t%d\t%d %%\t%d\t%d\t\n", name, f.code, 100*part(f.blank, f.lines), 1000*part(f.wide, f.code),
		f.dense, f.functions, int(100*part(f.oneWord, f.functions)+.5), f.long, f.exported)
}

func part(n, of int) float64 { return float64(n) / float64(max(of, 1)) }

// addFile adds the figures of a file to each of some.
func addFile(path string, to ...*figures) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var f figures
	for line := range strings.Lines(string(text)) {
		f.lines++
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "":
			f.blank++
			continue
		case strings.HasPrefix(trimmed, "//"):
			continue
		}
		f.code++
		if len([]rune(strings.TrimRight(line, "\n"))) > 140 {
			f.wide++
		}
		if strings.Count(trimmed, "&&")+strings.Count(trimmed, "||") >= 5 {
			f.dense++
		}
	}
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	hidden := strings.Contains(filepath.ToSlash(path), "internal/") || parsed.Name.Name == "main"
	for _, d := range parsed.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			f.functions++
			if oneWord.MatchString(d.Name.Name) {
				f.oneWord++
			}
			if files.Position(d.End()).Line-files.Position(d.Pos()).Line >= 80 {
				f.long++
			}
			if d.Name.IsExported() && !hidden {
				f.exported++
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if t, ok := s.(*ast.TypeSpec); ok && t.Name.IsExported() && !hidden {
					f.exported++
				}
			}
		}
	}
	for _, t := range to {
		t.lines += f.lines
		t.code += f.code
		t.blank += f.blank
		t.wide += f.wide
		t.dense += f.dense
		t.functions += f.functions
		t.oneWord += f.oneWord
		t.long += f.long
		t.exported += f.exported
	}
	return nil
}
