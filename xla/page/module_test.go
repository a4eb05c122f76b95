package page

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"gpumem/device/card"
	"gpumem/size"
	"gpumem/xla/measure"
	"gpumem/xla/remat"
)

const assigned = "../measure/testdata/"

// measured measures files as the command does.
func measured(t *testing.T, paths ...string) *measure.Answer {
	t.Helper()
	s, err := measure.Files(t.Context(), paths, Largest)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// modulePage is the page of a module that was measured.
func modulePage(t *testing.T, s *measure.Answer, limit time.Duration) string {
	t.Helper()
	var b strings.Builder
	if err := WriteModule(t.Context(), &b, s, limit, nil); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// textFile writes a module to a file.
func textFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "module.hlo")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// agrees checks the page of a module against what the command prints: the header, the curve,
// the values at the peak, and where they lie.
func agrees(t *testing.T, s *measure.Answer, page string) {
	t.Helper()
	wholePage(t, page)
	d := dataOf(t, page)
	addsUp(t, d)
	v := d.Views[0]
	if v.Peak != s.Peak || v.Names[v.PeakColumn] != s.PeakAt || v.Steps != len(s.Curve) {
		t.Errorf("the page has %d bytes at %s in %d steps; the command %d at %s in %d", v.Peak, v.Names[v.PeakColumn], v.Steps, s.Peak, s.PeakAt, len(s.Curve))
	}
	for what, bytes := range map[string]uint64{"arguments": s.Arguments, "results": s.Results, "temporaries": s.Temporaries, "total": s.Total, "live at most": s.Peak, "pass&#39;s count": s.PassPeak} {
		if !strings.Contains(page, `<th scope="row">`+what+`</th><td class="n">`+size.Format(bytes)+`</td>`) {
			t.Errorf("the header has no %s of %s", what, size.Format(bytes))
		}
	}
	// The largest values are the command's, in its order.
	if !s.Exact {
		if int(v.Alive[v.PeakColumn]) != s.Alive {
			t.Errorf("%d values live at the peak, and the command has %d", v.Alive[v.PeakColumn], s.Alive)
		}
		at := 0
		for n := range v.Rows.First {
			if v.Rows.First[n] > v.PeakStep || v.PeakStep > v.Rows.Last[n] || at == len(s.Largest) {
				continue
			}
			x, name, shape := s.Largest[at], v.Texts[v.Rows.Name[n]], v.Texts[v.Rows.Shape[n]]
			if at++; name != x.Instruction || shape != x.Shape || v.Rows.Bytes[n] != x.Bytes {
				t.Errorf("value %d is %s %s of %d bytes, the command's %s %s of %d", at, name, shape, v.Rows.Bytes[n], x.Instruction, x.Shape, x.Bytes)
			}
		}
		if at != len(s.Largest) {
			t.Errorf("the page has %d of %d values", at, len(s.Largest))
		}
	}
	heap := v.Heap
	var lying []int
	for n, offset := range v.Rows.Offset {
		if offset >= 0 && v.Rows.Bytes[n] > 0 {
			if lying = append(lying, n); uint64(offset)+v.Rows.Bytes[n] > heap.Bytes {
				t.Errorf("%s lies beyond the heap of %d bytes", v.Texts[v.Rows.Name[n]], heap.Bytes)
			}
		}
	}
	if !heap.Exact && heap.Bytes > s.Temporaries || heap.Exact && heap.Bytes != s.Temporaries {
		t.Errorf("a heap of %d bytes, and temporaries of %d", heap.Bytes, s.Temporaries)
	}
	if len(lying) > 4000 { // the square of it is looked at
		lying = lying[:4000]
	}
	for k, n := range lying {
		for _, m := range lying[:k] {
			r := v.Rows
			// Where one ends and the other begins it may take over the memory.
			if r.First[n] < r.Last[m] && r.First[m] < r.Last[n] && uint64(r.Offset[n]) < uint64(r.Offset[m])+r.Bytes[m] && uint64(r.Offset[m]) < uint64(r.Offset[n])+r.Bytes[n] {
				t.Fatalf("%s (steps %d to %d) and %s (%d to %d) lie in the same memory", v.Texts[r.Name[n]], r.First[n], r.Last[n], v.Texts[r.Name[m]], r.First[m], r.Last[m])
			}
		}
	}
}

func TestWriteModuleAgreesWithTheCommand(t *testing.T) {
	loop := assigned + "loop-0.12.0.1"
	for _, test := range []struct {
		name  string
		files []string
		want  []string
	}{
		{"a text", []string{loop + ".txt"}, []string{"by a model of XLA&#39;s assignment"}},
		{"XLA's assignment beside it", []string{loop + ".module.pb", loop + ".assignment.pb"}, []string{"by XLA&#39;s own assignment", "In memory where the temporaries take the most"}},
		{"of a GPU", []string{assigned + "loop-gpu-0.12.0.1.dump.pb"}, []string{"211.82\u00a0KiB, 155.80\u00a0KiB of it temporaries"}},
		{"of an older release", []string{assigned + "loop-0.4.38.dump.pb"}, []string{"by XLA&#39;s own assignment"}},
		{"written by hand", []string{textFile(t, twoLayers)}, []string{"<th class=\"long\" scope=\"row\">a&lt;b&gt;.py:7<wbr>", "lower bound</th><td class=\"n\">36 KiB"}},
		{"a parameter", []string{textFile(t, "HloModule none\n\nENTRY main {\n  ROOT p = f32[4] parameter(0)\n}\n")}, []string{"takes 32\u00a0B, 0\u00a0B of it temporaries"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := measured(t, test.files...)
			page := modulePage(t, s, time.Hour)
			agrees(t, s, page)
			for _, want := range test.want {
				if !strings.Contains(page, want) {
					t.Errorf("the page has no %q", want)
				}
			}
		})
	}
}

func TestWriteModuleOfRealModules(t *testing.T) {
	files, _ := filepath.Glob("../../../shared/data/hlo/*.hlo.gz")
	if len(files) == 0 {
		t.Skip("skipped: no modules in ../shared/data/hlo")
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			s := measured(t, file)
			agrees(t, s, modulePage(t, s, 0))
		})
	}
}

