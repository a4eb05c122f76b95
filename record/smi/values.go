package smi

// Values as the tools print them.

import (
	"strconv"
	"strings"
	"time"

	"gpumem/size"
)

// amount reads a size: 123MiB, 123 MiB, 2.0 GB, or 123 of MiB. A limiter that counted below
// zero prints sizes just below 2^64, which are read as they stand.
func amount(text string) (n uint64, ok bool) {
	text = strings.TrimSpace(text)
	if text == "" || !digit(text[0]) {
		return 0, false
	}
	if digit(text[len(text)-1]) {
		n, err := strconv.ParseUint(text, 10, 30)
		return n << 20, err == nil
	}
	n, err := size.Parse(text)
	return n, err == nil
}

// usage reads "123MiB / 456MiB": what is used of how much.
func usage(text string) (used, total uint64, ok bool) {
	left, right, ok := strings.Cut(text, "/")
	if !ok {
		return 0, 0, false
	}
	left = strings.TrimSpace(left)
	if i := strings.LastIndexByte(left, ' '); i >= 0 && left[i+1:] != "MiB" && left[i+1:] != "MB" {
		left = left[i+1:] // driver 304 has a percentage before it
	}
	right = strings.TrimSpace(right)
	if !strings.HasSuffix(right, "B") {
		return 0, 0, false
	}
	used, ok = amount(left)
	if !ok {
		return 0, 0, false
	}
	total, ok = amount(right)
	return used, total, ok && total > 0
}

// unknown reports whether a tool prints the text where it has no value.
func unknown(text string) bool {
	switch text {
	case "N/A", "-", "ERR!", "None", "Not Supported", "Not Found", "Unknown", "Unknown Error", "Insufficient Permissions":
		return true
	}
	return len(text) > 2 && text[0] == '[' && text[len(text)-1] == ']'
}

// gone reports whether a tool prints the text for the name of a process that it could not find.
func gone(text string) bool {
	text = strings.Trim(text, "[]")
	return text == "Not Found" || text == "Unknown Error"
}

// known is the text, or empty if it stands for no value.
func known(text string) string {
	if unknown(text) {
		return ""
	}
	return clip(text)
}

// clip is a copy of a name, which does not keep the line in memory.
func clip(text string) string {
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "")
	}
	return strings.Clone(text)
}

// number reads an index or the number of a process.
func number(text string) (int, bool) {
	if text == "" || len(text) > 10 || !digit(text[0]) {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 31)
	return int(n), err == nil
}

// busID reports whether the text is the address of a PCI device: 0000:01:00.0 or 00000000:01:00.0.
func busID(text string) bool {
	if len(text) != len("0000:01:00.0") && len(text) != len("00000000:01:00.0") {
		return false
	}
	domain, rest := text[:len(text)-8], text[len(text)-8:]
	return rest[0] == ':' && rest[3] == ':' && rest[6] == '.' && hex(domain) && hex(rest[1:3]) && hex(rest[4:6]) && digit(rest[7])
}

func hex(text string) bool {
	return strings.Trim(text, "0123456789abcdefABCDEF") == ""
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

// layouts are those of timestamps in CSV. Fractions of a second are read by all.
var layouts = []string{"2006/01/02 15:04:05", "2006-01-02 15:04:05", time.RFC3339, "2006-01-02T15:04:05", dateLayout}

// timestamp reads a time; zero if it is in no known form.
func timestamp(text string) time.Time {
	for _, layout := range layouts {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC()
		}
	}
	seconds, fraction, _ := strings.Cut(text, ".")
	if n, err := strconv.ParseInt(seconds, 10, 64); err == nil && hex(fraction) {
		switch {
		case n >= 1e9 && n < 1e10:
			f, _ := strconv.ParseFloat("0."+fraction+"0", 64)
			return time.Unix(n, int64(f*1e9)).UTC()
		case n >= 1e12 && n < 1e13:
			return time.UnixMilli(n).UTC()
		}
	}
	return time.Time{}
}
