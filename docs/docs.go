// Package docs has pages of the documentation that commands show.
package docs

import _ "embed"

// Causes is the page on why memory runs out, in Markdown: a section for each cause.
//
//go:embed causes.md
var Causes string
