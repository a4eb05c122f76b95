package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpumem/internal/report"
	"gpumem/internal/report/web"
	"gpumem/internal/test/browser"
	"gpumem/internal/test/webtest"
	"gpumem/size"
)

// pageOf runs replay --report and gives the page's path and text, and the replay's
// JSON.
func pageOf(t *testing.T, args ...string) (path, text string, rep replayJSON) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "page.html")
	var stdout, stderr bytes.Buffer
	if status := run(t.Context(), append([]string{"replay", "--json", "--report", path}, args...), &stdout, &stderr); status > 1 {
		t.Fatalf("status %d: %s", status, stderr.String())
	}
	if err := json.Unmarshal(stdout.Bytes(), &rep); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, string(page), rep
}

type replayJSON struct {
	Trace struct {
		Events uint64 `json:"events"`
		Peak   uint64 `json:"peak_live_bytes"`
	} `json:"trace"`
	Results []struct {
		Policy   string  `json:"policy"`
		HeldPeak uint64  `json:"held_peak_bytes"`
		First    *uint64 `json:"first_refused_event"`
	} `json:"results"`
}

// textTrace writes a text trace.
func textTrace(t *testing.T, events string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "in.txt")
	if err := os.WriteFile(path, []byte(events), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const fragmentation = "../../examples/fragmentation.txt.gz"

// TestReplayPage: what stands in the page, whatever a browser does with it.
func TestReplayPage(t *testing.T) {
	_, page, _ := pageOf(t, fragmentation, "--device", "sim:16GiB", "--policy", "jax", "--policy", "jax:preallocate=false")
	for _, want := range []string{
		"<!DOCTYPE html>", `<html lang="en">`, `name="viewport"`, "prefers-color-scheme: dark", "still nojs", "default-src &#39;none&#39;",
		"fragmentation.txt.gz runs out of memory on 16 GiB under jax:preallocate=false alone.",
		"event 3,156 of 5,161 requested 4.46 GiB and was refused, the first of 200 refusals.",
		"Of the pool&#39;s 12 GiB, 7.97 GiB was free, enough, but in pieces of which the largest was 4 GiB",
		"On the same device jax served every request; it held 12 GiB at most.",
		"The timeline as a table", "4,786, the peak", "It fits as it is: with the policy bfc every request is served", "The smallest card: 16 GiB",
	} {
		if !strings.Contains(strings.ReplaceAll(page, "\u00a0", " "), want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, bad := range []string{" src=", "url(", "@import", "<link", "ZgotmplZ", "%!", "<no value>", filepath.Dir(fragmentation)} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	// All that is not a script is well formed, the drawing too.
	body := page[strings.Index(page, "<body>"):strings.Index(page, "<div id=\"data\"")]
	body = regexp.MustCompile(`(<input[^>]*)>`).ReplaceAllString(body, "$1/>")
	body = strings.NewReplacer(" hidden>", ">", " checked", "", " open>", ">").Replace(body)
	d := xml.NewDecoder(strings.NewReader(body + "</body>"))
	d.Entity = xml.HTMLEntity
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("not well formed: %v", err)
		}
	}
}

// TestPageSizes: a page of 5,000 events has at most 500 kB.
func TestPageSizes(t *testing.T) {
	for _, args := range [][]string{{fragmentation, "--device", "sim:16GiB"}, {"../../examples/training.txt.gz", "--device", "sim:24GiB"}} {
		if _, page, rep := pageOf(t, args...); len(page) > 500_000 {
			t.Errorf("%s: %d bytes for %d events", args[0], len(page), rep.Trace.Events)
		}
	}
}

// TestPageAgreesWithCommand: the figures of the page are those of the command's JSON, and
// the bands of each moment add up to what lives.
func TestPageAgreesWithCommand(t *testing.T) {
	_, page, rep := pageOf(t, fragmentation, "--device", "sim:16GiB")
	var data struct {
		Device uint64
		Pools  []struct {
			Peak, Events uint64
			Live, Starts []int64
			Groupings    []struct{ Bands []struct{ Bytes []int64 } }
			Layers       []struct {
				Policy string
				Held   []int64
				First  *struct{ Event uint64 }
			}
		}
	}
	webtest.Data(t, page, &data)
	pool := data.Pools[0]
	live := webtest.Sum(pool.Live)
	if data.Device != 16<<30 || pool.Peak != rep.Trace.Peak || pool.Events != rep.Trace.Events || slices.Max(live) != pool.Peak {
		t.Errorf("device %d, peak %d, %d events", data.Device, pool.Peak, pool.Events)
	}
	for k, r := range rep.Results {
		l := pool.Layers[k]
		if l.Policy != r.Policy || slices.Max(webtest.Sum(l.Held)) != r.HeldPeak || (l.First == nil) != (r.First == nil) || l.First != nil && l.First.Event != *r.First {
			t.Errorf("%s: %+v, %+v", r.Policy, l.First, r)
		}
		if want := ">" + size.Format(r.HeldPeak) + "<"; !strings.Contains(page, want) {
			t.Errorf("the table has no %s", want)
		}
	}
	for _, g := range pool.Groupings {
		sum := make([]uint64, len(live))
		for _, b := range g.Bands {
			for k, v := range webtest.Sum(b.Bytes) {
				sum[k] += v
			}
		}
		if !slices.Equal(sum, live) {
			t.Error("bands do not add up")
		}
	}
}

// TestDocsDrawing: the drawing in the documents is what the command draws.
func TestDocsDrawing(t *testing.T) {
	const at = "../../docs/fragmentation.svg"
	path := filepath.Join(t.TempDir(), "new.svg")
	args := []string{"replay", fragmentation, "--device", "sim:16GiB", "--policy", "jax", "--policy", "jax:preallocate=false", "--policy", "elastic", "--svg", path}
	var stdout, stderr bytes.Buffer
	if status := run(t.Context(), args, &stdout, &stderr); status != 1 {
		t.Fatalf("status %d: %s", status, stderr.String())
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if want, err := os.ReadFile(at); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not what gpumem %s draws (%v)", at, strings.Join(args, " "), err)
	}
}

// A tried page is open in a browser.
type tried struct {
	*browser.Page
	t     *testing.T
	opens int
}

// open opens a file with a fragment, anew each time.
func (p *tried) open(path, fragment string) {
	p.t.Helper()
	p.opens++
	p.Go(fmt.Sprintf("file://%s?%d#%s", path, p.opens, fragment))
}

// frame waits until what was done is drawn.
func (p *tried) frame() {
	p.t.Helper()
	p.Eval("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(1))))", nil)
}

// state is what the page says of itself.
func (p *tried) state() (s map[string]string) {
	p.t.Helper()
	p.Wait("document.documentElement.dataset.ready || document.documentElement.dataset.errors")
	p.frame()
	p.Eval("({...document.getElementById('page').dataset, errors: document.documentElement.dataset.errors || ''})", &s)
	return s
}

// wants checks what the page says of itself, in pairs, and that nothing failed.
func (p *tried) wants(t *testing.T, pairs ...string) {
	t.Helper()
	s := p.state()
	for k := 0; k < len(pairs); k += 2 {
		if s[pairs[k]] != pairs[k+1] {
			t.Errorf("%s is %q, want %q", pairs[k], s[pairs[k]], pairs[k+1])
		}
	}
	if s["errors"] != "" || len(p.Troubles()) > 0 {
		t.Errorf("the page fails: %q, %q", s["errors"], p.Troubles())
	}
}

// point moves the pointer to a part of an element. Scrolling, which hides cards, is over by
// then.
func (p *tried) point(css string, x, y float64) {
	p.t.Helper()
	p.Box(css)
	p.frame()
	p.Mouse("mouseMoved", css, x, y)
}

// card is the text of the card beside the pointer, "" if there is none.
func (p *tried) card() (s string) {
	p.t.Helper()
	p.frame()
	p.Eval("(() => { const c = document.querySelector('.card'); return c && !c.hidden ? c.innerText : ''; })()", &s)
	return s
}

// hash is the fragment of the page's address.
func (p *tried) hash() (s string) {
	p.t.Helper()
	p.frame()
	p.Eval("location.hash", &s)
	return s
}

func tryPage(t *testing.T, width, height int) *tried {
	return &tried{Page: browser.Open(t, width, height, "light"), t: t}
}

// TestPageInBrowser opens pages from the disk, and uses them.
func TestPageInBrowser(t *testing.T) {
	path, _, rep := pageOf(t, fragmentation, "--device", "sim:16GiB")
	b := tryPage(t, 1280, 800)
	b.open(path, "")
	t.Run("opens", func(t *testing.T) {
		// At the first refusal, under the policy that has it.
		b.wants(t, "policy", "jax:preallocate=false", "event", fmt.Sprint(*rep.Results[1].First), "held", fmt.Sprint(12<<30))
		if r := b.Requests(); len(r) != 1 || !strings.HasPrefix(r[0], "file://") {
			t.Errorf("it asks for %q", r)
		}
		// What happened, what lives and what the policies hold are in the first window.
		var low float64
		b.Eval("document.querySelector('.holds .plot').getBoundingClientRect().bottom", &low)
		if low > 800 {
			t.Errorf("the second plot ends %v pixels down", low)
		}
	})
	t.Run("draws", func(t *testing.T) {
		for _, scheme := range []string{"light", "dark"} {
			b.Scheme(scheme)
			for _, width := range []int{1280, 640, 390} {
				b.Size(width, 800, width < 640)
				for _, css := range []string{".lives .plot", ".holds .plot", ".places .plot", ".strip"} {
					drawn(t, b, css, scheme)
				}
				var wide bool
				b.Eval("document.documentElement.scrollWidth > innerWidth", &wide)
				if wide {
					t.Errorf("%s, %d wide: it has to be scrolled sideways", scheme, width)
				}
			}
		}
		b.Size(1280, 800, false)
		b.wants(t)
	})
	t.Run("peak", func(t *testing.T) {
		b.open(path, "at=peak&policy=jax")
		peak := fmt.Sprint(rep.Trace.Peak)
		b.wants(t, "policy", "jax", "live", peak, "peak", peak, "event", "4786")
		if text := b.Text(); !strings.Contains(strings.ReplaceAll(text, "\u00a0", " "), size.Format(rep.Trace.Peak)+" live in ") {
			t.Error("the list has no title with the peak")
		}
	})
	t.Run("keys", func(t *testing.T) {
		b.open(path, "at=peak&policy=jax")
		b.state()
		b.Press("e")
		b.wants(t, "event", "5161")
		b.Press("[")
		before := b.state()["event"]
		if before == "5161" {
			t.Error("[ does not move")
		}
		b.Press("]")
		b.wants(t, "event", "5161")
		b.Press("p")
		b.wants(t, "event", "4786")
		b.Press("n")
		b.wants(t, "policy", "jax:preallocate=false", "event", "4786")
		b.Press("r")
		b.wants(t, "event", "3156")
		for range 8 {
			b.Press("+")
		}
		if hash := b.hash(); !strings.Contains(hash, "zoom=31") {
			t.Errorf("after zooming in the address is %s", hash)
		}
		b.wants(t, "event", "3156")
		b.Press("0")
		b.wants(t, "zoom", "")
		b.Press("s")
		b.wants(t, "by", "each allocation")
		drawn(t, b, ".lives .plot", "each allocation")
		b.Press("s")
		b.wants(t, "by", "size")
		b.Press("/")
		var focus string
		b.Eval("document.activeElement.className", &focus)
		if focus != "find" {
			t.Errorf("/ leads to %q", focus)
		}
	})
	t.Run("keyboard order", func(t *testing.T) {
		// Everything that can be used is reached in the order of the page, and is named.
		var wrong []string
		b.Eval(`[...document.querySelectorAll("button, input, summary, a, [tabindex]")].filter(e => e.offsetParent && (e.tabIndex > 0 || !(e.textContent.trim() || e.ariaLabel || e.closest("label")))).map(e => e.outerHTML)`, &wrong)
		if len(wrong) > 0 {
			t.Errorf("out of order or without a name: %q", wrong)
		}
	})
	t.Run("pointer", func(t *testing.T) {
		b.open(path, "at=peak&policy=jax")
		b.state()
		b.point(".lives .plot", 0.4, 0.75)
		if text := b.card(); !strings.Contains(text, "MiB") || !strings.Contains(text, "since") || !strings.Contains(text, "live in all") {
			t.Errorf("under the pointer: %q", text)
		}
		b.Mouse("mousePressed", ".lives .plot", 0.4, 0.75)
		b.Mouse("mouseReleased", ".lives .plot", 0.4, 0.75)
		b.point("h1", 0.5, 0.5)
		if text := b.card(); text != "" {
			t.Errorf("away from the plot: %q", text)
		}
		if at, err := strconv.Atoi(b.state()["event"]); err != nil || at < 2100 || at > 2700 {
			t.Errorf("after a click event %d is listed", at)
		}
		b.point(".holds .plot", 0.4, 0.6)
		if text := b.card(); !strings.Contains(text, "elastic") || !strings.Contains(text, "in use") {
			t.Errorf("on the policies: %q", text)
		}
		// The map shows a block somewhere under the pointer.
		text := ""
		for _, x := range []float64{.99, .95, .9, .85, .8, .7, .6, .5} {
			b.point(".strip", x, 0.4)
			if text = b.card(); strings.HasPrefix(text, "a block of ") {
				break
			}
		}
		if !strings.HasPrefix(text, "a block of ") {
			t.Errorf("on the map: %q", text)
		}
		b.wants(t)
	})
	t.Run("find", func(t *testing.T) {
		b.open(path, "find=12+MiB&at=peak")
		b.state()
		var rows []string
		b.Eval(`[...document.querySelectorAll(".list tbody tr")].map(r => r.innerText)`, &rows)
		if len(rows) != 2 || !strings.Contains(rows[0], "12 MiB") || !strings.Contains(rows[1], "1.12 MiB") {
			t.Errorf("12 MiB is found in %q", rows)
		}
		b.wants(t)
	})
}

// TestPageOfPyTorch: a snapshot opens on PyTorch's policy, with what was there before as one
// band, the recorded run's own memory as a line, and its segments.
func TestPageOfPyTorch(t *testing.T) {
	path, page, _ := pageOf(t, "../../record/trace/testdata/torch2026.pickle", "--device", "sim:1GiB")
	if !strings.Contains(page, "segment") {
		t.Error("the page has no segments")
	}
	b := tryPage(t, 1280, 800)
	b.open(path, "")
	b.wants(t, "policy", "pytorch")
	drawn(t, b, ".segments canvas", "segments")
	b.point(".segments canvas", 0.15, 0.02)
	if text := b.card(); !strings.Contains(text, "segment") || !strings.Contains(text, "0x") {
		t.Errorf("on a segment: %q", text)
	}
}

// TestPageWithoutScripts: the story, the drawing and the tables are there, and
// nothing that would do nothing.
func TestPageWithoutScripts(t *testing.T) {
	path, _, _ := pageOf(t, fragmentation, "--device", "sim:16GiB")
	b := tryPage(t, 1000, 1800)
	b.WithoutScripts("file://" + path)
	drawn(t, b, ".still svg", "without scripts")
	var buttons bool
	b.Eval("[...document.querySelectorAll('button, input, canvas')].some(e => e.offsetParent)", &buttons)
	if buttons {
		t.Error("there are controls that do nothing")
	}
}

// drawn says whether an element of the page has several colours, and much of two. What was
// just asked for may be in a later picture of a busy machine than the first, so it looks
// again some times.
func drawn(t *testing.T, b *tried, css, what string) {
	t.Helper()
	var at image.Rectangle
	var colours, many int
	for range 20 {
		if at, colours, many = painted(t, b, css); colours >= 5 && many >= 2 {
			return
		}
	}
	t.Errorf("%s, %s in %v: %d colours, %d of them on much of it", what, css, at, colours, many)
}

// painted looks at an element once: where it lies, how many colours it has, and how many of
// these are on more than a fortieth of it.
func painted(t *testing.T, b *tried, css string) (at image.Rectangle, colours, many int) {
	t.Helper()
	box := b.Box(css)
	var down float64 // the picture is of the whole page
	b.Eval("scrollY", &down)
	box.Y += down
	img, err := png.Decode(bytes.NewReader(b.Screenshot()))
	if err != nil {
		t.Fatal(err)
	}
	at = image.Rect(int(box.X), int(box.Y), int(box.X+box.W), int(box.Y+box.H)).Intersect(img.Bounds())
	pixels := map[[3]uint32]int{}
	for y := at.Min.Y; y < at.Max.Y; y++ {
		for x := at.Min.X; x < at.Max.X; x++ {
			r, g, b, _ := img.At(x, y).RGBA()
			pixels[[3]uint32{r, g, b}]++
		}
	}
	for _, n := range pixels {
		if n*40 > at.Dx()*at.Dy() {
			many++
		}
	}
	return at, len(pixels), many
}

// TestPageOfAnything: texts of a recording stay text, and the oddest recordings
// have a page.
func TestPageOfAnything(t *testing.T) {
	b := tryPage(t, 800, 900)
	for _, test := range []struct{ name, events string }{
		{"one event", "a 1 1\n"},
		{"nothing", "a 1 0\nf 1\n"},
		{"all refused", "a 1 18446744073709551615\na 2 18446744073709551615\nf 1\n"},
		{"two", "a 1 1048576\na 2 3\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path, _, _ := pageOf(t, textTrace(t, test.events), "--device", "sim:1GiB")
			for _, at := range []string{"", "at=peak", "at=end", "at=7&zoom=0-99999&policy=elastic&by=stack&find=x", "by=each+allocation&at=end", "at=%22%3E%3Cscript%3Ealert(1)%3C/script%3E=1"} {
				b.open(path, at)
				if s := b.state(); s["errors"] != "" || len(b.Troubles()) > 0 {
					t.Errorf("#%s: %q, %q", at, s, b.Troubles())
				}
			}
		})
	}
}

