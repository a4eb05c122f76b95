package measure

// Binary modules among other messages of protocol buffers.

import (
	"encoding/binary"
	"regexp"
)

// LooksNamed reports whether content begins as a binary module, which is alone or the
// first part of a message: with its name and that of its entry. Recordings of TensorFlow and
// of pprof are messages, too, and begin with numbers.
func LooksNamed(head []byte) bool {
	return isNamed(head) || len(head) > 0 && head[0] == 1<<3|2 && isNamed(afterLength(head[1:]))
}

// afterLength returns what follows a length.
func afterLength(b []byte) []byte {
	_, n := binary.Uvarint(b)
	return b[max(0, n):]
}

var identifier = regexp.MustCompile(`^[\w.:<>-]+$`)

// isNamed reports whether the first two fields of a message are names.
func isNamed(message []byte) bool {
	for field := range byte(2) {
		if len(message) == 0 || message[0] != (field+1)<<3|2 {
			return false
		}
		bytes, n := binary.Uvarint(message[1:])
		if message = message[1+max(0, n):]; n <= 0 || bytes > uint64(len(message)) || !identifier.Match(message[:bytes]) {
			return false
		}
		message = message[bytes:]
	}
	return true
}
