package doctor

import (
	"strings"
	"testing"
)

// TestWorkIsBounded: texts that are made of what is looked for are read in
// bounded time: with work that grows as the square of the length this test does not end.
func TestWorkIsBounded(t *testing.T) {
	for name, unit := range map[string]string{
		"one long line": "out of memory tried to allocate 3 GiB ", "lines": "out of memory: tried to allocate 3 GiB\n",
		"numbers": "123456789012345678901234567890 ", "brackets": "([{ ", "quotes": `{"log":"{\"log\":\"`, "colons": "free: total= used:",
		"headers": "E0101 00:00:00.000000 1000 a.cc:1] ", "exceptions": "a.BError: C ", "escapes": `\\_\\n&lt;<br>`,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Diagnose(strings.NewReader(strings.Repeat(unit, 4<<20/len(unit))), nil); err != nil {
				t.Fatal(err)
			}
		})
	}
}