// TestModuleRows: each value has its kind, its life, its padding and its place.
func TestModuleRows(t *testing.T) {
	s := measured(t, textFile(t, `HloModule rows, is_scheduled=true

ENTRY main {
  p = f32[100]{0} parameter(0)
  a = s4[1000]{0} custom-call(p), custom_call_target="use"
  b = f32[100]{0} custom-call(a), custom_call_target="use"
  ROOT r = f32[100]{0} custom-call(a, b), custom_call_target="use"
}
`))
	v := dataOf(t, modulePage(t, s, 0)).Views[0]
	for n := range v.Rows.First {
		r := v.Rows
		got := fmt.Sprintf("%s: %s of %d bytes, padding %d, steps %d to %d, at %d", v.Texts[r.Name[n]], v.Kinds[r.Kind[n]], r.Bytes[n], r.Padding[n], r.First[n], r.Last[n], r.Offset[n])
		want := []string{ // places are multiples of 256
			"a: temporary of 1000 bytes, padding 524, steps 1 to 3, at 0",
			"p: parameter of 400 bytes, padding 0, steps 0 to 4, at -1",
			"b: temporary of 400 bytes, padding 112, steps 2 to 3, at 1024",
			"r: result of 400 bytes, padding 0, steps 3 to 4, at -1",
		}
		if n >= len(want) || got != want[n] {
			t.Errorf("row %d is %q", n, got)
		}
	}
	if len(v.Rows.First) != 4 {
		t.Errorf("%d rows", len(v.Rows.First))
	}
}

