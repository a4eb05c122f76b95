package web_test

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"gpumem/internal/report/web"
	"gpumem/internal/test/browser"
)

// seeing adds to a page's script: seen(x, y) is the name of the colour that the plot p has
// there, "" if it is none of the page's; texts are those that plots write, with their places.
func seeing(script string) string {
	return `window.texts = [];
	const fillText = CanvasRenderingContext2D.prototype.fillText;
	CanvasRenderingContext2D.prototype.fillText = function (s, x, y) { texts.push({ s, x, y, align: this.textAlign, width: this.measureText(s).width }); fillText.call(this, s, x, y); };
	window.pixelAt = (x, y) => {
		const d = devicePixelRatio, g = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
		g.drawImage(p.wrap.querySelector("canvas"), -Math.round(x * d), -Math.round(y * d));
		return [...g.getImageData(0, 0, 1, 1).data];
	};
	window.rgbOf = (name) => { const h = color(name).replace(/^#(.)(.)(.)$/, "#$1$1$2$2$3$3"); return [1, 3, 5].map((k) => parseInt(h.slice(k, k + 2), 16)); };
	window.seen = (x, y) => {
		const at = pixelAt(x, y);
		if (at[3] === 0) return "nothing";
		return ["c1", "c2", "c3", "no", "page", "grid"].find((n) => rgbOf(n).every((v, k) => Math.abs(v - at[k]) < 3)) || "";
	};
	` + script
}

// stacked is a page with two bands on each other and nothing else, with more in its spec.
func stacked(more string) web.Page {
	return web.Page{
		Body: `<main id="main"></main>`,
		Script: seeing(`function start(d) {
			window.p = plot(byId("main"), Object.assign({
				name: "A plot", x: { min: 1, max: 11, title: "event" }, y: { title: "live", max: 8 * 2 ** 20 }, at: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], labels: 100,
				bands: [{ name: "", color: "c1", values: [3, 3, 3, 3, 3, 3, 3, 3, 3, 0].map((n) => n * 2 ** 20) }, { name: "", color: "c2", values: [0, 2, 2, 2, 2, 2, 2, 2, 2, 2].map((n) => n * 2 ** 20) }],
				card: (k, band) => ({ title: "value " + k, rows: [["band", String(band)]] }),
			}, ` + more + `));
		}`),
	}
}

func sees(b *browser.Page, event, mib float64) (name string) {
	b.Eval(fmt.Sprintf("seen(p.X(%v), p.Y(%v * 2 ** 20))", event, mib), &name)
	return name
}

// TestBandsLieOnEachOther, in what is drawn and in what the pointer finds.
func TestBandsLieOnEachOther(t *testing.T) {
	b := open(t, stacked(`{}`), 1000, 600, "light")
	for _, c := range []struct {
		event, mib float64
		colour     string
		card       string
	}{
		{1.5, 1.5, "c1", "value 0\nband\n0"},
		{1.5, 4.2, "nothing", "value 0\nband\n-1"},
		{4.5, 1.5, "c1", "value 3\nband\n0"},
		{4.5, 4.2, "c2", "value 3\nband\n1"},
		{4.5, 5.4, "nothing", "value 3\nband\n-1"},
		{10.5, 1.2, "c2", "value 9\nband\n1"},
		{10.5, 2.5, "nothing", "value 9\nband\n-1"},
	} {
		if got := sees(b, c.event, c.mib); got != c.colour {
			t.Errorf("at event %v, %v MiB: %s, want %s", c.event, c.mib, got, c.colour)
		}
		var at struct{ X, Y float64 }
		b.Eval(fmt.Sprintf(`(() => { const r = p.wrap.getBoundingClientRect(); return { X: p.X(%v) / r.width, Y: p.Y(%v * 2 ** 20) / r.height }; })()`, c.event, c.mib), &at)
		b.Mouse("mouseMoved", ".plot", at.X, at.Y)
		if got := shown(b); got != c.card {
			t.Errorf("at event %v, %v MiB: %q, want %q", c.event, c.mib, got, c.card)
		}
	}
	works(t, b)
}

