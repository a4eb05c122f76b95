package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gpumem/internal/report"
	"gpumem/internal/test/webtest"
	"gpumem/size"
)

// plotOf is the plot in a part of the page, as an expression.
func plotOf(css string) string { return fmt.Sprintf("document.querySelector(%q).plot", css+" .plot") }

// pointAt moves the pointer to an event and a value of a plot, and gives the card there.
func (p *tried) pointAt(css string, event, value float64) string {
	p.t.Helper()
	var at struct{ X, Y float64 }
	p.Eval(fmt.Sprintf("(() => { const p = %s, r = p.wrap.getBoundingClientRect(); return { X: p.X(%v) / r.width, Y: p.Y(%v) / r.height }; })()", plotOf(css), event, value), &at)
	p.point(css+" .plot", at.X, at.Y)
	return strings.ReplaceAll(p.card(), "\u00a0", " ")
}

// pixel is the name of the colour, of some, that a canvas has at a point in CSS pixels.
func (p *tried) pixel(canvas, x, y string) (name string) {
	p.t.Helper()
	p.Eval(fmt.Sprintf(`(() => {
		const c = document.querySelector(%q), d = devicePixelRatio, style = getComputedStyle(document.documentElement);
		const rgb = (n) => { const h = style.getPropertyValue("--" + n).trim().replace(/^#(.)(.)(.)$/, "#$1$1$2$2$3$3"); return [1, 3, 5].map((k) => parseInt(h.slice(k, k + 2), 16)); };
		const g = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
		g.drawImage(c, -Math.round((%s) * d), -Math.round((%s) * d));
		const at = [...g.getImageData(0, 0, 1, 1).data];
		if (at[3] === 0) return "nothing";
		return ["c1", "c2", "c3", "c4", "c5", "grid", "rest", "before", "page"].find((n) => rgb(n).every((v, k) => Math.abs(v - at[k]) < 3)) || String(at);
	})()`, canvas, x, y), &name)
	return name
}

// cardRow is what a card says beside a label: the line below it.
func cardRow(card, label string) string {
	lines := strings.Split(card, "\n")
	if k := slices.Index(lines, label); k >= 0 && k+1 < len(lines) {
		return lines[k+1]
	}
	return ""
}

// A run with two small blocks, of which the first goes, below a large one that goes too.
const sinking = "a 1 4194304\na 2 1048576\na 3 1048576\nf 2\na 4 1048576\nf 1\na 5 524288\n"

// TestWhatFollowsARefusalIsDimmed, in all pictures, from the event after it, and only under
// a policy that refuses.
func TestWhatFollowsARefusalIsDimmed(t *testing.T) {
	path, _, rep := pageOf(t, fragmentation, "--device", "sim:16GiB", "--policy", "jax", "--policy", "jax:preallocate=false")
	b := tryPage(t, 1280, 800)
	b.open(path, "")
	b.state()
	b.Eval(`document.querySelector(".more").open = true`, nil)
	b.Wait(`document.querySelectorAll(".more .plot").length === 2`)
	for _, css := range []string{".lives", ".holds", ".places", ".more"} {
		var from uint64
		b.Eval(plotOf(css)+".spec.dim.from", &from)
		if want := *rep.Results[1].First + 1; from != want {
			t.Errorf("%s is dimmed from event %d, want %d", css, from, want)
		}
	}
	b.open(path, "policy=jax")
	b.state()
	for _, css := range []string{".lives", ".holds", ".places"} {
		var dim any
		if b.Eval(plotOf(css)+".spec.dim || null", &dim); dim != nil {
			t.Errorf("%s is dimmed under a policy that refuses nothing: %v", css, dim)
		}
	}
	b.wants(t)
}

// TestAxesFollowWhatLives, also where the recorded run was refused much more than that; and
// the run that was recorded has a line beside the policies.
func TestAxesFollowWhatLives(t *testing.T) {
	path, page, _ := pageOf(t, "../../record/trace/testdata/torch2150.pickle", "--device", "sim:1GiB")
	var data struct {
		Pools []struct {
			Lived    float64
			Recorded []int64
		}
	}
	webtest.Data(t, page, &data)
	b := tryPage(t, 1280, 800)
	b.open(path, "")
	b.state()
	for css, want := range map[string]float64{".lives": data.Pools[0].Lived} {
		var top float64
		if b.Eval(plotOf(css)+".spec.y.max", &top); want == 0 || top < want || top > 1.2*want || top > 32*mib {
			t.Errorf("the axis of %s ends at %v, and at most %v lived", css, top, want)
		}
	}
	var line struct {
		Values []uint64
		Dash   []int
	}
	b.Eval(plotOf(".holds")+`.spec.lines.find((l) => l.name.startsWith("the recorded run")) || {}`, &line)
	if recorded := webtest.Sum(data.Pools[0].Recorded); len(recorded) == 0 || !slices.Equal(line.Values, recorded) || len(line.Dash) == 0 {
		t.Errorf("the line of the recorded run has %d values, dashed %v, want %d", len(line.Values), line.Dash, len(recorded))
	}
	if text := b.pointAt(".holds", 20, mib); cardRow(text, "the recorded run") == "" {
		t.Errorf("what the recorded run held is not in %q", text)
	}
	// The peak of what lived is the axis where nothing was refused when recorded.
	path, _, rep := pageOf(t, fragmentation, "--device", "sim:16GiB", "--policy", "jax")
	b.open(path, "")
	b.state()
	var top float64
	if b.Eval(plotOf(".lives")+".spec.y.max", &top); top < float64(rep.Trace.Peak) || top > 1.2*float64(rep.Trace.Peak) {
		t.Errorf("the axis ends at %v, and %d lived", top, rep.Trace.Peak)
	}
	b.wants(t)
}

