// Package webtest reads the pages that package internal/report/web writes, for tests.
package webtest

import (
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
)

var packed = regexp.MustCompile(`<div id="data" hidden>([^<]*)</div>`)

// Data reads the data of a page into v, as JSON.
func Data(t testing.TB, html string, v any) {
	t.Helper()
	m := packed.FindStringSubmatch(html)
	if m == nil {
		t.Fatal("the page has no data")
	}
	zip, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(m[1])))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(zip).Decode(v); err != nil {
		t.Fatal(err)
	}
}

// Sum undoes the differences of web.Numbers.
func Sum(list []int64) []uint64 {
	out := make([]uint64, len(list))
	last := int64(0)
	for k, d := range list {
		last += d
		out[k] = uint64(last)
	}
	return out
}
