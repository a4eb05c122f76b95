package web_test

import (
	"fmt"
	"strings"

	"gpumem/internal/report/web"
)

// A page whose script writes what its data has into a paragraph.
func Example() {
	page := web.Page{
		Title:  "GPU memory",
		Body:   `<p id="peak">Scripts are off.</p>`,
		Script: `function start(data) { byId("peak").textContent = "At most " + bytes(data.peak); }`,
		Data:   map[string]uint64{"peak": 3 << 30},
	}
	var b strings.Builder
	if err := page.Write(&b); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(strings.Contains(b.String(), "Scripts are off."), strings.Contains(b.String(), "default-src &#39;none&#39;"))
	// Output: true true
}
