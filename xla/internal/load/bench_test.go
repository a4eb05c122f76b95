package load

import (
	"path/filepath"
	"strings"
	"testing"
)

// large is the module of testdata with the most bytes.
const large = "testdata/train-0.4.13.opt.pb"

func BenchmarkDecode(b *testing.B) {
	for _, name := range []string{large, "testdata/train-0.12.0.1.pre.pb", "testdata/kinds-0.12.0.1.pb"} {
		b.Run(strings.TrimSuffix(filepath.Base(name), ".pb"), func(b *testing.B) {
			bytes := contents(b, name)
			b.SetBytes(int64(len(bytes)))
			for b.Loop() {
				if _, err := read(bytes); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkRewrite(b *testing.B) {
	bytes := contents(b, large)
	m := asText(b, bytes)
	cloneSome(m)
	for b.Loop() {
		if _, err := Rewrite(bytes, m); err != nil {
			b.Fatal(err)
		}
	}
}
