package compare

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/internal/report"
	"gpumem/internal/test/browser"
	"gpumem/record/internal/test/replaytest"
	"gpumem/size"
)

// open writes the page of two recordings and opens it.
func open(t *testing.T, p *browser.Page, rep *Report) {
	t.Helper()
	var b bytes.Buffer
	if err := rep.WritePage(&b); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Go("file://" + path)
	p.Wait(`document.documentElement.dataset.ready === "yes" || document.documentElement.dataset.errors`)
}

// TestPage: what a reader sees in the browser is what the text says, to the letter.
func TestPage(t *testing.T) {
	p := browser.Open(t, 1280, 800, "light")
	hostile := "<img/src=x/onerror=alert(1)>"
	before := read(t, "before", "- a 1 1048576 f@m.py:10|main@m.py:50\n- a 2 5 g@m.py:20\n- f 2\n- a 3 1179648 "+hostile+"@m.py:3\n- f 3\n")
	after := read(t, "after", "- a 1 3145728 f@m.py:12|main@m.py:51\n- a 2 100000 h@m.py:30\n- f 2\n- r 7340032\n")
	rep := compared(t, before, after)
	open(t, p, rep)
	var errors string
	p.Eval(`document.documentElement.dataset.errors || ""`, &errors)
	if errors != "" {
		t.Fatal(errors)
	}
	var rows [][]string
	p.Eval(`[...document.querySelectorAll(".rows tbody tr")].map((r) => [...r.children].map((c) => (c.querySelector("bdi") || c).textContent))`, &rows)
	pool := rep.Pools[0]
	if len(rows) != len(pool.AtPeak.Rows) {
		t.Fatalf("rows %q", rows)
	}
	for k, r := range pool.AtPeak.Rows {
		want := fmt.Sprint([]string{
			signedBytes(r.Difference), "", r.Where, size.Format(r.Before.PeakBytes), size.Format(r.After.PeakBytes),
			fmt.Sprintf("%d/%d", r.Before.PeakBlocks, r.After.PeakBlocks), words[r.How],
		})
		if got := fmt.Sprint(rows[k]); got != want {
			t.Errorf("row %d: %s, want %s", k, got, want)
		}
	}
	text := p.Text()
	for _, want := range []string{
		rep.Summary[0], "Live at the peaks: " + signedBytes(pool.PeakDifference) + " in all, " + size.Format(pool.Before.Peak) + " before and " + size.Format(pool.After.Peak) + " after",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	// Search looks into stacks.
	var found int
	p.Eval(`(() => { const i = document.querySelector("input[type=search]"); i.value = "main"; i.dispatchEvent(new Event("input")); return document.querySelectorAll(".rows tbody tr").length; })()`, &found)
	if found != 1 {
		t.Errorf("%d rows have main", found)
	}
	var sorted []string
	p.Eval(`(() => { const i = document.querySelector("input[type=search]"); i.value = ""; i.dispatchEvent(new Event("input")); document.querySelector(".rows .head").click(); return [...document.querySelectorAll(".rows tbody tr")].map((r) => r.firstChild.textContent); })()`, &sorted)
	if want := []string{"+7 MiB", "+2 MiB", "-1.12 MiB"}; !slices.Equal(sorted, want) {
		t.Errorf("sorted %q, want %q", sorted, want)
	}
	// The other tables and the other axis are there.
	p.Eval(`(() => { for (const b of document.querySelectorAll(".tabs button, #event, #part, #out")) b.click(); })()`, nil)
	p.Mouse("mouseMoved", ".plot", .4, .5)
	var card string
	p.Eval(`document.querySelector(".card").textContent`, &card)
	if !strings.Contains(card, "before1 MiB") || !strings.Contains(card, "after") {
		t.Errorf("card %q", card)
	}
	if list := p.Troubles(); len(list) > 0 {
		t.Error(list)
	}
	if list := p.Requests(); len(list) > 1 {
		t.Errorf("the page asked for %q", list)
	}
}

// TestPageOnAPhone: the table of figures has all its columns in sight, and that of
// differences its first two.
func TestPageOnAPhone(t *testing.T) {
	p := browser.Open(t, 390, 844, "light")
	p.Size(390, 844, true)
	before := read(t, "before", "- a 1 1072693000 f@m.py:10|main@m.py:50\n- a 2 5 g@m.py:20\n- f 2\n")
	after := read(t, "after", "- a 1 2146435000 f@m.py:12|main@m.py:51\n- a 2 100000 h@m.py:30\n- f 2\n- r 7340032\n")
	open(t, p, compared(t, before, after))
	for _, heads := range []string{".figures thead th", ".rows thead th:nth-child(-n+3)"} {
		var out []string
		p.Eval(`[...document.querySelectorAll("`+heads+`")].filter((h) => h.getBoundingClientRect().right > innerWidth).map((h) => h.textContent)`, &out)
		if len(out) > 0 {
			t.Errorf("out of sight: %q", out)
		}
	}
	var wide []string
	p.Eval(`[...document.querySelectorAll(".rows thead th")].filter((h) => h.getClientRects().length).map((h) => h.textContent)`, &wide)
	if want := []string{"difference", "where", "before", "after"}; !slices.Equal(wide, want) {
		t.Errorf("columns %q, want %q", wide, want)
	}
}

// TestPageSizes: the page's sizes are those of Go, also where two texts are as near.
func TestPageSizes(t *testing.T) {
	p := browser.Open(t, 500, 500, "light")
	open(t, p, compared(t, read(t, "a", "- a 1 1"), read(t, "b", "- a 1 2")))
	var b bytes.Buffer
	if err := compared(t, read(t, "a", "- a 1 1"), read(t, "b", "- a 1 2")).WritePage(&b); err != nil {
		t.Fatal(err)
	}
	var numbers []int64
	for k := range int64(64) {
		for _, unit := range []int64{1, 1 << 10, 1 << 20, 1 << 30} {
			numbers = append(numbers, k*unit/8, k*unit/8+1, -k*unit/16)
		}
	}
	list, _ := json.Marshal(numbers)
	script := b.String()
	from := strings.Index(script, "const count =")
	to := strings.Index(script[from:], "const percent") + from
	signedFrom := strings.Index(script, "const signed =")
	signedTo := strings.Index(script[signedFrom:], "\n") + signedFrom
	var got []string
	p.Eval("(() => {"+script[from:to]+script[signedFrom:signedTo]+"return "+string(list)+".map((n) => signed(n, bytes)); })()", &got)
	for k, n := range numbers {
		if want := signedBytes(n); got[k] != want {
			t.Errorf("%d: %q, want %q", n, got[k], want)
		}
	}
}

// TestPageData: the rows of the page's tables add up to what it says above them, and both
// axes of the curves have both peaks.
func TestPageData(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		a, b := randomRecording(r, "before", 10), randomRecording(r, "after", 12)
		p := compared(t, read(t, "a", a.text), read(t, "b", b.text)).Pools[0]
		d := &pageData{texts: report.Texts{Most: pageTexts}}
		out := d.pool(p)
		for k, table := range out.Tables {
			var sum pageRow
			for _, row := range table.Rows {
				sum.Difference += row.Difference
				sum.Before, sum.After = sum.Before+row.Before, sum.After+row.After
			}
			if sum.Difference != table.Sum.Difference || sum.Before != table.Sum.Before || sum.After != table.Sum.After {
				r.Fatalf("table %d: rows add up to %+v, want %+v", k, sum, table.Sum)
			}
		}
		if got := out.Tables[0].Sum; got.Difference != p.PeakDifference || got.Before != a.most || got.After != b.most {
			r.Fatalf("%+v, want %d", got, p.PeakDifference)
		}
		for _, c := range []struct {
			s    *pageSide
			over []*uint64
			want uint64
		}{{out.Before, out.Events.Before, a.most}, {out.After, out.Events.After, b.most}} {
			var most [2]uint64
			for _, v := range c.s.Most {
				most[0] = max(most[0], v)
			}
			for _, v := range c.over {
				if v != nil {
					most[1] = max(most[1], *v)
				}
			}
			if most != [2]uint64{c.want, c.want} {
				r.Fatalf("the curves have %d at most, want %d", most, c.want)
			}
			if c.s.Most[c.s.PeakIn] != c.want {
				r.Fatalf("the mark of the peak stands at %d", c.s.Most[c.s.PeakIn])
			}
			if last := c.s.Ends[curvePoints-1]; last != c.s.Events {
				r.Fatalf("the curve ends at event %d of %d", last, c.s.Events)
			}
		}
	})
}

