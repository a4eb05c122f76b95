package page

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gpumem/internal/report"
	"gpumem/internal/test/webtest"
	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/remattest"
	"gpumem/xla/remat"
)

// twoLayers has a forward and a backward pass, and a loop. What layer_2 makes lies
// there where most lives, and is used behind it.
const twoLayers = `HloModule two, is_scheduled=true

body (s: (s32[], f32[1024])) -> (s32[], f32[1024]) {
  s = (s32[], f32[1024]{0}) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  v = f32[1024]{0} get-tuple-element(s), index=1
  one = s32[] constant(1)
  next = s32[] add(n, one)
  e = f32[1024]{0} exponential(v), metadata={op_name="jit(f)/while/body/inner_1/exp"}
  ROOT t = (s32[], f32[1024]{0}) tuple(next, e)
}

condition (s: (s32[], f32[1024])) -> pred[] {
  s = (s32[], f32[1024]{0}) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  seven = s32[] constant(7)
  ROOT less = pred[] compare(n, seven), direction=LT
}

ENTRY main {
  x = f32[1024]{0} parameter(0)
  a = f32[1024]{0} negate(x), metadata={op_name="jit(f)/jvp(net)/layer_1/<b>&\"neg" source_file="a<b>.py" source_line=7}
  b = f32[4096]{0} concatenate(a, a, a, a), dimensions={0}, metadata={op_name="jit(f)/jvp(net)/layer_2/mul"}
  c = f32[1024]{0} custom-call(b), custom_call_target="use", metadata={op_name="jit(f)/jvp(net)/layer_2/use"}
  zero = s32[] constant(0)
  state = (s32[], f32[1024]{0}) tuple(zero, c)
  loop = (s32[], f32[1024]{0}) while(state), condition=condition, body=body
  d = f32[1024]{0} get-tuple-element(loop), index=1
  big = f32[8192]{0} custom-call(d), custom_call_target="use"
  small = f32[1024]{0} custom-call(big), custom_call_target="use"
  g = f32[1024]{0} custom-call(b, small), custom_call_target="use", metadata={op_name="jit(f)/transpose(jvp(net))/layer_2/use"}
  ROOT r = f32[1024]{0} add(g, a)
}
`

