// Package web writes pages of HTML that are one file and load nothing. It has what all
// pages share: the shell, the style, and the drawing code that runs in the reader's
// browser. A page brings its text, its data and one function of JavaScript.
//
// # One page
//
// [Page.Write] puts the parts together: the style, the page's own text, the data as JSON
// that is compressed with gzip (the browser unpacks it), and one script, which is the kit
// (base.js, card.js, plot.js, table.js) followed by the page's own. A content security
// policy lets that script run and no other, so that markup in a name of a recording cannot
// run. When the data is unpacked the kit calls the page's function start with it. What the
// reader sees without scripts is the page's own text.
//
// Every figure on a page is computed in Go. The scripts format numbers, place things and
// draw.
package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"strconv"
	"strings"
	"unicode"
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed kit.css
	style string
	//go:embed base.js
	baseJS string
	//go:embed card.js
	cardJS string
	//go:embed plot.js
	plotJS string
	//go:embed table.js
	tableJS string
	//go:embed unpack.js
	unpackJS string
)

// Style returns the style sheet that all pages share.
func Style() string { return style }

// Kit returns the functions that all pages share, for a script with strict mode of its
// own. base.js has an overview.
func Kit() string { return baseJS + cardJS + plotJS + tableJS }

// A Page is one page. Title, and everything in Body and Data that comes from elsewhere, may
// be any text: Body is escaped by whoever made it, and the rest here.
type Page struct {
	Title  string        // of the window
	Body   template.HTML // what is readable without scripts, and the places that the script fills
	Style  string        // CSS that follows the kit's
	Script string        // JavaScript that follows the kit's; it has a function start(data)
	Data   any           // is written as JSON
}

var pageTemplate = template.Must(template.New("page").Parse(pageHTML))

// Write writes the page. The errors are those of the data's JSON, and w's.
func (p *Page) Write(w io.Writer) error {
	data, err := pack(p.Data)
	if err != nil {
		return err
	}
	script := "\"use strict\";\n(function () {\n" + Kit() + p.Script + unpackJS + "})();\n"
	return pageTemplate.Execute(w, struct {
		Title, Policy string
		Style         template.CSS
		Body          template.HTML
		Data          template.HTML // base64 alone
		Script        template.JS
	}{
		Visible(p.Title), fmt.Sprintf("default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src '%s'; base-uri 'none'; form-action 'none'", Hash(script)),
		template.CSS(style + p.Style), template.HTML(Visible(string(p.Body))), template.HTML(data), template.JS(script),
	})
}

// pack returns v as JSON, compressed, in base64.
func pack(v any) (string, error) {
	var b bytes.Buffer
	text := base64.NewEncoder(base64.StdEncoding, &b)
	zip, err := gzip.NewWriterLevel(text, gzip.BestCompression)
	if err != nil {
		return "", err
	}
	data, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	if _, err := io.WriteString(zip, Visible(string(data))); err != nil {
		return "", err
	}
	_, _ = zip.Close(), text.Close() // a Buffer takes everything
	return b.String(), nil
}

// Visible returns s with a replacement character for each character that changes the
// direction of the text around it: with them a name could make other words on the page read
// backwards.
func Visible(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == 0x061c, r == 0x200e, r == 0x200f, 0x202a <= r && r <= 0x202e, 0x2066 <= r && r <= 0x2069:
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// Hash returns the name of a script in a content security policy.
func Hash(script string) string {
	sum := sha256.Sum256([]byte(script))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// Numbers are written to JSON as differences, the first from 0, because curves rarely
// change. The kit's function sums undoes it.
type Numbers []uint64

// MarshalJSON writes the differences.
func (n Numbers) MarshalJSON() ([]byte, error) {
	b := []byte{'['}
	last := uint64(0)
	for i, v := range n {
		if i > 0 {
			b = append(b, ',')
		}
		if v < last {
			b = append(b, '-')
			b = strconv.AppendUint(b, last-v, 10)
		} else {
			b = strconv.AppendUint(b, v-last, 10)
		}
		last = v
	}
	return append(b, ']'), nil
}