// TestLongPage: a recording of too many events for all of them to be in the page.
// The peak and what is around the first refusal is known all the same.
func TestLongPage(t *testing.T) {
	const many, first = 100_000, 2*100_000 + 1
	var in strings.Builder
	for k := range many {
		fmt.Fprintf(&in, "a %d %d\nf %d\n", k, 1+k%7777, k)
	}
	for k := range 8 { // the fourth is refused
		fmt.Fprintf(&in, "a x%d 268435456\n", k)
	}
	path, page, _ := pageOf(t, textTrace(t, in.String()), "--device", "sim:1GiB", "--policy", "jax")
	if len(page) > 1<<20 {
		t.Errorf("%d bytes", len(page))
	}
	b := tryPage(t, 1280, 800)
	b.open(path, fmt.Sprintf("at=refused&zoom=%d-%d", first-4, first+6))
	b.wants(t, "event", fmt.Sprint(first+3), "live", fmt.Sprint(4<<28), "blocks", "4", "zoom", fmt.Sprintf("%d-%d", first-4, first+6))
	// In the middle of the second one, the eighth part of ten.
	var at struct{ X, Y float64 }
	b.Eval(fmt.Sprintf(`(() => { const p = document.querySelector(".lives .plot").plot, r = p.wrap.getBoundingClientRect(); return { X: p.X(%d.5) / r.width, Y: p.Y(1000) / r.height }; })()`, first+1), &at)
	b.point(".lives .plot", at.X, at.Y)
	if text := b.card(); !strings.Contains(text, "512 MiB in 2 blocks") || !strings.Contains(text, "event 200,002") {
		t.Errorf("near the first refusal: %q", text)
	}
	b.open(path, "at=peak")
	b.wants(t, "peak", fmt.Sprint(8<<28), "event", fmt.Sprint(first+7))
}

