package web_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/internal/report"
	"gpumem/internal/report/web"
	"gpumem/internal/test/browser"
	"gpumem/internal/test/webtest"
	"gpumem/size"
)

// TestNumbersAreDifferences: added up again they are the numbers.
func TestNumbersAreDifferences(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOf(rapid.Uint64Range(0, 1<<52)).Draw(t, "numbers")
		data, err := json.Marshal(web.Numbers(want))
		if err != nil {
			t.Fatal(err)
		}
		var steps []int64
		if err := json.Unmarshal(data, &steps); err != nil {
			t.Fatal(err)
		}
		if got := webtest.Sum(steps); !slices.Equal(got, want) {
			t.Fatalf("%s is %d, not %d", data, got, want)
		}
	})
	if data, err := json.Marshal(web.Numbers(nil)); err != nil || string(data) != "[]" {
		t.Errorf("%s, %v", data, err)
	}
}

func written(t *testing.T, p web.Page) string {
	t.Helper()
	var b strings.Builder
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestPolicyAllowsOneScript: the content security policy names the page's script and no
// other.
func TestPolicyAllowsOneScript(t *testing.T) {
	html := written(t, web.Page{Title: "</title><script>alert(1)</script>", Body: "<p>x</p>", Script: "function start() {}"})
	scripts := regexp.MustCompile(`(?s)<script[^>]*>(.*?)</script>`).FindAllStringSubmatch(html, -1)
	if len(scripts) != 1 {
		t.Fatalf("%d scripts", len(scripts))
	}
	sum := sha256.Sum256([]byte(scripts[0][1]))
	want := "script-src &#39;sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "&#39;;"
	if got := strings.ReplaceAll(html, "&#43;", "+"); !strings.Contains(got, want) || !strings.Contains(got, "default-src &#39;none&#39;") {
		t.Errorf("the content security policy has no %s", want)
	}
	for _, bad := range []string{"src=", "@import", "<link", "ZgotmplZ"} {
		if strings.Contains(html, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	if err := (&web.Page{Data: func() {}}).Write(&strings.Builder{}); err == nil {
		t.Error("data that is not JSON is written")
	}
	if err := (&web.Page{}).Write(full{}); !errors.Is(err, errFull) {
		t.Errorf("a full disk: %v", err)
	}
}

var errFull = errors.New("full")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

// open opens a page in a browser.
func open(t *testing.T, p web.Page, width, height int, scheme string) *browser.Page {
	t.Helper()
	path := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(path, []byte(written(t, p)), 0o600); err != nil {
		t.Fatal(err)
	}
	b := browser.Open(t, width, height, scheme)
	b.Go("file://" + path)
	b.Wait(`document.documentElement.dataset.ready === "yes" || document.documentElement.dataset.errors`)
	return b
}

// works checks that nothing has failed.
func works(t *testing.T, b *browser.Page) {
	t.Helper()
	var errs string
	b.Eval("document.documentElement.dataset.errors || ''", &errs)
	if errs != "" || len(b.Troubles()) > 0 || len(b.Requests()) != 1 {
		t.Errorf("the page fails: %q, %q, requests %q", errs, b.Troubles(), b.Requests())
	}
}

// TestTextsAreThoseOfGo: numbers look the same on a page and on the command line.
func TestTextsAreThoseOfGo(t *testing.T) {
	var numbers []uint64
	for k := range 64 {
		for _, d := range []int64{-1, 0, 1} {
			numbers = append(numbers, min(uint64(int64(1)<<k+d), 1<<53))
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		numbers = append(numbers, r.Uint64N(1<<(1+r.Uint64N(53))))
	}
	// Of a time halfway between two roundings either is right.
	times := slices.DeleteFunc(slices.Clone(numbers), func(n uint64) bool {
		digits := strings.TrimRight(fmt.Sprint(n), "0")
		return len(digits) == 4 && digits[3] == '5' || n >= 1e12 && n%1e9 == 5e8
	})
	b := open(t, web.Page{
		Script: `function start(d) { window.texts = d.numbers.map((n) => [bytes(n), count(n), counted(n, "block")]); window.times = d.times.map((n) => time(n)); }`,
		Data:   map[string][]uint64{"numbers": numbers, "times": times},
	}, 600, 400, "light")
	works(t, b)
	var got [][3]string
	b.Eval("texts", &got)
	for k, n := range numbers {
		if want := [3]string{size.Format(n), report.Count(n), report.Counted(n, "block")}; got[k] != want {
			t.Errorf("%d: %q, want %q", n, got[k], want)
		}
	}
	var seconds []string
	b.Eval("window.times", &seconds)
	for k, n := range times {
		if want := report.Seconds(float64(n) / 1e9); seconds[k] != want {
			t.Errorf("%d ns: %q, want %q", n, seconds[k], want)
		}
	}
}

// plotted is a page with one plot of two bands and a line.
var plotted = web.Page{
	Body: `<main id="main"></main>`,
	Script: `function start(d) {
		window.p = plot(byId("main"), {
			name: "A plot", x: { min: 1, max: 11, title: "event" }, y: { title: "live" }, at: d.at,
			bands: [{ name: "first band", color: "c1", values: d.first }, { name: "second band", color: "c2", values: d.second }],
			lines: [{ name: "held", color: "c3", values: d.held }],
			marks: [{ at: 3, text: "a long text at three", color: "no" }, { at: 3.5, text: "another long text near it", color: "text" }, { at: 10.9, text: "at the right end", color: "text" }],
			dim: { from: 8, text: "later" },
			card: (k, band) => ({ title: "event " + d.at[k], rows: [["band", String(band)], ["", "stack"]] }),
			click: (k) => { window.clicked = k; },
		});
	}`,
	Data: map[string][]uint64{
		"at": {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, "first": {1 << 20, 2 << 20, 3 << 20, 3 << 20, 3 << 20, 2 << 20, 1 << 20, 1 << 20, 0, 0},
		"second": {0, 1 << 20, 1 << 20, 2 << 20, 3 << 20, 3 << 20, 0, 0, 1 << 20, 0}, "held": {8 << 20, 8 << 20, 8 << 20, 8 << 20, 8 << 20, 8 << 20, 8 << 20, 8 << 20, 8 << 20, 8 << 20},
	},
}

// TestPlotAnswersThePointerAndKeys: the card stands beside the pointer and inside the
// window, says which band is under it, and the keys reach the same.
func TestPlotAnswersThePointerAndKeys(t *testing.T) {
	for _, width := range []int{1280, 390} {
		t.Run(fmt.Sprint(width), func(t *testing.T) {
			b := open(t, plotted, width, 800, "light")
			for _, x := range []float64{.2, .35, .5, .6} {
				b.Mouse("mouseMoved", ".plot", x, .8)
				var card struct {
					Left, Top, Right, Bottom float64
					Text                     string
				}
				b.Eval(`(() => { const r = document.querySelector(".card").getBoundingClientRect(); return { Left: r.left, Top: r.top, Right: r.right, Bottom: r.bottom, Text: document.querySelector(".card").innerText }; })()`, &card)
				if card.Left < 0 || card.Top < 0 || card.Right > float64(width) || card.Bottom > 800 || !strings.Contains(card.Text, "event ") || !strings.Contains(card.Text, "stack") {
					t.Errorf("at %v: %+v", x, card)
				}
				var over bool
				b.Eval(fmt.Sprintf(`(() => { const c = document.querySelector(".card").getBoundingClientRect(), p = document.querySelector(".plot").getBoundingClientRect(), x = p.left + %v * p.width, y = p.top + .8 * p.height; return c.left < x && x < c.right && c.top < y && y < c.bottom; })()`, x), &over)
				if over {
					t.Errorf("at %v the card covers the pointer", x)
				}
			}
			// The second event's lower band.
			var at struct{ X, Y float64 }
			b.Eval(`(() => { const r = p.wrap.getBoundingClientRect(); return { X: p.X(2.5) / r.width, Y: p.Y(2**20) / r.height }; })()`, &at)
			b.Mouse("mouseMoved", ".plot", at.X, at.Y)
			if text := shown(b); text != "event 2\nband\n0\nstack" {
				t.Errorf("on the first band: %q", text)
			}
			b.Eval(`(() => { const r = p.wrap.getBoundingClientRect(); return { X: p.X(5.5) / r.width, Y: p.Y(5 * 2**20) / r.height }; })()`, &at)
			b.Mouse("mouseMoved", ".plot", at.X, at.Y)
			if text := shown(b); text != "event 5\nband\n1\nstack" {
				t.Errorf("on the second band: %q", text)
			}
			b.Mouse("mousePressed", ".plot", at.X, at.Y)
			b.Mouse("mouseReleased", ".plot", at.X, at.Y)
			var clicked int
			b.Eval("clicked", &clicked)
			if clicked != 4 {
				t.Errorf("a click is on value %d", clicked)
			}
			b.Mouse("mouseMoved", "body", .01, .01)
			var hidden bool
			b.Eval(`document.querySelector(".card").hidden`, &hidden)
			if !hidden {
				t.Error("the card stays when the pointer has left")
			}
			b.Eval(`document.querySelector(".plot").focus()`, nil)
			b.Press("Home")
			var said string
			b.Eval(`document.querySelector(".said").textContent`, &said)
			if !strings.HasPrefix(said, "event 1. ") {
				t.Errorf("a screen reader hears %q", said)
			}
			b.Press("ArrowRight")
			b.Eval(`document.querySelector(".said").textContent`, &said)
			if !strings.HasPrefix(said, "event 2. ") {
				t.Errorf("after the right arrow a screen reader hears %q", said)
			}
			// Dragged over, it zooms; double-clicked, it shows all.
			b.Mouse("mouseMoved", ".plot", .3, .5)
			b.Mouse("mousePressed", ".plot", .3, .5)
			b.Mouse("mouseMoved", ".plot", .5, .5)
			b.Mouse("mouseReleased", ".plot", .5, .5)
			var view []float64
			b.Eval("p.group.view", &view)
			if len(view) != 2 || view[1]-view[0] > 6 || view[1]-view[0] < 4 {
				t.Errorf("after dragging it shows %v", view)
			}
			works(t, b)
		})
	}
}

// shown is the card's text.
func shown(b *browser.Page) (text string) {
	b.Eval(`document.querySelector(".card").innerText`, &text)
	return text
}

// watch notes in texts what plots write, and where.
const watch = `const texts = window.texts = []; let before = CanvasRenderingContext2D.prototype.fillText;
	CanvasRenderingContext2D.prototype.fillText = function (s, x, y) {
		const m = this.measureText(s);
		texts.push({ s, left: x - m.actualBoundingBoxLeft, right: x + m.actualBoundingBoxRight, top: y - m.actualBoundingBoxAscent, bottom: y + m.actualBoundingBoxDescent });
		before.call(this, s, x, y);
	};`

// TestNoTextOfAPlotCoversAnother, and none leaves the canvas: each fillText is watched.
func TestNoTextOfAPlotCoversAnother(t *testing.T) {
	watched := plotted
	watched.Script = watch + plotted.Script
	for _, width := range []int{1280, 700, 390, 320} {
		b := open(t, watched, width, 700, "light")
		var texts []struct {
			S                        string
			Left, Right, Top, Bottom float64
		}
		b.Eval("texts.length = 0, p.redraw(), texts", &texts)
		var wide float64
		b.Eval("p.wrap.clientWidth", &wide)
		if len(texts) < 8 {
			t.Fatalf("%d wide: %d texts", width, len(texts))
		}
		for k, x := range texts {
			if x.Left < -1 || x.Right > wide+1 {
				t.Errorf("%d wide: %q leaves the plot", width, x.S)
			}
			for _, y := range texts[:k] {
				if x.Left < y.Right && y.Left < x.Right && x.Top < y.Bottom && y.Top < x.Bottom {
					t.Errorf("%d wide: %q covers %q", width, x.S, y.S)
				}
			}
		}
		works(t, b)
	}
}

// TestColoursHaveContrast: words have 4.5:1 on the page and on panels, and what is drawn 3:1
// on one of its sides (WCAG 2.2, 1.4.3 and 1.4.11), in both schemes.
func TestColoursHaveContrast(t *testing.T) {
	for _, scheme := range []string{"light", "dark"} {
		b := open(t, web.Page{Script: `function start() {
			const light = (name) => { const [r, g, b] = color(name).replace(/^#(.)(.)(.)$/, "#$1$1$2$2$3$3").match(/\w\w/g).map((h) => { const c = parseInt(h, 16) / 255; return c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4; }); return .2126 * r + .7152 * g + .0722 * b; };
			window.ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((x, y) => y - x); return (x + .05) / (y + .05); };
		}`}, 300, 300, scheme)
		for _, c := range []struct {
			names string
			on    string
			least float64
		}{{"text quiet no edge", "page", 4.5}, {"text quiet", "panel", 4.5}, {"text", "mark", 4.5}, {"c1 c3 c6 c7 c8 before", "page", 3}, {"c2 c4 c5 rest", "page", 1.7}} {
			for name := range strings.FieldsSeq(c.names) {
				var got float64
				b.Eval(fmt.Sprintf("ratio(%q, %q)", name, c.on), &got)
				if got < c.least {
					t.Errorf("%s: %s on %s has %.2f, want %v", scheme, name, c.on, got, c.least)
				}
			}
		}
		works(t, b)
	}
}

// TestTextCannotTurnOthersAround: characters that change the direction of text are replaced,
// in the data, in the text and in the title.
func TestTextCannotTurnOthersAround(t *testing.T) {
	const turn = "\u202e\u2066\u061c\u200f"
	html := written(t, web.Page{Title: "t" + turn, Body: template.HTML("<p>b" + turn + "</p>"), Data: map[string]string{"k" + turn: "v" + turn}})
	var data map[string]string
	webtest.Data(t, html, &data)
	for _, c := range turn {
		if strings.ContainsRune(html+fmt.Sprint(data), c) {
			t.Errorf("%U is in the page", c)
		}
	}
	if want := "v" + strings.Repeat("\ufffd", 4); data["k"+strings.Repeat("\ufffd", 4)] != want {
		t.Errorf("%q, want %q", data, want)
	}
}

// TestTableSearchesAndSorts in a browser.
func TestTableSearchesAndSorts(t *testing.T) {
	b := open(t, web.Page{
		Body: template.HTML(`<main id="main"></main>`),
		Script: `function start(rows) {
			window.t = table(byId("main"), { name: "Rows", rows, columns: [
				{ title: "bytes", number: true, text: (r) => bytes(r.n), sort: (r) => r.n }, { title: "who", long: true, text: (r) => r.who, node: (r) => stackNode(r.who) } ] });
		}`,
		Data: []map[string]any{{"n": 5, "who": "<img src=x>\nouter"}, {"n": 9 << 20, "who": "beta"}, {"n": 1 << 10, "who": "gamma"}},
	}, 800, 600, "light")
	first := func() (text string) {
		b.Eval(`document.querySelector("tbody").innerText`, &text)
		return text
	}
	if text := first(); !strings.HasPrefix(text, "5 B") || !strings.Contains(text, "<img src=x>") {
		t.Errorf("unsorted: %q", text)
	}
	b.Eval(`document.querySelector("button.head").click()`, nil)
	if text := first(); !strings.HasPrefix(text, "9 MiB") {
		t.Errorf("by bytes: %q", text)
	}
	b.Eval(`document.querySelector("button.head").click()`, nil)
	if text := first(); !strings.HasPrefix(text, "5 B") {
		t.Errorf("by bytes, the least first: %q", text)
	}
	b.Eval(`t.search("GAM")`, nil)
	if text := first(); !strings.HasPrefix(text, "1 KiB") || strings.Contains(text, "beta") {
		t.Errorf("searched: %q", text)
	}
	if text := b.Text(); !strings.Contains(text, "1 of 3 rows have") {
		t.Errorf("searched, the page says %q", text)
	}
	works(t, b)
}

// TestMarksHaveAGap: texts of two marks beside each other do not read as one, wherever the
// second stands.
func TestMarksHaveAGap(t *testing.T) {
	watched := plotted
	watched.Script = watch + plotted.Script
	b := open(t, watched, 1280, 700, "light")
	var beside int
	var least float64
	b.Eval(`window.gaps = []; for (let at = 3; at < 8; at += .01) {
		texts.length = 0;
		p.set({ marks: [{ at: 3, text: "before 1 MiB" }, { at, text: "after 2 MiB" }] });
		const [x, y] = ["before 1 MiB", "after 2 MiB"].map((s) => texts.find((t) => t.s === s));
		if (Math.abs(x.bottom - y.bottom) < 8) gaps.push(y.left - x.right);
	} gaps.length`, &beside)
	if b.Eval(`Math.min(...gaps)`, &least); beside < 100 || least < 16 || least > 40 {
		t.Errorf("%d times in one row, with %.1f pixels between them at least", beside, least)
	}
	works(t, b)
}

// TestALineThatEndsHasItsName: at the right, at the height that it had.
func TestALineThatEndsHasItsName(t *testing.T) {
	b := open(t, web.Page{
		Body: `<main id="main"></main>`,
		Script: watch + `function start() {
			const ends = [4, 4, 4, null, null].map((v) => v ?? NaN);
			window.p = plot(byId("main"), { name: "lines", x: { min: 0, max: 5, title: "event" }, y: { title: "live" }, at: [0, 1, 2, 3, 4],
				lines: [{ name: "short run", color: "c1", values: ends }, { name: "long run", color: "c2", values: [1, 2, 3, 4, 5] }, { name: "no run", color: "c3", values: ends.map(() => NaN) }] });
		}`,
	}, 1000, 500, "light")
	var got []string
	b.Eval(`texts.filter((t) => t.s.endsWith("run")).map((t) => t.s + " " + Math.round((t.top + t.bottom) / 2 - p.Y(t.s === "short run" ? 4 : 5)) / 10 ** 2).map((s) => s.replace(/ -?0(\.0\d)?$/, ""))`, &got)
	slices.Sort(got)
	if want := []string{"long run", "short run"}; !slices.Equal(got, want) {
		t.Errorf("names %q, want %q at their lines", got, want)
	}
	works(t, b)
}

// TestPrint: on paper nothing lies over a picture, and closed parts and the ends of long
// lists are left out.
func TestPrint(t *testing.T) {
	long := strings.Repeat("<tr><td>row</td></tr>", 40) + `<tr class="rest"><td>and more</td></tr>`
	printed := plotted
	printed.Body += template.HTML(`<details><summary>closed</summary><p>inside</p></details><div class="wrap"><table id="long"><tbody>` + long + `</tbody></table></div>`)
	b := open(t, printed, 1000, 700, "light")
	const shown = `[...document.querySelectorAll(".plot canvas")].filter((c) => c.getClientRects().length).length + " pictures, " + [...document.querySelectorAll("#long tr")].filter((r) => r.getClientRects().length).length + " rows"`
	var got string
	if b.Eval(shown, &got); got != "2 pictures, 41 rows" {
		t.Errorf("on the screen: %s", got)
	}
	drawn := len(b.PDF())
	b.Print()
	if b.Eval(shown, &got); got != "1 pictures, 31 rows" {
		t.Errorf("on paper: %s", got)
	}
	if text := b.Text(); strings.Contains(text, "closed") || !strings.Contains(text, "and more") {
		t.Errorf("on paper: %s", text)
	}
	b.Scheme("light")
	b.Eval(`document.querySelectorAll("canvas").forEach((c) => c.remove())`, nil)
	if empty := len(b.PDF()); drawn < empty+4000 {
		t.Errorf("printed it has %d bytes, and %d without the picture", drawn, empty)
	}
	works(t, b)
}

// TestWideColumnsAreNotOnPhones in tables.
func TestWideColumnsAreNotOnPhones(t *testing.T) {
	b := open(t, web.Page{
		Body:   `<main id="main"></main>`,
		Script: `function start() { table(byId("main"), { name: "Rows", rows: [1], columns: [{ title: "a", text: () => "one" }, { title: "b", number: true, wide: true, text: () => "two" }] }); }`,
	}, 1000, 500, "light")
	const cells = `[...document.querySelectorAll("th, td")].filter((c) => c.getClientRects().length).length`
	var n int
	if b.Eval(cells, &n); n != 4 {
		t.Errorf("%d cells on a screen, want 4", n)
	}
	b.Size(390, 844, true)
	b.Wait("innerWidth === 390")
	if b.Eval(cells, &n); n != 2 {
		t.Errorf("%d cells on a phone, want 2", n)
	}
	works(t, b)
}

// TestKeysOfPages: d and the button change the theme, / goes to the field that is seen, the
// address names the theme; a page that handles a key itself does so alone.
func TestKeysOfPages(t *testing.T) {
	const fields = `<p><input type="search" id="hidden" hidden><input type="search" id="seen"></p>`
	const own = `function start() {
		window.presses = 0;
		byId("theme").onclick = () => setTheme(isDark() ? "light" : "dark");
		addEventListener("keydown", (e) => { if (e.key === "d" && e.target === document.body) { presses++; byId("theme").click(); e.preventDefault(); } });
	}`
	for _, c := range []struct {
		name string
		page web.Page
	}{
		{"with links", web.Page{Body: "<nav><ul></ul></nav>" + fields, Script: "function start() {}"}},
		{"without links", web.Page{Body: fields, Script: "function start() {}"}},
		{"with keys of its own", web.Page{Body: `<button id="theme">dark or light</button>` + fields, Script: own}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := open(t, c.page, 600, 400, "light")
			theme := func(want string) {
				t.Helper()
				var got string
				if b.Eval("document.documentElement.dataset.theme || ''", &got); got != want {
					t.Errorf("theme %q, want %q", got, want)
				}
			}
			theme("")
			b.Press("d")
			theme("dark")
			b.Press("d")
			theme("light")
			b.Eval(`document.querySelector("#theme").click()`, nil)
			theme("dark")
			var text string
			if b.Eval(`[...document.querySelectorAll("button")].map((b) => b.textContent).join()`, &text); text != "dark or light" {
				t.Errorf("buttons %q", text)
			}
			b.Eval(`location.hash = "#theme=light"`, nil)
			b.Wait(`document.documentElement.dataset.theme === "light"`)
			b.Press("/")
			b.Press("d") // is text there
			theme("light")
			if b.Eval(`document.activeElement.id + " " + document.activeElement.value`, &text); !strings.HasPrefix(text, "seen ") || strings.Contains(text, "/") {
				t.Errorf("after / the focus is at %q", text)
			}
			works(t, b)
		})
	}
	path := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(path, []byte(written(t, web.Page{Script: "function start() {}"})), 0o600); err != nil {
		t.Fatal(err)
	}
	b := browser.Open(t, 600, 400, "light")
	b.Go("file://" + path + "#memory&theme=dark")
	b.Wait(`document.documentElement.dataset.theme === "dark"`)
}
