package report_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/report"
)

// TestUPlot: what lies in the repository is what npm has for uplot@1.6.32.
func TestUPlot(t *testing.T) {
	for name, want := range map[string]string{
		"uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
		"uPlot.min.css":     "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
		"LICENSE":           "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
	} {
		data, err := os.ReadFile("uplot/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%x", sha256.Sum256(data)); got != want {
			t.Errorf("%s has %s", name, got)
		}
	}
}

// TestNumbers: the differences, added up again, are the numbers.
func TestNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOf(rapid.Uint64Range(0, 1<<52)).Draw(t, "numbers")
		data, err := json.Marshal(report.Numbers(want))
		if err != nil {
			t.Fatal(err)
		}
		var steps []int64
		if err := json.Unmarshal(data, &steps); err != nil {
			t.Fatal(err)
		}
		last := int64(0)
		for k, d := range steps {
			if last += d; uint64(last) != want[k] {
				t.Fatalf("%s is not %d", data, want)
			}
		}
		if len(steps) != len(want) {
			t.Fatalf("%s is not %d", data, want)
		}
	})
	data, err := json.Marshal([]any{report.Numbers(nil), report.Group{Key: 1, Bytes: 2, Blocks: 3}})
	if err != nil || string(data) != "[[],[1,2,3]]" {
		t.Errorf("%s, %v", data, err)
	}
}

// page is one of so many events and policies.
func page(events uint64, policies int) *report.Page {
	t := &report.Timeline{Events: events, Peak: 3 << 30, PeakAt: events/2 + 1}
	for k := uint64(1); k <= min(events, 1000); k++ {
		t.Ends = append(t.Ends, k*events/min(events, 1000))
		v := k * 1 << 20
		if t.Ends[len(t.Ends)-1] >= t.PeakAt && (k == 1 || t.Ends[len(t.Ends)-2] < t.PeakAt) {
			v = t.Peak
		}
		t.Asked.Min, t.Asked.Max = append(t.Asked.Min, 0), append(t.Asked.Max, v)
	}
	for k := range policies {
		l := &report.Layer{
			Policy: fmt.Sprintf("policy <%d> & \"more\"", k), Cells: []string{"NO"}, Used: t.Asked, Held: t.Asked,
			Free: t.Asked.Min, Hole: t.Asked.Min, Calls: t.Asked.Min, Refused: t.Asked.Min,
			Snapshots: []*report.Snapshot{{Event: t.PeakAt, Map: "08"}},
		}
		if k == 1 || k == 4 {
			l.First = &report.Refusal{Event: events, Bytes: 1, Stack: -1}
			l.Why = []string{"Why: </pre><script>"}
		}
		t.Layers = append(t.Layers, l)
	}
	return &report.Page{Headline: "a & b", Summary: []string{"One.", "Two."}, Columns: []string{">fits"}, Pools: []*report.Timeline{t}}
}

// TestWritePage: the policy of the page names its scripts and no others, the data
// reads back, and the table has the peak.
func TestWritePage(t *testing.T) {
	var b strings.Builder
	if err := report.WritePage(&b, page(5000, 2)); err != nil {
		t.Fatal(err)
	}
	html := b.String()
	scripts := regexp.MustCompile(`(?s)<script([^>]*)>(.*?)</script>`).FindAllStringSubmatch(html, -1)
	if len(scripts) != 3 {
		t.Fatalf("%d scripts", len(scripts))
	}
	for _, s := range scripts {
		if strings.Contains(s[1], "application/json") {
			var data struct {
				Pools []struct {
					Peak   uint64
					Layers []struct{ Policy string }
				}
			}
			if err := json.Unmarshal([]byte(s[2]), &data); err != nil || data.Pools[0].Peak != 3<<30 || data.Pools[0].Layers[1].Policy != `policy <1> & "more"` {
				t.Errorf("%+v, %v", data, err)
			}
			continue
		}
		sum := sha256.Sum256([]byte(s[2]))
		if name := "&#39;sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "&#39;"; !strings.Contains(strings.ReplaceAll(html, "&#43;", "+"), name) {
			t.Errorf("the content security policy has no %s", name)
		}
	}
	for _, want := range []string{"a &amp; b.", "2,501, the peak", "3 GiB", "first event 5,000, 1 B", "Why: &lt;/pre&gt;&lt;script&gt;", "<noscript>"} {
		if !strings.Contains(html, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if strings.Contains(html, "unsafe-inline'; script") || strings.Contains(html, "script-src &#39;unsafe") {
		t.Error("any script may run")
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
