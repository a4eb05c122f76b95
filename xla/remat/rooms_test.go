package remat_test

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestRoomsOfOneModule: from a module's text to the text of its plan, these rooms do work.
// It is the walk of docs/architecture.md, and who adds a room to it should have a reason.
func TestRoomsOfOneModule(t *testing.T) {
	want := []string{
		"internal/input", "xla/cost", "xla/hlo", "xla/internal/alias", "xla/internal/gap", "xla/internal/host", "xla/internal/legal",
		"xla/internal/pack", "xla/internal/pass", "xla/internal/unstack", "xla/internal/verify", "xla/load", "xla/memory", "xla/remat",
	}
	// Rooms that lend types and print: what they import is not followed.
	lent := []string{"policy", "report", "size"}
	var rooms []string
	var visit func(room string)
	visit = func(room string) {
		if slices.Contains(rooms, room) || slices.Contains(lent, room) {
			return
		}
		rooms = append(rooms, room)
		files, err := filepath.Glob(filepath.Join("..", "..", room, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files, %v", room, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range f.Imports {
				path, _ := strconv.Unquote(i.Path.Value)
				if to, ours := strings.CutPrefix(path, "gpumem/"); ours {
					visit(to)
				}
			}
		}
	}
	visit("xla/load")
	visit("xla/remat")
	slices.Sort(rooms)
	if !slices.Equal(rooms, want) {
		t.Errorf("rooms %q\nwant %q", rooms, want)
	}
}