// TestCardsSayWhatIsUnderThePointer: figures that were counted by hand.
func TestCardsSayWhatIsUnderThePointer(t *testing.T) {
	path, _, _ := pageOf(t, textTrace(t, sinking), "--device", "sim:1GiB", "--policy", "jax", "--policy", "platform")
	b := tryPage(t, 1280, 800)
	b.open(path, "by=size")
	b.state()
	for _, c := range []struct {
		event, value     float64
		title, has, from string
	}{
		{3.5, 5.5 * mib, "1 MiB", "2 MiB in 2 blocks, 33.3 %", "event 2 (the oldest)"},
		{3.5, 1 * mib, "4 MiB", "4 MiB in 1 block, 66.7 %", "event 1"},
		{4.5, 4.5 * mib, "1 MiB", "1 MiB in 1 block, 20.0 %", "event 3"},
		{7.5, 1.5 * mib, "1 MiB", "2 MiB in 2 blocks, 80.0 %", "event 3 (the oldest)"},
		{7.5, 2.2 * mib, "512 KiB", "512 KiB in 1 block, 20.0 %", "event 7"},
	} {
		text := b.pointAt(".lives", c.event, c.value)
		if !strings.HasPrefix(text, c.title) || cardRow(text, "has") != c.has || cardRow(text, "since") != c.from {
			t.Errorf("at %v, %v: %q, want %q, has %q, since %q", c.event, c.value, text, c.title, c.has, c.from)
		}
	}
	if text := b.pointAt(".lives", 4.5, 5.1*mib); !strings.HasPrefix(text, "5 MiB live") {
		t.Errorf("above all bands: %q", text)
	}
	// What is in use is said of the policy that is looked at, and of no other.
	for _, c := range []struct{ look, other, used string }{{"jax", "platform", "768 MiB, of which 6 MiB in use"}, {"platform", "jax", "8 MiB, of which 8 MiB in use"}} {
		b.open(path, "policy="+c.look)
		b.state()
		text := b.pointAt(".holds", 3.5, mib)
		if cardRow(text, c.look) != c.used || strings.Contains(cardRow(text, c.other), "in use") || cardRow(text, c.other) == "" {
			t.Errorf("looking at %s: %q", c.look, text)
		}
	}
	b.wants(t)
}

// TestBlocksSink: where each allocation has a band, those above what is freed come down.
func TestBlocksSink(t *testing.T) {
	path, _, _ := pageOf(t, textTrace(t, sinking), "--device", "sim:1GiB", "--policy", "jax")
	b := tryPage(t, 1280, 800)
	b.open(path, "by=each+allocation")
	b.wants(t, "by", "each allocation")
	for _, c := range []struct {
		event, value    float64
		size, from, end string
	}{
		{3.5, 3.5 * mib, "4 MiB", "event 1", "event 6"},
		{3.5, 4.5 * mib, "1 MiB", "event 2", "event 4"},
		{3.5, 5.5 * mib, "1 MiB", "event 3", "the end, never freed"},
		{4.5, 4.5 * mib, "1 MiB", "event 3", "the end, never freed"}, // by one
		{6.5, 0.5 * mib, "1 MiB", "event 3", "the end, never freed"}, // to the bottom
		{6.5, 1.5 * mib, "1 MiB", "event 5", "the end, never freed"},
		{7.5, 2.2 * mib, "512 KiB", "event 7", "the end, never freed"},
	} {
		text := b.pointAt(".lives", c.event, c.value)
		if !strings.HasPrefix(text, "a block of "+c.size) || cardRow(text, "from") != c.from || cardRow(text, "to") != c.end {
			t.Errorf("at %v, %v: %q, want %s from %s to %s", c.event, c.value, text, c.size, c.from, c.end)
		}
	}
	// It is drawn as it is said: of the two sizes, what lies at the bottom changes.
	for event, want := range map[string]string{"3.5": "c1", "6.5": "c2"} {
		p := plotOf(".lives")
		if got := b.pixel(".lives canvas", p+".X("+event+")", p+".Y(524288)"); got != want {
			t.Errorf("at the bottom after event %s lies %s, want %s", event, got, want)
		}
	}
	b.wants(t)
}

