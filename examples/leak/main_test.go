package main

import (
	"strings"
	"testing"

	"gpumem"
	"gpumem/alloc"
	"gpumem/internal/test/story"
)

func TestStory(t *testing.T) {
	out := story.Check(t, run)
	_, verdict, ok := strings.Cut(out, "The leak: 3 MiB a step in 1 block, asked for by\n")
	if !ok || !strings.HasPrefix(verdict, "  (*job).mask (main.go:") {
		t.Errorf("the leak is not found in mask:\n%s", out)
	}
}

func TestGrowth(t *testing.T) {
	use := func(stack string, site alloc.Site, bytes uint64) gpumem.Use {
		return gpumem.Use{Site: site, Stack: stack, Blocks: 1, Bytes: bytes}
	}
	a, b, c, d := alloc.Site(1), alloc.Site(2), alloc.Site(3), alloc.Site(4)
	old := []gpumem.Use{use("shrinks", a, 50), use("grows", b, 5), use("gone", d, 9)}
	now := []gpumem.Use{use("shrinks", a, 40), use("grows", b, 8), use("new", c, 1)}
	var got []string
	for _, g := range growth(old, now) {
		got = append(got, g.now.Stack)
	}
	if want := "grows new shrinks"; strings.Join(got, " ") != want {
		t.Errorf("growth gives %v, want %s", got, want)
	}
}

func TestFrame(t *testing.T) {
	const stack = "main.inner (a.go:1)\nsome/where/pkg.(*t).outer (b.go:2)\n"
	for i, want := range []string{"inner (a.go:1)", "(*t).outer (b.go:2)", "", ""} {
		if got := frame(stack, i); got != want {
			t.Errorf("frame %d is %q, want %q", i, got, want)
		}
	}
}
