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
	"strconv"
	"strings"
	"testing"

	"gpumem/internal/test/browser"
	"gpumem/report"
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
		"<!DOCTYPE html>", `<html lang="en">`, `name="viewport"`, "prefers-color-scheme: dark", "<noscript>", "default-src &#39;none&#39;", "Leon Sorokin",
		"fragmentation.txt.gz runs out of memory on 16 GiB under jax:preallocate=false alone.",
		"event 3,156 of 5,161 asked for 4.46 GiB and was refused, the first of 200 refusals.",
		"Of the pool&#39;s 12 GiB, 7.97 GiB was free, enough, but in pieces of which the largest was 4 GiB",
		"On the same device jax served every request; it held 12 GiB at most.",
		"The timeline as a table", "4,786, the peak",
	} {
		if !strings.Contains(strings.ReplaceAll(page, "\u00a0", " "), want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, bad := range []string{"src=", "url(", "@import", "<link", "NaN", "ZgotmplZ", "%!", "<no value>", filepath.Dir(fragmentation)} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	// All that is not a script is well formed, the drawing too.
	body := page[strings.Index(page, "<body>"):strings.Index(page, "<script id=")]
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

// state is what the page tells of itself.
func (p *tried) state() (s map[string]string) {
	p.t.Helper()
	p.frame()
	p.Eval("({...document.getElementById('page').dataset})", &s)
	return s
}

// wants checks what the page tells of itself, in pairs, and that nothing failed.
func (p *tried) wants(t *testing.T, pairs ...string) {
	t.Helper()
	s := p.state()
	for k := 0; k < len(pairs); k += 2 {
		if s[pairs[k]] != pairs[k+1] {
			t.Errorf("%s is %q, want %q", pairs[k], s[pairs[k]], pairs[k+1])
		}
	}
	if s["ready"] != "yes" || s["errors"] != "" || len(p.Troubles()) > 0 {
		t.Errorf("the page fails: ready %q, %q, %q", s["ready"], s["errors"], p.Troubles())
	}
	if n, err := strconv.Atoi(s["points"]); err != nil || n < 3 {
		t.Errorf("%q points are drawn", s["points"])
	}
}

// text is that of an element.
func (p *tried) text(id string) (s string) {
	p.t.Helper()
	p.frame()
	p.Eval("document.getElementById('"+id+"').textContent", &s)
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
	b := tryPage(t, 1280, 900)
	b.open(path, "")
	t.Run("opens", func(t *testing.T) {
		// At the first refusal, under the policy that has it.
		b.wants(t, "policy", "jax:preallocate=false", "event", fmt.Sprint(*rep.Results[1].First), "held", fmt.Sprint(12<<30))
		if r := b.Requests(); len(r) != 1 || !strings.HasPrefix(r[0], "file://") {
			t.Errorf("it asks for %q", r)
		}
	})
	t.Run("draws", func(t *testing.T) {
		for _, scheme := range []string{"light", "dark"} {
			b.Scheme(scheme)
			for _, width := range []int{1280, 390} {
				b.Size(width, 900, width < 640)
				for _, css := range []string{"#plot", "#over", "#strip"} {
					drawn(t, b, css, scheme)
				}
				var wide bool
				b.Eval("document.documentElement.scrollWidth > innerWidth", &wide)
				if wide {
					t.Errorf("%s, %d wide: it has to be scrolled sideways", scheme, width)
				}
			}
		}
		b.Size(1280, 900, false)
		b.wants(t)
	})
	t.Run("peak", func(t *testing.T) {
		b.open(path, "at=peak&policy=jax")
		peak := fmt.Sprint(rep.Trace.Peak)
		b.wants(t, "policy", "jax", "asked", peak, "peak", peak, "askedtext", size.Format(rep.Trace.Peak), "event", "4786")
	})
	t.Run("keys", func(t *testing.T) {
		b.open(path, "at=peak&policy=jax")
		b.Press("End")
		b.wants(t, "event", "5161")
		b.Press("Home")
		b.wants(t, "event", "1", "blocks", "1")
		b.Press("ArrowRight")
		first := b.state()["event"]
		b.Press("ArrowRight")
		if b.state()["event"] == first {
			t.Error("the right arrow does not move")
		}
		b.Press("ArrowLeft")
		b.wants(t, "event", first, "look", first)
		b.Press("p")
		b.wants(t, "event", "4786")
		b.Press("n")
		b.wants(t, "policy", "jax:preallocate=false", "event", "4786")
		b.Press("r")
		b.wants(t, "event", "3156")
		whole := b.state()["points"]
		b.Press("3")
		if b.state()["points"] == whole {
			t.Error("3 does not take the third policy's line away")
		}
		b.Press("3")
		for range 8 {
			b.Press("+")
		}
		if hash := b.hash(); !strings.Contains(hash, "zoom=31") {
			t.Errorf("after zooming in the address is %s", hash)
		}
		b.wants(t, "event", "3156")
		b.Press("0")
		b.wants(t, "points", whole)
	})
	t.Run("pointer", func(t *testing.T) {
		b.open(path, "at=peak&policy=jax")
		b.Mouse("mouseMoved", "#plot .u-over", 0.5, 0.5)
		words := b.text("pointer")
		if !strings.Contains(words, "event 2,5") || !strings.Contains(words, "alive ") {
			t.Errorf("under the pointer: %q", words)
		}
		if at := b.state()["event"]; !strings.HasPrefix(at, "25") {
			t.Errorf("under the pointer event %s is looked at", at)
		}
		b.Mouse("mousePressed", "#plot .u-over", 0.5, 0.5)
		b.Mouse("mouseReleased", "#plot .u-over", 0.5, 0.5)
		b.Mouse("mouseMoved", "h1", 0.5, 0.5)
		if at := b.state()["event"]; !strings.HasPrefix(at, "25") {
			t.Errorf("after a click event %s is looked at", at)
		}
		// The map shows a block somewhere under the pointer.
		for _, x := range []float64{.99, .95, .9, .85, .8, .7, .6, .5} {
			b.Mouse("mouseMoved", "#strip", x, 0.4)
			if words = b.text("block"); strings.HasPrefix(words, "Under the pointer: a block of ") {
				break
			}
		}
		if !strings.HasPrefix(words, "Under the pointer: a block of ") {
			t.Errorf("on the map: %q", words)
		}
		// Dragged over, it zooms.
		b.Mouse("mouseMoved", "#plot .u-over", 0.25, 0.5)
		b.Mouse("mousePressed", "#plot .u-over", 0.25, 0.5)
		b.Mouse("mouseMoved", "#plot .u-over", 0.4, 0.5)
		b.Mouse("mouseMoved", "#plot .u-over", 0.5, 0.5)
		b.Mouse("mouseReleased", "#plot .u-over", 0.5, 0.5)
		if hash := b.hash(); !regexp.MustCompile("zoom=12..-25..$").MatchString(hash) {
			t.Errorf("after dragging the address is %s", hash)
		}
		b.wants(t)
	})
}

// TestPageWithoutScripts: the story, the drawing and the tables are there, and
// nothing that would do nothing.
func TestPageWithoutScripts(t *testing.T) {
	path, _, _ := pageOf(t, fragmentation, "--device", "sim:16GiB")
	b := tryPage(t, 1000, 1800)
	b.WithoutScripts("file://" + path)
	drawn(t, b, "noscript svg", "without scripts")
	var buttons bool
	b.Eval("[...document.querySelectorAll('button, input, canvas')].some(e => e.offsetParent)", &buttons)
	if buttons {
		t.Error("there are controls that do nothing")
	}
}

// drawn says whether an element of the page has several colours, and much of two.
func drawn(t *testing.T, b *tried, css, what string) {
	t.Helper()
	box := b.Box(css)
	var down float64 // the picture is of the whole page
	b.Eval("scrollY", &down)
	box.Y += down
	img, err := png.Decode(bytes.NewReader(b.Screenshot()))
	if err != nil {
		t.Fatal(err)
	}
	at := image.Rect(int(box.X), int(box.Y), int(box.X+box.W), int(box.Y+box.H)).Intersect(img.Bounds())
	colours := map[[3]uint32]int{}
	for y := at.Min.Y; y < at.Max.Y; y++ {
		for x := at.Min.X; x < at.Max.X; x++ {
			r, g, b, _ := img.At(x, y).RGBA()
			colours[[3]uint32{r, g, b}]++
		}
	}
	many := 0
	for _, n := range colours {
		if n*20 > at.Dx()*at.Dy() {
			many++
		}
	}
	if len(colours) < 5 || many < 2 {
		t.Errorf("%s, %s in %v: %d colours, %d of them on much of it", what, css, at, len(colours), many)
	}
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
			for _, at := range []string{"", "at=peak", "at=end", "at=7&zoom=0-99999&policy=elastic&by=stacks&hide=1,2,99", "at=%22%3E%3Cscript%3Ealert(1)%3C/script%3E=1"} {
				b.open(path, at)
				if s := b.state(); s["ready"] != "yes" || s["errors"] != "" || len(b.Troubles()) > 0 {
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
	b := tryPage(t, 1280, 900)
	b.open(path, fmt.Sprintf("at=refused&zoom=%d-%d", first-4, first+6))
	s := b.state()
	if s["event"] != fmt.Sprint(first+3) || s["asked"] != fmt.Sprint(3<<28) || s["blocks"] != "3" || s["errors"] != "" {
		t.Errorf("at the first refusal: %q", s)
	}
	b.Mouse("mouseMoved", "#plot .u-over", 0.55, 0.5) // in the middle of the second
	words := b.text("pointer")
	if want := fmt.Sprintf("Under the pointer, event 200,%03d: alive 512 MiB, held 768 MiB, free 256 MiB", first+1-200_000); !strings.HasPrefix(words, want) {
		t.Errorf("%q, want %q", words, want)
	}
	b.open(path, "at=peak")
	if s := b.state(); s["peak"] != fmt.Sprint(8<<28) || s["event"] != fmt.Sprint(first+7) || s["errors"] != "" || len(b.Troubles()) > 0 {
		t.Errorf("at the peak: %q, %q", s, b.Troubles())
	}
}

// TestHostilePage: whatever stands in a recording's names is shown as it stands,
// and never runs.
func TestHostilePage(t *testing.T) {
	bad := []string{
		"</script><script>document.title='run'</script>", "<img src=x onerror=\"document.title='run'\">\nsecond line", "<!--<script>", "\u2028\u202e\x00\xff",
		"\"'&<>`${1}", "javascript:document.title='run'",
	}
	in := &report.Snapshot{Event: 1, Used: 9, Asked: 9, Blocks: 9, Held: 9, Map: "08?", Holes: 1, Largest: [][2]uint64{{0, 3}}}
	for k := range bad {
		g := report.Group{Key: uint64(k), Bytes: 1, Blocks: 1}
		in.Sizes, in.Stacks, in.Frames = append(in.Sizes, g), append(in.Stacks, g), append(in.Frames, g)
	}
	curve := report.Curve{Min: report.Numbers{9}, Max: report.Numbers{9}}
	one := report.Numbers{1}
	refusal := report.Refusal{Event: 1, Bytes: 1, Stack: 1}
	p := &report.Page{
		Title: bad[0], Headline: bad[0], Summary: bad, Notes: bad, Columns: []string{bad[0]}, Names: bad,
		Pools: []*report.Timeline{{Pool: bad[0], Events: 1, Ends: one, Asked: curve, Peak: 9, PeakAt: 1, Layers: []*report.Layer{{
			Policy: bad[0], Cells: bad[:1], Used: curve, Held: curve, Free: one, Hole: one, Calls: one, Refused: one,
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
	b.open(path, "by=stacks")
	var shown, title string
	var images int
	b.Eval("document.getElementById('rows').textContent", &shown)
	b.Eval("document.title", &title)
	b.Eval("document.images.length", &images)
	if title != bad[0] || images > 0 || !strings.Contains(shown, bad[0]) || !strings.Contains(shown, "onerror") {
		t.Errorf("title %q, %d images, %q", title, images, shown)
	}
	if s := b.state(); s["ready"] != "yes" || s["errors"] != "" || len(b.Troubles()) > 0 || len(b.Requests()) != 1 {
		t.Errorf("%q, %q, %q", s, b.Troubles(), b.Requests())
	}
}
