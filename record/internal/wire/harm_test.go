package wire

import (
	"strings"
	"testing"
)

func TestTextHarm(t *testing.T) {
	long := strings.Repeat("é", maxTake)
	for _, c := range []struct {
		name, data string
		want       int64
	}{
		{"empty", "", 0},
		{"ASCII", "abc", 0},
		{"binary", "ab\x80c", 0},
		{"binary with such a character", "ab\ufffd\x80c", 0},
		{"text", "ab\ufffdc\ufffd", 2},
		{"text cut in a character", "a\ufffdb\xef\xbf", 1},
		{"long text cut in a character", "a\ufffd" + long[:maxTake-5], 1},
		{"long text", long[:maxTake], 0},
	} {
		if got := textHarm([]byte(c.data)); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