// TestLongProgramKeepsItsPeak: a column of several steps shows the highest.
func TestLongProgramKeepsItsPeak(t *testing.T) {
	var b strings.Builder
	b.WriteString("HloModule long, is_scheduled=true\n\nENTRY main {\n  v0 = f32[4]{0} parameter(0)\n")
	const steps = 3 * mostColumns
	for k := 1; k < steps; k++ {
		shape := 4
		if k == 2*mostColumns+1 {
			shape = 9999
		}
		fmt.Fprintf(&b, "  v%d = f32[%d]{0} custom-call(v%d), custom_call_target=\"use\"\n", k, shape, k-1)
	}
	fmt.Fprintf(&b, "  ROOT r = f32[4]{0} custom-call(v%d), custom_call_target=\"use\"\n}\n", steps-1)
	s := measured(t, textFile(t, b.String()))
	page := modulePage(t, s, 0)
	agrees(t, s, page)
	if v := dataOf(t, page).Views[0]; len(v.Total) > mostColumns || len(v.Total) < mostColumns/2 {
		t.Errorf("%d columns of %d steps", len(v.Total), v.Steps)
	}
}

// TestWriteModuleSaysWhatIsLeftOut: without time there is no frontier, and with too little the
// page has the command that makes it.
func TestWriteModuleSaysWhatIsLeftOut(t *testing.T) {
	s := measured(t, textFile(t, twoLayers))
	for limit, want := range map[time.Duration]string{0: "Plans were not asked for", 1: "--frontier"} {
		page := modulePage(t, s, limit)
		wholePage(t, page)
		if !strings.Contains(page, want) {
			t.Errorf("with %v the page has no %q", limit, want)
		}
	}
}

func TestWriteModuleErrors(t *testing.T) {
	alone := measured(t, assigned+"loop-0.12.0.1.assignment.pb")
	if err := WriteModule(t.Context(), &strings.Builder{}, alone, time.Hour, nil); !errors.Is(err, ErrNoModule) {
		t.Errorf("%v for an assignment alone", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := WriteModule(ctx, &strings.Builder{}, measured(t, textFile(t, twoLayers)), time.Hour, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v after the end", err)
	}
	if err := WriteModule(t.Context(), full{}, measured(t, textFile(t, twoLayers)), 0, nil); !errors.Is(err, errFull) {
		t.Errorf("%v for a full disk", err)
	}
}

var errFull = errors.New("full")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

// TestTopOfTheFrontier: dear plans do not squeeze the others.
func TestTopOfTheFrontier(t *testing.T) {
	points := func(costs ...float64) (list []*frontierPoint) {
		for _, c := range costs {
			list = append(list, &frontierPoint{Extra: c})
		}
		return list
	}
	for _, test := range []struct {
		name   string
		points []*frontierPoint
		own    float64
		want   float64
	}{
		{"none", nil, 0, 1},
		{"all nothing", points(0, 0), 0, 1},
		{"even", points(0, 2, 4, 6), 0, 6},
		{"one dear", points(0, 2, 4, 6, 250), 0, 6},
		{"two dear", points(0, 2, 4, 6, 250, 400), 0, 6},
		{"the page's own is dear", points(0, 2, 4, 6, 250), 250, 250},
		{"steep", points(1, 2, 4, 8, 16), 0, 16},
		{"one alone", points(117), 0, 117},
	} {
		if got, want := topOf(test.points, &frontierPoint{Extra: test.own}), 1.12*test.want; got != want {
			t.Errorf("%s: %v, want %v", test.name, got, want)
		}
	}
}

// own returns the page's own plan, nil if there is none.
func (f *frontier) own() *frontierPoint {
	for _, p := range f.Points {
		if p.Own {
			return p
		}
	}
	return nil
}

// TestFrontierOfAnyFigures: the axes hold the page's own plan and every plan's memory, and half of
// the plans at least stand below the top.
func TestFrontierOfAnyFigures(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := &remat.Answer{Peaks: remat.Peaks{Before: rapid.Uint64Range(1, 1<<50).Draw(t, "before")}}
		a.After = rapid.Uint64Range(0, a.Before).Draw(t, "after")
		a.Extra = rapid.Float64Range(-1, 1000).Draw(t, "own")
		for range rapid.IntRange(0, 20).Draw(t, "plans") {
			k := *a
			k.After = rapid.Uint64Range(0, 2*a.Before).Draw(t, "reached")
			k.Extra = rapid.Float64Range(-1, 1000).Draw(t, "extra")
			k.LowerPercent = rapid.Float64Range(0, 1000).Draw(t, "least")
			a.Frontier = append(a.Frontier, &k)
		}
		f := newFrontier(a, a)
		over := 0
		for _, p := range f.Points {
			if p.After > f.Right || p.Extra < 0 {
				t.Fatalf("%+v lies outside of %d", p, f.Right)
			}
			if p.Extra > f.Top {
				over++
			}
		}
		if own := f.own(); own.Extra > f.Top || 2*over > len(f.Points)+1 {
			t.Fatalf("top %v: own %v, %d of %d above", f.Top, own.Extra, over, len(f.Points))
		}
	})
	if newFrontier(&remat.Answer{}, nil) != nil {
		t.Error("a drawing of nothing")
	}
}

