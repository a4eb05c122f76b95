package serve

// The page.

import (
	_ "embed"
	"net/http"
	"strings"
	"time"

	"gpumem/internal/report/web"
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS string
	//go:embed page.js
	pageJS string

	script = "\"use strict\";\n(function () {\n" + web.Kit() + pageJS + "})();\n"
	page   = strings.NewReplacer("STYLE", web.Style()+pageCSS, "SCRIPT", script).Replace(pageHTML)
	// policy lets that script run and no other. It may ask this server alone.
	policy = "default-src 'none'; style-src 'unsafe-inline'; script-src '" + web.Hash(script) + "'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

func (s *server) page(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", policy)
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(page))
}