// answer plans for a module.
func answer(t *testing.T, m *hlo.Module, r remat.Request) *remat.Answer {
	t.Helper()
	r.Rates = cost.Rates{Bytes: 3e12, Flops: 4e14}
	a, err := remat.Run(t.Context(), m, r)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// pageOf is the page for a text.
func pageOf(t *testing.T, text string, r remat.Request) string {
	t.Helper()
	m, err := hlo.ParseString(text)
	if err != nil {
		t.Fatal(err)
	}
	r.Frontier = Step(m)
	var b strings.Builder
	if err := Write(&b, answer(t, m, r)); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// wholePage checks what holds of each page: its text is well formed, it asks for nothing
// from outside, and no number is broken.
func wholePage(t *testing.T, page string) {
	t.Helper()
	body := page[strings.Index(page, "<body>"):strings.Index(page, `<div id="data"`)] + "</body>"
	for _, bad := range []string{"http://", "https://", "src=", "NaN", "ZgotmplZ", "%!", "&lt;no value"} {
		if strings.Contains(body, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	for _, want := range []string{"<!DOCTYPE html>", `<html lang="en">`, "default-src &#39;none&#39;", `name="viewport"`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	// All elements but the void ones are closed, in order.
	body = strings.NewReplacer("<br>", "<br/>", "<wbr>", "<wbr/>").Replace(body)
	d := xml.NewDecoder(strings.NewReader(body))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("not well formed: %v", err)
		}
	}
}

// dataOf unpacks the data of a page.
func dataOf(t *testing.T, page string) (d pageData) {
	t.Helper()
	webtest.Data(t, page, &d)
	return d
}

// pageData is what the tests look at, as the scripts get it.
type pageData struct {
	Views []struct {
		Steps, PeakStep, PeakColumn, Left int
		Peak                              uint64
		Step, Total, Alive                numbers
		Names, Texts, Kinds               []string
		Ways                              []struct {
			Name  string
			Bands []struct {
				Name   string
				Peak   uint64
				Values numbers
			}
		}
		Rows struct {
			Bytes, Padding numbers
			First, Last    []int
			Name, Shape    []int
			Op, Place      []int
			Kind           []int
			Band           [][]int
			Offset         []int64
		}
		Heap *struct {
			Bytes, Most uint64
			Live        numbers
			Unknown     int
			Exact       bool
		}
	}
}

// numbers undoes the differences.
type numbers []uint64

func (n *numbers) UnmarshalJSON(text []byte) error {
	var list []int64
	if err := json.Unmarshal(text, &list); err != nil {
		return err
	}
	last := int64(0)
	for _, d := range list {
		last += d
		*n = append(*n, uint64(last))
	}
	return nil
}

// addsUp checks the figures of the views against each other: the bands add up to the curve
// in each column, the values that live at a column's step do, and so do their numbers.
func addsUp(t *testing.T, d pageData) {
	t.Helper()
	for _, v := range d.Views {
		if slices.Max(v.Total) != v.Peak || v.Total[v.PeakColumn] != v.Peak || int(v.Step[v.PeakColumn]) != v.PeakStep {
			t.Errorf("the peak is %d at step %d, and column %d has %d at step %d", v.Peak, v.PeakStep, v.PeakColumn, v.Total[v.PeakColumn], v.Step[v.PeakColumn])
		}
		for _, w := range v.Ways {
			peak := uint64(0)
			for k := range v.Total {
				sum := uint64(0)
				for _, b := range w.Bands {
					sum += b.Values[k]
				}
				if sum != v.Total[k] {
					t.Fatalf("by %s the bands of column %d have %d bytes, the curve %d", w.Name, k, sum, v.Total[k])
				}
			}
			for _, b := range w.Bands {
				if peak += b.Peak; b.Peak != b.Values[v.PeakColumn] {
					t.Errorf("band %s has %d bytes at the peak, and its curve %d", b.Name, b.Peak, b.Values[v.PeakColumn])
				}
			}
			if peak != v.Peak {
				t.Errorf("by %s the bands have %d bytes at the peak of %d", w.Name, peak, v.Peak)
			}
		}
		for _, k := range []int{0, len(v.Total) / 3, v.PeakColumn, len(v.Total) - 1} {
			var bytes uint64
			for n, b := range v.Rows.Bytes {
				if step := int(v.Step[k]); v.Rows.First[n] <= step && step <= v.Rows.Last[n] {
					bytes += b
				}
			}
			if bytes != v.Total[k] && (v.Left == 0 || k == v.PeakColumn) {
				t.Errorf("the values at step %d have %d bytes, the curve %d", v.Step[k], bytes, v.Total[k])
			}
		}
	}
}

func TestReport(t *testing.T) {
	for _, test := range []struct {
		name    string
		request remat.Request
		want    []string
	}{
		{"gap", remat.Request{Algorithm: "gap", Limit: remat.Bytes(50 << 10)}, []string{"to 40\u00a0KiB, within its limit of 50\u00a0KiB", "net/<wbr>layer_*/<wbr>mul", "after: 40 KiB in", "algorithm</th><td class=\"n\">gap"}},
		{"xla", remat.Request{Algorithm: "xla", Limit: remat.Bytes(50 << 10)}, []string{"to 40\u00a0KiB, within its limit of 50\u00a0KiB", "net/<wbr>layer_*/<wbr>mul"}},
		{"off", remat.Request{Algorithm: "off", Limit: remat.Bytes(50 << 10)}, []string{"more than its limit of 50\u00a0KiB, and nothing is recomputed", "<p>Nothing.</p>", "the plan changes nothing", "before and after: 56 KiB"}},
		{"out of reach", remat.Request{Algorithm: "gap", Limit: remat.Bytes(1 << 10)}, []string{"misses its limit of 1\u00a0KiB", "out of reach"}},
		{"far above", remat.Request{Algorithm: "xla", Limit: remat.Bytes(1 << 30)}, []string{"fits its limit of 1\u00a0GiB as it is"}},
		{"marked", remat.Request{Algorithm: "off", Limit: remat.Bytes(50 << 10), Marks: []*regexp.Regexp{regexp.MustCompile("layer_1")}}, []string{"marked</th><td class=\"n\">layer_1", "limits 5 % of the peak apart"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			page := pageOf(t, twoLayers, test.request)
			wholePage(t, page)
			d := dataOf(t, page)
			addsUp(t, d)
			// Before and after are shown beside each other only where they differ.
			once := strings.Contains(page, "the plan changes nothing")
			if want := slices.Contains([]string{"off", "far above", "marked"}, test.name); once != want || once != (len(d.Views) == 1) || strings.Contains(page, "<h3>before: ") == once {
				t.Errorf("shown once: %v, want %v; %d views", once, want, len(d.Views))
			}
			for _, want := range append(test.want, `lower bound</th><td class="n">36 KiB`, ": 56 KiB in 4 values at big, step 9 of 12", "big f32[8192]{0}") {
				if !strings.Contains(page, want) {
					t.Errorf("the page has no %q", want)
				}
			}
			// What stands in the module's names stays text.
			if strings.Contains(page, "<b>") || !strings.Contains(page, "a&lt;b&gt;.py:7") {
				t.Error("a name of the module is not escaped")
			}
		})
	}
	page := pageOf(t, "HloModule none\n\nENTRY main {\n  ROOT p = f32[4] parameter(0)\n}\n", remat.Request{Algorithm: "xla", Limit: remat.Bytes(1 << 10)})
	wholePage(t, page)
	if !strings.Contains(page, "there are no temporaries") {
		t.Error("a module without temporaries has some")
	}
}

// TestPlanHasOneFigure: what the plan costs is the same in the header, in the facts, in the
// table of the frontier and on its drawing.
func TestPlanHasOneFigure(t *testing.T) {
	for _, limit := range []uint64{50 << 10, 40 << 10, 1 << 10} {
		m, err := hlo.ParseString(twoLayers)
		if err != nil {
			t.Fatal(err)
		}
		a := answer(t, m, remat.Request{Algorithm: "gap", Limit: remat.Bytes(limit), Frontier: Step(m)})
		f := newFrontier(a, a)
		own := 0
		for _, p := range f.Points {
			if p.Own {
				own++
			}
			if p.Own && p.Text != fmt.Sprintf("%.1f %%", a.Extra) {
				t.Errorf("limit %d: the plan costs %.1f %%, and the table has %s for its memory", limit, a.Extra, p.Text)
			}
		}
		if own != 1 || f.own().Extra != max(a.Extra, 0) || !strings.Contains(headline(a), strings.Replace(report.MoreCompute(a.Extra), " ", "\u00a0", 1)) {
			t.Errorf("limit %d: %d rows of the own plan; %v, %v, %s", limit, own, f.own().Extra, a.Extra, headline(a))
		}
	}
}

// TestLayersAddUp: the seconds of all rows are what the plan costs.
func TestLayersAddUp(t *testing.T) {
	for _, name := range []string{"two layers", "rocm_imagenette.train_step", "xla_nv_maxtext_1n1g_jit_train_step_before_optimization", "xla_dlrm_keras_train_step"} {
		t.Run(name, func(t *testing.T) {
			m, err := hlo.ParseString(twoLayers)
			if name != "two layers" {
				files := remattest.Real(t)
				k := slices.IndexFunc(files, func(file string) bool { return strings.HasPrefix(filepath.Base(file), name+".") })
				if k < 0 {
					t.Skip("no such module in ../shared/data/hlo")
				}
				m = remattest.Read(t, files[k])
			}
			if err != nil {
				t.Fatal(err)
			}
			a := answer(t, m, remat.Request{Algorithm: "gap", Limit: remat.Percent(70)})
			rows, err := layers(a)
			if err != nil {
				t.Fatal(err)
			}
			lean, err := withoutDead(a.Module)
			if err != nil {
				t.Fatal(err)
			}
			prices, err := cost.New(lean, a.Request.Rates)
			if err != nil {
				t.Fatal(err)
			}
			var sum float64
			for _, row := range rows {
				sum += row.seconds
			}
			if extra := prices.Computation(lean.Entry).Seconds - a.RunSeconds; math.Abs(sum-extra) > 1e-6*a.RunSeconds {
				t.Errorf("the rows take %v s, the plan %v s", sum, extra)
			}
		})
	}
}
