package measure

import "testing"

func TestLooksNamed(t *testing.T) {
	for head, want := range map[string]bool{
		"\x0a\x04step\x12\x04main\x1a":                     true,
		"\x0a\xff\x7f\x0a\x04step\x12\x04main\x1a":         true, // in a message that is longer than the head
		"\x0a\x04step\x1a\x04main":                         false,
		"\x0a\x04st\x01p\x12\x04main":                      false,
		"\x0a\x7fstep":                                     false,
		"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01": false,
		"\x0a":      false,
		"":          false,
		"HloModule": false,
	} {
		if got := LooksNamed([]byte(head)); got != want {
			t.Errorf("%q: %v", head, got)
		}
	}
}