// TestHostilePage: whatever stands in a recording's names is shown as it stands,
// and never runs.
func TestHostilePage(t *testing.T) {
	bad := []string{
		"</script><script>document.title='run'</script>", "<img src=x onerror=\"document.title='run'\">\nsecond line", "<!--<script>", "\u2028\u202e\x00\xff",
		"\"'&<>`${1}", "javascript:document.title='run'",
	}
	one := web.Numbers{1}
	in := &report.Snapshot{Event: 1, Used: 9, Asked: 9, Blocks: 9, Held: 9, Map: "08?", Holes: 1, Largest: [][2]uint64{{0, 3}}, Top: [][3]uint64{{3, 3, 1}}}
	g := &report.Grouping{By: "stack"}
	l := &report.List{Event: 1, Bytes: 9, Blocks: 9, Groups: [][]report.Group{nil}}
	for k := range bad {
		g.Bands = append(g.Bands, &report.Band{Name: k, Detail: k, Bytes: one, Blocks: one, Since: one})
		l.Groups[0] = append(l.Groups[0], report.Group{Name: k, Bytes: 1, Blocks: 1})
	}
	refusal := report.Refusal{Event: 1, Bytes: 1, Stack: 1}
	p := &report.Page{
		Title: bad[0], Headline: bad[0], Summary: bad, Notes: bad, Columns: []string{bad[0]}, Names: bad,
		Sections: []*report.Section{{ID: bad[0], Title: bad[0], Sentences: bad, Lines: bad, Columns: bad[:1], Rows: [][]string{bad[:1]}, More: bad, Small: bad}},
		Pools: []*report.Timeline{{Pool: bad[0], Events: 1, Starts: one, Moments: one, Live: one, Blocks: one, Groupings: []*report.Grouping{g}, Lists: []*report.List{l},
			Allocations: &report.Allocations{From: one, For: []uint64{0}, Bytes: []uint64{1}, Names: []int{0}},
			Segments:    []*report.Segment{{Addr: bad[0], Bytes: 9, Blocks: [][3]uint64{{0, 9, 1}}}},
			Ends:        one, Asked: one, Peak: 9, PeakAt: 1, Layers: []*report.Layer{{
				Policy: bad[0], Cells: bad[:1], Used: one, Held: one, Free: one, Hole: one, Calls: one, Frag: []float64{1}, Refused: one,
				Snapshots: []*report.Snapshot{in}, First: &refusal, Refusals: []report.Refusal{refusal, refusal}, Why: bad, Notes: bad,
			}}}},
	}
	path := filepath.Join(t.TempDir(), "bad.html")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(report.WritePage(f, p), f.Close()); err != nil {
		t.Fatal(err)
	}
	b := tryPage(t, 800, 900)
	b.open(path, "")
	b.state()
	var shown, title string
	var images int
	b.Eval("document.querySelector('.list').textContent", &shown)
	b.Eval("document.title", &title)
	b.Eval("document.images.length", &images)
	if title != bad[0] || images > 0 || !strings.Contains(shown, bad[0]) || !strings.Contains(shown, "onerror") {
		t.Errorf("title %q, %d images, %q", title, images, shown)
	}
	for _, css := range []string{".lives .plot", ".strip", ".segments canvas"} {
		b.point(css, .5, .4)
		b.card()
	}
	b.wants(t)
	if len(b.Requests()) != 1 {
		t.Errorf("it asks for %q", b.Requests())
	}
}