// TestCardFact: the page names a card whose memory takes the total.
func TestCardFact(t *testing.T) {
	for _, c := range []struct {
		name        string
		total       uint64
		value, more string
	}{
		{"small enough for a T4", 15_600_000_000, "T4", "programs see 14.55 GiB of it"},
		{"too large for it", 15_640_000_000, "", "programs see 1"},
		{"too large for any", 1 << 40, "none", "no card"},
	} {
		got := cardFact(c.total)
		if c.value != "" && got.Value != c.value || strings.HasPrefix(got.Value, "T4") && c.value == "" || !strings.HasPrefix(got.More, c.more) {
			t.Errorf("%s: %q", c.name, got)
		}
	}
	s := measured(t, assigned+"loop-0.12.0.1.txt")
	c, _ := card.Smallest(s.Total)
	if page := modulePage(t, s, 0); !strings.Contains(page, `<th scope="row">smallest card</th><td class="n">`+c.Title()+`</td>`) {
		t.Errorf("the page does not name %s", c.Title())
	}
}

// TestLabels: bands of the curve have different names beside it.
func TestLabels(t *testing.T) {
	const mul = "/Transformer/encoder_block_*/MlpBlock_*/mul"
	long := strings.Repeat("x", 40)
	for _, c := range []struct {
		name        string
		names, want []string
	}{
		{"short", []string{"a/mul", "b/mul", "the rest"}, []string{"a/mul", "b/mul", "the rest"}},
		{"ends differ", []string{"jit(train)/jvp(net)/layer_*/attention/add", "jit(train)/jvp(net)/layer_*/attention/mul"}, []string{"…/layer_*/attention/add", "…/layer_*/attention/mul"}},
		{"beginnings differ", []string{"clip/vision" + mul, "clip/text" + mul, "clip/other"}, []string{"clip/vision…/mul", "clip/text…/mul", "clip/other"}},
		{"one ends as the other", []string{"vision" + mul, "jvp(clip)/vision" + mul}, []string{"vision…/mul", "…/vision…/mul"}},
		{"beyond what is shown", []string{long + "a" + long, long + "b" + long}, []string{"…xxxxxxxxxxa…xxxxxxxxxxx", "…xxxxxxxxxxb…xxxxxxxxxxx"}},
		{"the same name", []string{long, long}, []string{"", ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var bands []*band
			for _, name := range c.names {
				bands = append(bands, &band{Name: name})
			}
			got := labels(bands)
			if c.want[0] != "" && !slices.Equal(got, c.want) {
				t.Errorf("labels %q, want %q", got, c.want)
			}
			slices.Sort(got)
			if len(slices.Compact(got)) != len(c.names) {
				t.Errorf("two of %q are the same", got)
			}
		})
	}
}

// TestLabelsDiffer for any names.
func TestLabelsDiffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.SampledFrom([]string{"a", "MlpBlock_*", "mul", "a_rather_long_word", "é"})
		var bands []*band
		for range rapid.IntRange(2, 7).Draw(t, "bands") {
			bands = append(bands, &band{Name: strings.Join(rapid.SliceOfN(word, 1, 8).Draw(t, "name"), "/")})
		}
		seen := map[string]bool{}
		for _, text := range labels(bands) {
			if seen[text] {
				t.Fatalf("%q twice", text)
			}
			seen[text] = true
			if !utf8.ValidString(text) || utf8.RuneCountInString(text) > mostLabel+5 {
				t.Fatalf("%q", text)
			}
		}
	})
}
