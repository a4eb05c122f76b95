package browser

import (
	"bytes"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.html")
	text := `<!DOCTYPE html><title>t</title><body style="margin:0;background:#fff">
<style>@media (prefers-color-scheme: dark) { body { background: #000 !important; } }</style><p id="p">hello</p>
<script>addEventListener("keydown", e => { document.getElementById("p").textContent = "key " + e.key; });
setTimeout(() => { document.body.dataset.late = "yes"; console.error("told"); null.x; }, 20);</script>`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := Open(t, 300, 200, "dark")
	p.Go("file://" + file)
	if got := strings.TrimSpace(p.Text()); got != "hello" {
		t.Errorf("text %q", got)
	}
	p.Wait(`document.body.dataset.late === "yes"`)
	p.Press("x")
	p.Wait(`document.getElementById("p").textContent === "key x"`)
	var n int
	p.Eval("Promise.resolve(6 * 7)", &n)
	if n != 42 {
		t.Errorf("%d", n)
	}
	img, err := png.Decode(bytes.NewReader(p.Screenshot()))
	if err != nil || img.Bounds().Dx() != 300 {
		t.Fatalf("%v, %v", img, err)
	}
	if r, g, b, _ := img.At(299, 199).RGBA(); r+g+b != 0 {
		t.Error("the page is not dark")
	}
	if got := p.Requests(); len(got) != 1 || got[0] != "file://"+file {
		t.Errorf("requests %v", got)
	}
	if got := strings.Join(p.Troubles(), "\n"); !strings.Contains(got, "told") || !strings.Contains(got, "exception") {
		t.Errorf("troubles %s", got)
	}
}
