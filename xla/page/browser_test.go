package page

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpumem/internal/test/browser"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/remat"
)

// hostile has names with markup, with characters that turn text around, with control
// characters, and without end.
func hostile(control string) string {
	long := strings.Repeat("very_long_scope/", 200)
	text := twoLayers
	for from, to := range map[string]string{
		"jit(f)/jvp(net)/layer_2/mul":        `</script><script>document.title='ran'</script><img src=x onerror=document.title='ran'>/` + long + `mul`,
		"jit(f)/while/body/inner_1/exp":      "jit(f)/\u202egnihtyna\u2066/" + control + "[31m/exp",
		`source_file=\"a<b>.py\"`:            "",
		"jit(f)/transpose(jvp(net))/layer_2": "שלום/العالم/{{.}}/${x}/",
	} {
		text = strings.ReplaceAll(text, from, to)
	}
	return text
}

// opened writes a page to a file and opens it in a browser.
func opened(t *testing.T, width, height int, scheme, page string) *browser.Page {
	t.Helper()
	p := browser.Open(t, width, height, scheme)
	path := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(path, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Go("file://" + path)
	p.Wait(`document.documentElement.dataset.ready === "yes"`)
	return p
}

// drawn is a promise of the next two frames: what scrolling brings about has happened then.
const drawn = `new Promise((f) => requestAnimationFrame(() => requestAnimationFrame(f)))`

// calm checks that a page ran into nothing, asked for nothing, and is no wider than the window.
func calm(t *testing.T, p *browser.Page) {
	t.Helper()
	var errors, title string
	p.Eval(`document.documentElement.dataset.errors || ""`, &errors)
	p.Eval(`document.title`, &title)
	var wide, window int
	p.Eval(`document.documentElement.scrollWidth`, &wide)
	p.Eval(`innerWidth`, &window)
	if list := p.Troubles(); errors != "" || len(list) > 0 {
		t.Errorf("%s %v", errors, list)
	}
	for _, r := range p.Requests() {
		if !strings.HasPrefix(r, "file://") {
			t.Errorf("the page asks for %s", r)
		}
	}
	if wide > window || title == "ran" {
		t.Errorf("%d pixels wide in a window of %d, title %q", wide, window, title)
	}
}

// TestHostileNamesInABrowser: names run nothing and break no layout, also on a phone.
func TestHostileNamesInABrowser(t *testing.T) {
	path := textFile(t, hostile("")) // a file with control characters is no text
	module := modulePage(t, measured(t, path), time.Minute)
	m, err := hlo.ParseString(hostile("\x01\x1b"))
	if err != nil {
		t.Fatal(err)
	}
	var plan strings.Builder
	if err := Write(&plan, answer(t, m, remat.Request{Algorithm: "gap", Limit: remat.Bytes(50 << 10), Frontier: Step(m)})); err != nil {
		t.Fatal(err)
	}
	for name, page := range map[string]string{"module": module, "plan": plan.String()} {
		t.Run(name, func(t *testing.T) {
			p := opened(t, 1280, 800, "light", page)
			calm(t, p)
			text := p.Text()
			if !strings.Contains(text, "<script>document.title='ran'</script>") || strings.ContainsAny(text, "\u202e\u2066\x01\x1b") {
				t.Error("a name is not shown as it is, or turns text around")
			}
			p.Size(390, 844, true)
			p.Wait(`innerWidth === 390`)
			calm(t, p)
		})
	}
}

// TestModuleInABrowser: what is pointed at has a card, a click lists what lives there, and
// the search finds it. The figures are those of Go.
func TestModuleInABrowser(t *testing.T) {
	s := measured(t, assigned+"loop-gpu-0.12.0.1.dump.pb")
	p := opened(t, 1280, 800, "light", modulePage(t, s, time.Minute))
	calm(t, p)
	said := `document.querySelector("#alive-0 p").textContent`
	var text string
	if p.Eval(said, &text); text != "200.10 KiB in 15 values at gemm_fusion_dot, step 53 of 66, the peak." {
		t.Errorf("at the peak: %q", text)
	}
	var rows int
	if p.Eval(`document.querySelectorAll("#alive-0 tbody tr").length`, &rows); rows != 15 {
		t.Errorf("%d rows of 15 values", rows)
	}
	p.Eval(`document.querySelector("#view-0 .plot").focus()`, nil) // scrolls, too
	p.Eval(drawn, nil)
	p.Press("Home")
	p.Wait(`!document.querySelector(".card").hidden`)
	if p.Eval(`document.querySelector(".card").textContent`, &text); !strings.Contains(text, "56 KiB") {
		t.Errorf("the card at the beginning has no 56 KiB of parameters: %q", text)
	}
	p.Press("Enter")
	if p.Eval(said, &text); !strings.HasPrefix(text, "56 KiB in 2 values at constant_29_0, step 1 of 66") {
		t.Errorf("at the beginning: %q", text)
	}
	p.Eval(`[...document.querySelectorAll("button")].find((b) => b.textContent === "to the peak").click()`, nil)
	p.Eval(`(() => { const i = document.querySelector("#alive-0 input"); i.value = "while.12"; i.dispatchEvent(new Event("input")); })()`, nil)
	if p.Eval(`document.querySelectorAll("#alive-0 tbody tr").length`, &rows); rows != 2 {
		t.Errorf("%d rows have while.12, want 2", rows)
	}
	// The heap's card names what lies under the pointer, with its address.
	p.Mouse("mouseMoved", "#heap-plot .plot", .3, .7) // scrolls there, which hides the card
	p.Eval(drawn, nil)
	p.Mouse("mouseMoved", "#heap-plot .plot", .31, .7)
	p.Wait(`!document.querySelector(".card").hidden && document.querySelector(".card").textContent.includes("lies at")`)
	p.Eval(`document.querySelector("#view-0 select").value = 2; document.querySelector("#view-0 select").dispatchEvent(new Event("change"))`, nil)
	calm(t, p)
}

// TestModuleWithoutScripts: the figures and the largest values are text.
func TestModuleWithoutScripts(t *testing.T) {
	s := measured(t, assigned+"loop-0.12.0.1.txt")
	path := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(path, []byte(modulePage(t, s, 0)), 0o600); err != nil {
		t.Fatal(err)
	}
	p := browser.Open(t, 800, 600, "dark")
	p.WithoutScripts("file://" + path)
	if text := p.Text(); !strings.Contains(text, "live at most") || !strings.Contains(text, s.Largest[0].Instruction) {
		t.Errorf("without scripts there is\n%s", text)
	}
}
