package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/hlo"
	"gpumem/hlo/cost"
	"gpumem/hlo/load"
	"gpumem/remat"
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

// reportOf runs remat --report on a text and gives the page.
func reportOf(t *testing.T, text string, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in.hlo"), filepath.Join(dir, "page.html")
	if err := os.WriteFile(in, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if status := run(t.Context(), append([]string{"remat", in, "--report", out}, flags...), &stdout, &stderr); status != 0 {
		t.Fatalf("status %d: %s", status, stderr.String())
	}
	page, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// wholePage checks what holds of each page: its drawings are well formed, it asks
// for nothing from outside, and no number is broken.
func wholePage(t *testing.T, page string) {
	t.Helper()
	for _, bad := range []string{"http://", "https://", "<script", "src=", "url(", "@import", "NaN", "Inf", "ZgotmplZ", "%!", "<no value>"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	for _, want := range []string{"<!DOCTYPE html>", `<html lang="en">`, "prefers-color-scheme: dark", "@media print", `name="viewport"`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	// All elements but the void ones are closed, in order.
	body := page[strings.Index(page, "<body>"):]
	body = strings.NewReplacer("<br>", "<br/>", "<wbr>", "<wbr/>", "</html>", "").Replace(body)
	d := xml.NewDecoder(strings.NewReader(body))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("not well formed: %v", err)
		}
	}
}

func TestReport(t *testing.T) {
	for _, test := range []struct {
		name  string
		flags []string
		want  []string
	}{
		{"gap", []string{"--algorithm", "gap", "--limit", "50KiB"}, []string{"to 40\u00a0KiB, within its limit of 50\u00a0KiB", "net/<wbr>layer_2", "after 40 KiB", "algorithm</th><td class=\"n\">gap"}},
		{"xla", []string{"--algorithm", "xla", "--limit", "50KiB"}, []string{"to 40\u00a0KiB, within its limit of 50\u00a0KiB", "net/<wbr>layer_2"}},
		{"off", []string{"--algorithm", "off", "--limit", "50KiB"}, []string{"more than its limit of 50\u00a0KiB, and nothing is recomputed", "<p>Nothing.</p>", "after 56 KiB"}},
		{"out of reach", []string{"--algorithm", "gap", "--limit", "1KiB"}, []string{"misses its limit of 1\u00a0KiB", "out of reach"}},
		{"far above", []string{"--limit", "1GiB"}, []string{"fits its limit of 1\u00a0GiB as it is", "The limit, 1 GiB, lies above the drawing"}},
		{"marked", []string{"--algorithm", "off", "--limit", "50KiB", "--mark", "layer_1"}, []string{"marked</th><td class=\"n\">layer_1", "limits 5 % of the peak apart"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			page := reportOf(t, twoLayers, test.flags...)
			wholePage(t, page)
			for _, want := range append(test.want, "lower bound 36 KiB", "before 56 KiB", "before: 56 KiB at <code>big</code>", "big f32[8192]{0}") {
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
	page := reportOf(t, "HloModule none\n\nENTRY main {\n  ROOT p = f32[4] parameter(0)\n}\n", "--limit", "1KiB")
	wholePage(t, page)
	if !strings.Contains(page, "There are no temporaries") {
		t.Error("a module without temporaries has some")
	}
}

func TestLayerOf(t *testing.T) {
	for name, want := range map[string]string{
		"jit(step)/jvp(MlpMixer)/MixerBlock_7/token_mixing/Dense_1/add":                                      "MlpMixer/MixerBlock_7",
		"jit(step)/transpose(jvp(MlpMixer))/MixerBlock_7/LayerNorm_0/mul":                                    "MlpMixer/MixerBlock_7, backward",
		"jit(step)/jit(main)/jvp(Transformer)/decoder/while/body/layers/self_attention/key/mul":              "Transformer/decoder/layers",
		"jit(s)/transpose(jvp(T))/decoder/while/body/checkpoint/rematted_computation/layers/mlp/dot_general": "T/decoder/layers, backward",
		"jit(step)/jit(main)/mul": "mul",
		"jit(step)/jvp()/add":     "add",
		"reduce_sum":              "reduce_sum",
		"a/b":                     "a",
		"((/)/x":                  "((/)",
	} {
		m, err := hlo.ParseString("HloModule m\n\nENTRY e {\n  ROOT p = f32[4] parameter(0), metadata={op_name=\"" + name + "\"}\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		if got := layerOf(m.Entry.Root); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	m, err := hlo.ParseString("HloModule m\n\nENTRY e {\n  ROOT p = f32[4] parameter(0)\n}\n")
	if err != nil || layerOf(m.Entry.Root) != "no op_name: parameter" {
		t.Errorf("%v, %v", m, err)
	}
}

// TestLayersAddUp: the seconds of all rows are what the plan costs.
func TestLayersAddUp(t *testing.T) {
	texts := map[string]string{"two layers": twoLayers}
	for _, name := range []string{"rocm_imagenette.train_step", "xla_nv_maxtext_1n1g_jit_train_step_before_optimization", "xla_dlrm_keras_train_step"} {
		texts[name] = "../../../shared/data/hlo/" + name + ".hlo.gz"
	}
	for name, text := range texts {
		t.Run(name, func(t *testing.T) {
			m, err := hlo.ParseString(text)
			if strings.HasSuffix(text, ".gz") {
				if _, err := os.Stat(text); err != nil {
					t.Skipf("no real module: %v", err)
				}
				m, err = load.Module(t.Context(), text)
			}
			if err != nil {
				t.Fatal(err)
			}
			f := &rematFlags{bandwidth: 3e12, flops: 4e14, line: newProgress(io.Discard)}
			r, err := f.newReport(m)
			if err != nil {
				t.Fatal(err)
			}
			p, err := remat.Best(m, r.before.peak/10*7, cost.Rates{Bytes: f.bandwidth, Flops: f.flops})
			if err != nil {
				t.Fatal(err)
			}
			rows, err := r.layers(p.Module, f.rates())
			if err != nil {
				t.Fatal(err)
			}
			var sum float64
			for _, row := range rows {
				sum += row.seconds
			}
			if extra := p.Seconds - r.seconds; math.Abs(sum-extra) > 1e-6*r.seconds {
				t.Errorf("the rows take %v s, the plan %v s", sum, extra)
			}
		})
	}
}

// TestDrawFrontier: whatever the figures are, all is in the drawing.
func TestDrawFrontier(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := &rematAnswer{Before: rapid.Uint64Range(1, 1<<50).Draw(t, "before")}
		a.After = rapid.Uint64Range(0, a.Before).Draw(t, "after")
		a.LowerBound = rapid.Uint64Range(0, a.Before).Draw(t, "bound")
		var curve []*rematAnswer
		for range rapid.IntRange(0, 20).Draw(t, "plans") {
			k := *a
			k.Limit = rapid.Uint64Range(0, a.Before).Draw(t, "limit")
			k.After = rapid.Uint64Range(0, a.Before).Draw(t, "reached")
			k.Extra = rapid.Float64Range(-1, 1000).Draw(t, "extra")
			k.LowerPercent = rapid.Float64Range(0, 1000).Draw(t, "least")
			curve = append(curve, &k)
		}
		d := drawFrontier(a, curve)
		spots := append(append(d.Bytes, d.Extra...), d.Points...)
		for _, s := range append(spots, *d.Now, *d.Plan, *d.Bound) {
			for _, part := range []string{s.X, s.Y} {
				number, _ := strings.CutSuffix(part, "%")
				if v, err := strconv.ParseFloat(number, 64); part != "" && (err != nil || v < 0 || v > 100.01) {
					t.Fatalf("%+v lies outside", s)
				}
			}
		}
		if len(d.Points) > 0 && d.Points[len(d.Points)-1].Text == "" {
			t.Fatal("the last plan has no text")
		}
	})
	if drawFrontier(&rematAnswer{}, nil) != nil || drawMemory(&rematAnswer{}, &rematSide{curve: []uint64{0}}, &rematSide{curve: []uint64{0}}) != nil {
		t.Error("a drawing of nothing")
	}
}