// TestLevelsAndWhatFollowsAreDrawn: a level in its colour across the plot, and what follows a
// refusal fainter than what precedes it.
func TestLevelsAndWhatFollowsAreDrawn(t *testing.T) {
	b := open(t, stacked(`{ dim: { from: 6, text: "" }, levels: [{ value: 7 * 2 ** 20, text: "the device", color: "no" }] }`), 1000, 600, "light")
	var found int
	b.Eval(`(() => { let n = 0; for (let x = Math.round(p.X(5)); x < p.X(9); x++) if ([-1, 0, 1].some((dy) => seen(x, Math.round(p.Y(7 * 2 ** 20)) + dy) === "no")) n++; return n; })()`, &found)
	if found < 40 { // dashed
		t.Errorf("%d pixels of the level", found)
	}
	var said bool
	if b.Eval(`texts.some((t) => t.s === "the device")`, &said); !said {
		t.Error("the level has no text")
	}
	if got := sees(b, 5.5, 1.5); got != "c1" {
		t.Errorf("before: %s, want c1", got)
	}
	// As far from the page's colour as a third or so of the band's.
	var faint float64
	b.Eval(`(() => { const at = pixelAt(p.X(6.5), p.Y(1.5 * 2 ** 20)), c = rgbOf("c1"), page = rgbOf("page"); let a = 0, b = 0; for (let k = 0; k < 3; k++) { a += Math.abs(at[k] - page[k]); b += Math.abs(c[k] - page[k]); } return a / b; })()`, &faint)
	if faint < 0.2 || faint > 0.6 {
		t.Errorf("what follows has %.2f of its colour", faint)
	}
	works(t, b)
}

// TestNoPeakIsLost: of many values on one pixel, a peak that lasts for one of them is drawn, in
// bands and in lines, which have theirs at different values, and the pointer finds the bands'.
func TestNoPeakIsLost(t *testing.T) {
	b := open(t, web.Page{
		Body: `<main id="main"></main>`,
		Script: seeing(`function start() {
			const n = 100000, at = Array.from({ length: n }, (_, k) => k + 1), values = (peak, top) => at.map((_, k) => k === peak ? top : 2 ** 20);
			const parts = (peak) => ({ bands: [{ name: "", color: "c1", values: values(peak, 5 * 2 ** 20) }], lines: [{ name: "", color: "c3", width: 2, values: values(peak - 9, 8 * 2 ** 20) }] });
			window.p = plot(byId("main"), { name: "A plot", x: { min: 1, max: n + 1, title: "event" }, y: { title: "live", max: 10 * 2 ** 20 }, at, labels: 100, ...parts(99) });
			window.put = (peak) => p.set(parts(peak));
		}`),
	}, 900, 500, "light")
	for _, peak := range []int{12_345, 50_000, 50_001, 50_017, 99_998} {
		b.Eval(fmt.Sprintf("put(%d)", peak), nil)
		for _, c := range []struct {
			what, colour string
			mib          float64
		}{{"the band", "c1", 4}, {"the line", "c3", 8}} {
			// How much of its colour is there: edges are drawn over a thin peak.
			var part float64
			b.Eval(fmt.Sprintf(`(() => {
				const x = p.X(%d), y = p.Y(%v * 2 ** 20), c = rgbOf(%q), page = rgbOf("page");
				let most = 0;
				for (let dx = -2; dx <= 2; dx++) for (let dy = -1; dy <= 1; dy++) {
					const a = pixelAt(x + dx, y + dy);
					let off = 0, all = 0;
					for (let k = 0; k < 3; k++) { off += Math.abs(a[k] - page[k]); all += Math.abs(c[k] - page[k]); }
					most = Math.max(most, a[3] / 255 * off / all);
				}
				return most;
			})()`, peak+1, c.mib, c.colour), &part)
			if part < 0.25 {
				t.Errorf("value %d: %s has %.2f of its colour at the peak", peak, c.what, part)
			}
		}
		var columns int
		if b.Eval(fmt.Sprintf(`p.columns.filter((c) => c.k === %d).length`, peak), &columns); columns != 1 {
			t.Errorf("value %d is in %d columns", peak, columns)
		}
	}
	works(t, b)
}

// TestTicksSayWhereTheyAre: each number beside an axis is that of its place, no two are the
// same, and the unit is said.
func TestTicksSayWhereTheyAre(t *testing.T) {
	const kib = 1 << 10
	b := open(t, stacked(`{}`), 1000, 600, "light")
	for _, c := range []struct {
		max  float64
		unit string
		of   float64
	}{{900, "B", 1}, {700 * kib, "KiB", kib}, {8 * kib * kib, "MiB", kib * kib}, {1.5 * kib * kib * kib, "GiB", kib * kib * kib}} {
		b.Eval(fmt.Sprintf(`p.set({ y: { title: "live", max: %v } })`, c.max), nil)
		var texts []struct {
			S           string
			X, Y, Width float64
			Align       string
		}
		b.Eval("texts.length = 0, p.redraw(), texts", &texts)
		var left, bottom float64
		b.Eval("p.box.left", &left)
		b.Eval("p.box.top + p.box.height", &bottom)
		across, up := map[float64]bool{}, map[float64]bool{}
		title := ""
		for _, x := range texts {
			v, err := strconv.ParseFloat(x.S, 64)
			switch {
			case strings.HasSuffix(x.S, ", live"):
				title = x.S
			case err != nil:
			case x.Align == "right" && x.X < left:
				var at float64
				b.Eval(fmt.Sprintf("p.Y(%v)", v*c.of), &at)
				if up[v] || math.Abs(at-x.Y) > 1.5 {
					t.Errorf("%s: %s stands at %v, its place is %v", c.unit, x.S, x.Y, at)
				}
				up[v] = true
			case x.Y > bottom:
				var at float64
				b.Eval(fmt.Sprintf("p.X(%v)", v), &at)
				if across[v] || math.Abs(at-x.X) > 14 {
					t.Errorf("event %s stands at %v, its place is %v", x.S, x.X, at)
				}
				across[v] = true
			}
		}
		if len(up) < 3 || len(across) < 3 || title != c.unit+", live" {
			t.Errorf("%s: %d numbers upwards, %d across, %q", c.unit, len(up), len(across), title)
		}
	}
	works(t, b)
}