// TestStretch: starts is the inverse of stretch.
func TestStretch(t *testing.T) {
	for _, events := range []uint64{1, 2, 3, 1000, 1023, 1024, 1025, 5000, 1<<32 + 7} {
		for k := range uint64(curvePoints) {
			n := starts(k, events)
			if n > 0 && stretch(n, events) >= int(k) || n < events && stretch(n+1, events) < int(k) {
				t.Fatalf("%d events: %d lie before stretch %d", events, n, k)
			}
		}
	}
}

// TestText: the whole of what people read.
func TestText(t *testing.T) {
	before := read(t, "old.pickle", "- a 1 1048576 f@m.py:10|main@m.py:50\n- a 2 5 g@m.py:20\n- f 2\n")
	after := read(t, "new.pickle", "- a 1 3145728 f@m.py:12|main@m.py:51\n- a 2 100000 a_function_with_a_long_name@and_a_file_with_a_long_name.py:30\n- f 2\n- r 7340032\n")
	rep, err := Run(t.Context(), before, after, Config{Replay: replaytest.Config(t, "sim:8MiB", "platform")})
	if err != nil {
		t.Fatal(err)
	}
	text := report.Text{Width: 80}
	rep.WriteText(&text, false)
	want := `The peak grew by 9.00 MiB (+900 %), from 1.00 MiB to 10 MiB. The largest part of
  it is +7 MiB in requests of 7 MiB, which is new.
before: old.pickle: 3 events, 2 allocations, at most 1.00 MiB live
after: new.pickle: 4 events, 3 allocations (1 refused in the recorded run), at most 10 MiB live

                   before   after  difference
peak             1.00 MiB  10 MiB   +9.00 MiB
in blocks               2       2           0
at event                2       4
at time              1 us    3 us
refused there           -   7 MiB
live at the end     1 MiB   3 MiB      +2 MiB
allocations             2       3          +1

Live at the peaks
difference    before   after  blocks  match  where
    +7 MiB       0 B   7 MiB     0/1  new    requests of 7 MiB
    +2 MiB     1 MiB   3 MiB     1/1  moved  f (m.py:12)
      -5 B       5 B     0 B     1/0  gone   g (m.py:20)
 +9.00 MiB  1.00 MiB  10 MiB     2/2         in all

match                                       before  after
moved: the same stack but for line numbers   1 MiB  3 MiB
gone: nothing allocates there any more         5 B    0 B
new: nothing allocated there before            0 B  7 MiB

Live at the end
difference  before  after  blocks  match  where
    +2 MiB   1 MiB  3 MiB     1/1  moved  f (m.py:12)
    +2 MiB   1 MiB  3 MiB     1/1         in all

Allocations over the run
difference  before  after  match  where
        +1       0      1  new    requests of 7 MiB
        -1       1      0  gone   g (m.py:20)
        +1       0      1  new    a_function_with_a_long_name (...ng_name.py:30)
         0       1      1         1 other place
        +1       2      3         in all

Policies: the most held, and requests refused
policy    before  after  difference  refused
platform   4 MiB  6 MiB      +2 MiB      0/1
gpumem replay new.pickle says why a request is refused.
`
	if text.String() != want {
		t.Errorf("got\n%s", text.String())
	}
	for line := range strings.Lines(text.String()) {
		if len(line) > 81 && !strings.HasPrefix(line, "after: ") { // a fact, for scripts
			t.Errorf("%d characters: %s", len(line), line)
		}
	}
	if rep.Fits() {
		t.Error("a refused request fits")
	}
}
