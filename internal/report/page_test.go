package report_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/internal/report"
	"gpumem/internal/test/webtest"
)

// page is one of so many events and policies.
func page(events uint64, policies int) *report.Page {
	t := &report.Timeline{Events: events, Peak: 3 << 30, PeakAt: events/2 + 1}
	for k := uint64(1); k <= min(events, 1000); k++ {
		t.Ends = append(t.Ends, k*events/min(events, 1000))
		v := k * 1 << 20
		if t.Ends[len(t.Ends)-1] >= t.PeakAt && (k == 1 || t.Ends[len(t.Ends)-2] < t.PeakAt) {
			v = t.Peak
		}
		t.Asked = append(t.Asked, v)
	}
	zeros := make([]uint64, len(t.Ends))
	t.Starts, t.Moments, t.Live, t.Blocks = t.Ends, t.Ends, t.Asked, zeros
	t.Groupings = []*report.Grouping{{By: "size", Bands: []*report.Band{{Detail: -1, Bytes: t.Asked, Blocks: zeros, Since: zeros}}}}
	t.Lists = []*report.List{{Event: t.PeakAt, Bytes: t.Peak, Groups: [][]report.Group{{}}}}
	for k := range policies {
		l := &report.Layer{
			Policy: fmt.Sprintf("policy <%d> & \"more\"", k), Cells: []string{"NO"}, Used: t.Asked, Held: t.Asked,
			Free: zeros, Hole: zeros, Calls: zeros, Frag: make([]float64, len(zeros)),
			Snapshots: []*report.Snapshot{{Event: t.PeakAt, Map: "08"}},
		}
		if k == 1 || k == 4 {
			l.First = &report.Refusal{Event: events, Bytes: 1, Stack: -1}
			l.Why = []string{"Why: </pre><script>"}
		}
		t.Layers = append(t.Layers, l)
	}
	return &report.Page{Headline: "a & b", Summary: []string{"One.", "Two."}, Columns: []string{">fits"}, Pools: []*report.Timeline{t}, Names: []string{"x"}}
}

// TestWritePage: the text of the page is escaped, has the peak and the refusals, and the
// data reads back.
func TestWritePage(t *testing.T) {
	var b strings.Builder
	p := page(5000, 2)
	p.Sections = []*report.Section{{
		ID: "set", Title: "What to set", Sentences: []string{"It does not fit."}, Lines: []string{"export A=<1>"}, Columns: []string{"setting", ">card"}, Rows: [][]string{{"<none>", "8 GiB"}},
	}}
	if err := report.WritePage(&b, p); err != nil {
		t.Fatal(err)
	}
	html := b.String()
	var data struct {
		Pools []struct {
			Peak   uint64
			Layers []struct{ Policy string }
		}
	}
	webtest.Data(t, html, &data)
	if data.Pools[0].Peak != 3<<30 || data.Pools[0].Layers[1].Policy != `policy <1> & "more"` {
		t.Errorf("%+v", data)
	}
	for _, want := range []string{"a &amp; b.", "2,501, the peak", "3 GiB", "first event 5,000, 1 B", "Why: &lt;/pre&gt;&lt;script&gt;", "class=\"still nojs\"", "export A=&lt;1&gt;", "&lt;none&gt;"} {
		if !strings.Contains(html, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	w := full(100)
	if err := report.WritePage(&w, page(1, 1)); !errors.Is(err, errFull) {
		t.Errorf("a full disk: %v", err)
	}
}

// TestWriteSVG: a drawing is well formed, says what it shows, and all of it lies
// inside.
func TestWriteSVG(t *testing.T) {
	number := regexp.MustCompile(`[ "](?:x|y|cx|cy)="(-?[0-9.]+)"`)
	for _, events := range []uint64{1, 2, 7, 1000, 1_000_000} {
		for _, policies := range []int{1, 2, 12} {
			var b strings.Builder
			if err := report.WriteSVG(&b, page(events, policies)); err != nil {
				t.Fatal(err)
			}
			svg := b.String()
			d := xml.NewDecoder(strings.NewReader(svg))
			for {
				if _, err := d.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("%d events, %d policies: %v", events, policies, err)
				}
			}
			for _, want := range []string{"peak 3 GiB", "held by policy &lt;0&gt;", "prefers-color-scheme:dark"} {
				if !strings.Contains(svg, want) {
					t.Errorf("%d events: no %q", events, want)
				}
			}
			words := map[int]string{1: "", 2: ">2 refuses<", 12: ">2, 5 refuse<"}[policies]
			if !strings.Contains(svg, words) || policies == 1 && strings.Contains(svg, "refuse") {
				t.Errorf("%d policies: the refusals", policies)
			}
			for _, m := range number.FindAllStringSubmatch(svg, -1) {
				if m[1][0] == '-' || len(m[1]) > 5 {
					t.Errorf("%d events, %d policies: %s lies outside", events, policies, m[0])
				}
			}
			if len(svg) > 150_000 {
				t.Errorf("%d events, %d policies: %d bytes", events, policies, len(svg))
			}
		}
	}
}

// TestApart: labels keep their order and their room, and move no more than they
// must.
func TestApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := rapid.SliceOfN(rapid.Float64Range(0, 100), 1, 9).Draw(t, "at")
		got := report.Apart(at, 10, 0, 100)
		type pair struct{ was, is float64 }
		var pairs []pair
		for k := range at {
			pairs = append(pairs, pair{at[k], got[k]})
		}
		slices.SortStableFunc(pairs, func(a, b pair) int {
			if a.is < b.is {
				return -1
			}
			return 1
		})
		free := true // each has room where it belongs
		for k, p := range pairs {
			if p.is < 0 || p.is > 100+1e-9 || k > 0 && (p.is-pairs[k-1].is < 10-1e-9 || p.was < pairs[k-1].was-1e-9) {
				t.Fatalf("%v became %v", at, got)
			}
			free = free && (k == 0 || p.was-pairs[k-1].was >= 10)
		}
		if free && !slices.Equal(at, got) {
			t.Fatalf("%v became %v without need", at, got)
		}
	})
}