// TestCutTextsKeepWhatFits: as much as there is room for, of a path both ends.
func TestCutTextsKeepWhatFits(t *testing.T) {
	b := open(t, web.Page{Script: `function start() {
		const g = document.createElement("canvas").getContext("2d");
		g.font = "12px monospace";
		const one = g.measureText("m").width; // all are as wide
		window.cuts = [cut(g, "abcdefghij", 10.5 * one), cut(g, "abcdefghijklm", 10.5 * one), cutMiddle(g, "abcdefghij", 10.5 * one), cutMiddle(g, "abcdefghijklmnop", 10.5 * one), cut(g, "abc", 0)];
	}`}, 300, 300, "light")
	var got []string
	b.Eval("cuts", &got)
	for k, want := range []string{"abcdefghij", "abcdefghi…", "abcdefghij", "abc…klmnop", "…"} {
		if got[k] != want {
			t.Errorf("%d: %q, want %q", k, got[k], want)
		}
	}
	works(t, b)
}

// TestZoom: in and out about a number, never beyond the run, and back to all of it.
func TestZoom(t *testing.T) {
	b := open(t, stacked(`{ x: { min: 0, max: 1000, title: "event" } }`), 1000, 600, "light")
	for _, c := range []struct {
		do       string
		from, to float64 // 0, 0: the whole run
	}{
		{"p.zoom(400, 600)", 400, 600},
		{"p.zoomBy(2, 500)", 300, 700},
		{"p.zoomBy(0.5, 400)", 350, 550},
		{"p.zoomBy(0.25)", 425, 475},
		{"p.zoomBy(8)", 250, 650},
		{"p.zoom(900, 1100)", 800, 1000},
		{"p.zoomBy(2)", 600, 1000},
		{"p.zoomBy(4)", 0, 0},
		{"p.zoom(400, 600)", 400, 600},
		{"p.zoom()", 0, 0},
	} {
		var view []float64
		b.Eval(c.do+", p.group.view || []", &view)
		if whole := c.to == 0; whole != (len(view) == 0) || !whole && (math.Abs(view[0]-c.from) > 1 || math.Abs(view[1]-c.to) > 1) {
			t.Errorf("after %s it shows %v, want %v to %v", c.do, view, c.from, c.to)
		}
		var left, right float64
		b.Eval("[p.xAt(p.box.left), p.xAt(p.box.left + p.box.width)][0]", &left)
		if b.Eval("p.xAt(p.box.left + p.box.width)", &right); c.to > 0 && (math.Abs(left-c.from) > 1 || math.Abs(right-c.to) > 1) || c.to == 0 && (left != 0 || right != 1000) {
			t.Errorf("after %s it is drawn from %v to %v", c.do, left, right)
		}
	}
	works(t, b)
}

// TestPrintsLight, whatever the reader's scheme is, and is dark again after it.
func TestPrintsLight(t *testing.T) {
	b := open(t, stacked(`{}`), 800, 500, "dark")
	page := func() (rgb []float64, drawn string) {
		b.Eval(`rgbOf("page")`, &rgb)
		return rgb, sees(b, 4.5, 1.5)
	}
	before, _ := page()
	b.Eval(`dispatchEvent(new Event("beforeprint"))`, nil)
	paper, drawn := page()
	b.Eval(`dispatchEvent(new Event("afterprint"))`, nil)
	after, _ := page()
	if before[0] > 100 || paper[0] < 200 || after[0] != before[0] || drawn != "c1" {
		t.Errorf("the page is %v, on paper %v with a band in %q, then %v", before, paper, drawn, after)
	}
	works(t, b)
}