// TestListIsByWhatIsChosen: what lives is listed by stack, by layer or by size, as the bands
// are divided, with the figures of the page's data.
func TestListIsByWhatIsChosen(t *testing.T) {
	path, page, _ := pageOf(t, "../../record/trace/testdata/torch280.pickle", "--device", "sim:8GiB")
	var data struct {
		Names []string
		Pools []struct {
			PeakAt    uint64 `json:"peak_at"`
			Groupings []struct{ By string }
			Lists     []struct {
				Event  uint64
				Groups [][][5]int64
			}
		}
	}
	webtest.Data(t, page, &data)
	pool := data.Pools[0]
	at := slices.IndexFunc(pool.Lists, func(l struct {
		Event  uint64
		Groups [][][5]int64
	}) bool {
		return l.Event == pool.PeakAt
	})
	if at < 0 || len(pool.Groupings) < 2 {
		t.Fatalf("no list at the peak, or %d groupings", len(pool.Groupings))
	}
	b := tryPage(t, 1280, 800)
	for n, g := range pool.Groupings {
		b.open(path, "at=peak&by="+g.By)
		b.wants(t, "by", g.By, "event", fmt.Sprint(pool.PeakAt))
		var rows [][]string
		b.Eval(`[...document.querySelectorAll(".list tbody tr")].map((r) => [...r.cells].map((c) => c.innerText.replace(/\u00a0/g, " ")))`, &rows)
		groups := pool.Lists[at].Groups[n]
		if len(rows) != len(groups) || len(rows) == 0 {
			t.Errorf("by %s: %d rows of %d groups", g.By, len(rows), len(groups))
			continue
		}
		for k, group := range groups {
			since := "before"
			if group[3] > 0 {
				since = "event " + report.Count(uint64(group[3]))
			}
			lines, row := strings.Split(data.Names[group[0]], "\n"), rows[k]
			if row[0] != size.Format(uint64(group[1])) || row[2] != report.Count(uint64(group[2])) || row[3] != since || !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(row[4], line) }) {
				t.Errorf("by %s, row %d: %q, want %v, %q", g.By, k, row, group, lines)
			}
		}
	}
	b.wants(t)
}

// TestPoolOfTheAddress: the address says which pool it is about.
func TestPoolOfTheAddress(t *testing.T) {
	path, _, _ := pageOf(t, "../../record/trace/testdata/torch2026.pickle", "--device", "sim:1GiB")
	b := tryPage(t, 1280, 800)
	for pool, peak := range map[string]string{"cuda:0": "1600", "cuda:2": "7000"} {
		b.open(path, "at=end&pool="+pool)
		b.wants(t, "peak", peak)
		if hash := b.hash(); !strings.Contains(hash, "pool="+strings.ReplaceAll(pool, ":", "%3A")) {
			t.Errorf("pool %s: the address is %s", pool, hash)
		}
	}
}

// TestMapIsTheRightWayUp: the lowest address is at the bottom and at the left, and what is in
// use is dark. Of 768 MiB the first quarter, then also the second, then that alone is used.
func TestMapIsTheRightWayUp(t *testing.T) {
	path, _, _ := pageOf(t, textTrace(t, "a 1 201326592\na 2 201326592\nf 1\n"), "--device", "sim:1GiB", "--policy", "bfc:limit=768MiB")
	b := tryPage(t, 1280, 800)
	for event, want := range map[int][]string{1: {"c1", "grid", "grid"}, 2: {"c1", "c1", "grid"}, 3: {"grid", "c1", "grid"}} {
		b.open(path, fmt.Sprintf("at=%d", event))
		b.wants(t, "event", fmt.Sprint(event))
		for k, want := range want {
			part := 0.125 + 0.25*float64(k)
			p := plotOf(".places")
			if got := b.pixel(".places canvas", fmt.Sprintf("%s.X(%d.5)", p, event), fmt.Sprintf("%s.Y(%v)", p, part*768*mib)); got != want {
				t.Errorf("event %d, %v of the way up the map: %s, want %s", event, part, got, want)
			}
			if got := b.pixel(".strip", fmt.Sprintf(`%v * document.querySelector(".strip").clientWidth`, part), "39"); got != want {
				t.Errorf("event %d, %v of the way along the strip: %s, want %s", event, part, got, want)
			}
		}
		p := plotOf(".places")
		if got := b.pixel(".places canvas", fmt.Sprintf("%s.X(%d.5)", p, event), p+".Y(785*2**20)"); got != "nothing" {
			t.Errorf("event %d: above what is held lies %s", event, got)
		}
	}
	b.wants(t)
}
