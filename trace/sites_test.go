package trace

// This file is for stacks: what of them is kept, and what they cost.

import (
	"fmt"
	"strings"
	"testing"
)

func fr(name, file string, line int) *dict { return d("name", name, "filename", file, "line", line) }

func TestSites(t *testing.T) {
	deep := l()
	for i := range 200 {
		deep.items = append(deep.items, fr("f", "a.py", i+1))
	}
	const unwind, gather = "torch::unwind::unwind()", "torch::cuda::(anonymous namespace)::gather_with_cpp()"
	long := strings.Repeat("x", 300)
	for _, c := range []struct {
		name   string
		frames any
		keep   bool
		want   string
	}{
		{"none", nil, false, ""},
		{"not a list", "x", false, ""},
		{"empty", l(), false, ""},
		{"not frames", l("x", int64(5)), false, ""},
		{"base names", l(fr("f", "/home/u/a.py", 1), fr("g", `C:\u\b.py`, 2), fr("h", "c.py", 3)), false, "f (a.py:1)\ng (b.py:2)\nh (c.py:3)"},
		{"paths", l(fr("f", "/home/u/a.py", 1), fr("g", `C:\u\b.py`, 2)), true, "f (/home/u/a.py:1)\ng (C:\\u\\b.py:2)"},
		{"only Python", l(fr(unwind, "??", 0), fr("at::empty", "E.cpp", 9), fr("f", "a.py", 1), fr("_PyEval", "??", 0), fr("<module>", "<frozen runpy>", 2), fr("_start", "", 0)), false,
			"f (a.py:1)\n<module> (<frozen runpy>:2)"},
		{"no Python", l(fr(unwind, "??", 0), fr(gather, "memory_snapshot.cpp", 0), fr("c10::cuda::X::malloc()", "", 0), fr("at::empty()", "E.cpp", 0), fr("c10::cuda::later()", "", 0), fr("clone", "c.S", 81)), false,
			"at::empty() (E.cpp)\nc10::cuda::later()\nclone (c.S:81)"},
		{"only the allocator", l(fr(unwind, "??", 0)), false, ""},
		{"fields missing", l(d(), d("name", "f"), d("filename", "x.c"), d("name", 5, "line", "y")), false, "?\nf\n? (x.c)\n?"},
		{"control characters", l(fr("f\ng", "a\x00.py", 1)), false, "f g (a .py:1)"},
		{"bytes that are not UTF-8", l(fr("f\xff", "a.py", 1)), false, "f? (a.py:1)"},
		{"long names", l(fr(long, long+long+".c", 1)), false, long[:maxNameBytes] + "... (" + (long + long)[:maxFileBytes] + "...:1)"},
		{"the 64 innermost", deep, false, strings.TrimSuffix(func() (s string) {
			for i := range maxFrames {
				s += fmt.Sprintf("f (a.py:%d)\n", i+1)
			}
			return s
		}(), "\n")},
	} {
		t.Run(c.name, func(t *testing.T) {
			var table siteTable
			m := newTorchSites(newSiteMaker(&table, c.keep))
			s := m.site(c.frames)
			if got := table.text(s); got != c.want || (s == 0) != (c.want == "") {
				t.Errorf("site %d:\n got %q\nwant %q", s, got, c.want)
			}
			if again := m.site(c.frames); again != s {
				t.Errorf("%d the second time, %d the first", again, s)
			}
		})
	}
}

// TestSitesShared: equal stacks are one site, and equal frames one text,
// whether or not the pickle shares them.
func TestSitesShared(t *testing.T) {
	var table siteTable
	m := newTorchSites(newSiteMaker(&table, false))
	a := m.site(l(fr("f", "x/a.py", 1), fr("g", "a.py", 2)))
	b := m.site(l(fr("f", "y/a.py", 1), fr("g", "a.py", 2)))
	c := m.site(l(fr("g", "a.py", 2), fr("f", "a.py", 1)))
	if a != b || a == c || len(table.frames) != 2 || table.len() != 3 {
		t.Errorf("sites %d %d %d of %d, %d frames", a, b, c, table.len(), len(table.frames))
	}
}

// TestSitesStaySmall: a hostile file names one long frame from many stacks; the
// table holds numbers, not text.
func TestSitesStaySmall(t *testing.T) {
	var table siteTable
	m := newTorchSites(newSiteMaker(&table, false))
	huge := fr(strings.Repeat("n", 1<<20), strings.Repeat("f", 1<<20), 1)
	for i := range 1000 {
		m.site(l(huge, huge, fr("f", "b.c", i), huge))
	}
	bytes := 0
	for _, f := range table.frames {
		bytes += len(f)
	}
	for _, s := range table.sites {
		bytes += 4 * cap(s)
	}
	if table.len() != 1001 || bytes > 64<<10 {
		t.Errorf("%d sites take %d bytes", table.len(), bytes)
	}
}

// TestSitesNamed: a name is a site, the same one each time, and no name is none.
func TestSitesNamed(t *testing.T) {
	var table siteTable
	m := newSiteMaker(&table, false)
	a, b := m.named([]byte("matmul")), m.named([]byte("relu"))
	if m.named(nil) != 0 || a == b || m.named([]byte("matmul")) != a || table.text(a) != "matmul" || table.text(b) != "relu" || table.len() != 3 {
		t.Errorf("sites %d and %d of %d: %q", a, b, table.len(), table.frames)
	}
}
