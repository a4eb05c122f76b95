// Numbers and truth values as XLA and PyTorch read them in C++.

package literal

import (
	"regexp"
	"strconv"
	"strings"
)

// CInt is ReadInt64FromEnvVar's strings::safe_strto64.
func CInt(text string) (int64, bool) {
	v, err := strconv.ParseInt(strings.Trim(text, " \t\n\v\f\r"), 10, 64)
	return v, err == nil
}

// CBool is ReadBoolFromEnvVar.
func CBool(text string) (on, ok bool) {
	switch strings.ToLower(text) {
	case "1", "true":
		return true, true
	case "0", "false":
		return false, true
	}
	return false, false
}

// CInteger matches the beginning of a text that std::stoi reads.
var CInteger = regexp.MustCompile(`^[ \t-\r]*[+-]?[0-9]+`)

// CReal matches the beginning of a text that std::stod reads.
var CReal = regexp.MustCompile(`^[ \t-\r]*[+-]?(?i:0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)(?:p[+-]?[0-9]+)?|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf(?:inity)?|nan)`)

// IsSpace is C's isspace.
func IsSpace(c rune) bool { return c == ' ' || '\t' <= c && c <= '\r' }
