package torch

// Stacks: what of them is kept, and what they cost.

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
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
		{"long names", l(fr(long, long+long+".c", 1)), false, long[:200] + "... (" + (long + long)[:400] + "...:1)"},
		{"the 64 innermost", deep, false, strings.TrimSuffix(func() (s string) {
			for i := range tape.MaxFrames {
				s += fmt.Sprintf("f (a.py:%d)\n", i+1)
			}
			return s
		}(), "\n")},
	} {
		t.Run(c.name, func(t *testing.T) {
			var site, again uint32
			tr := withStacks(t, tape.Options{KeepPaths: c.keep}, func(m *stacks) { site, again = m.site(c.frames), m.site(c.frames) })
			if got := tr.Site(site); got != c.want || (site == 0) != (c.want == "") {
				t.Errorf("site %d:\n got %q\nwant %q", site, got, c.want)
			}
			if again != site {
				t.Errorf("%d the second time, %d the first", again, site)
			}
		})
	}
}

// withStacks makes a trace whose sites f makes.
func withStacks(t *testing.T, opt tape.Options, f func(*stacks)) *tape.Trace {
	t.Helper()
	return tracetest.MustRead(t, tape.Formats{{Name: "torch", Looks: func([]byte) bool { return true }, Read: func(in *input.Reader, b *tape.Builder) error {
		f(newStacks(b))
		_, err := b.Pool("").Alloc(tape.Event{Bytes: 1}, 0)
		return err
	}}}, []byte("x"), opt)
}

// TestSitesShared: equal stacks are one site, whether or not the pickle shares them.
func TestSitesShared(t *testing.T) {
	var a, b, c, d uint32
	tr := withStacks(t, tape.Options{}, func(m *stacks) {
		a = m.site(l(fr("f", "x/a.py", 1), fr("g", "a.py", 2)))
		b = m.site(l(fr("f", "x/a.py", 1), fr("g", "a.py", 2)))
		c = m.site(l(fr("g", "a.py", 2), fr("f", "x/a.py", 1)))
		d = m.site(l(fr("f", "/v/site-packages/a.py", 1), fr("g", "a.py", 2))) // another file, shown alike
	})
	if a != b || a == c || a == d || tr.Sites() != 4 || tr.Site(a) != tr.Site(d) {
		t.Errorf("sites %d %d %d %d of %d", a, b, c, d, tr.Sites())
	}
	if tr.Line(a) != "f (a.py:1)" || tr.Line(d) != "g (a.py:2)" {
		t.Errorf("the program's own lines are %s and %s", tr.Line(a), tr.Line(d))
	}
}

// TestSitesStaySmall: a hostile file names one long frame from many stacks; the
// table holds numbers, not text.
func TestSitesStaySmall(t *testing.T) {
	huge := fr(strings.Repeat("n", 1<<20), strings.Repeat("f", 1<<20), 1)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	tr := withStacks(t, tape.Options{}, func(m *stacks) {
		for i := range 1000 {
			m.site(l(huge, huge, fr("f", "b.c", i), huge))
		}
	})
	runtime.GC()
	runtime.ReadMemStats(&after)
	if took := int64(after.HeapAlloc) - int64(before.HeapAlloc); tr.Sites() != 1001 || took > 256<<10 {
		t.Errorf("%d sites take %d bytes", tr.Sites(), took)
	}
	runtime.KeepAlive(huge)
}
