package inventory

// What XLA prints of a program in a TPU's HBM: its parts, and its largest buffers with their padding.

import (
	"fmt"
	"regexp"
	"strings"
)

const hbmSize = `(\d[\d.]*[KMGT]?i?B?)\b`

var (
	hbmTotal  = regexp.MustCompile(`(Total hbm usage >=|Program hbm requirement) ` + hbmSize)
	hbmPart   = regexp.MustCompile(`^\s*(reserved|program|arguments|global|scoped|HLO temp)\s+` + hbmSize + `(?:.*Unpadded \(` + hbmSize + `\) Padded \(` + hbmSize + `\))?`)
	hbmBuffer = regexp.MustCompile(`^\s*(\d+)\. Size: ` + hbmSize)
	hbmShape  = regexp.MustCompile(`^\s*Shape: (\w+\[[\d,]*\])`)
	hbmPadded = regexp.MustCompile(`^\s*(Unpadded size|Extra memory due to padding): ` + hbmSize + `(?: \(([\d.]+)x expansion\))?`)
)

// hbmGap is how many lines may stand between two of such a list.
const hbmGap = 12

// mostBuffers is how many buffers of a list are kept.
const mostBuffers = 3

// hbm reads a line of the list. It reports whether the line is one.
func (r *Reader) hbm(n int, text string) bool {
	if i := strings.LastIndex(text[:min(len(text), 120)], "] "); i >= 0 && n <= r.hbmEnd {
		text = text[i+2:] // the prefix of a log
	}
	s := r.of(tpu, "")
	if s == nil {
		return false
	}
	set := func(key, size string) bool {
		b, ok := bytesOf(size, "")
		if ok {
			s.set(key, figure{b, From{n, text}})
			r.hbmEnd = n + hbmGap
		}
		return ok
	}
	if m := hbmTotal.FindStringSubmatch(text); m != nil {
		return set(strings.Fields(m[1])[2], m[2])
	}
	if n > r.hbmEnd {
		return false
	}
	if m := hbmPart.FindStringSubmatch(text); m != nil {
		set("padded", m[4])
		set("unpadded", m[3])
		return set(m[1], m[2])
	}
	if m := hbmBuffer.FindStringSubmatch(text); m != nil {
		r.buffer = ""
		if len(m[1]) == 1 && m[1][0] <= '0'+mostBuffers {
			r.buffer = "buffer " + m[1]
			return set(r.buffer, m[2])
		}
		return true
	}
	if m := hbmShape.FindStringSubmatch(text); m != nil && r.buffer != "" {
		s.words[r.buffer] = m[1]
		return true
	}
	if m := hbmPadded.FindStringSubmatch(text); m != nil && r.buffer != "" {
		if m[3] != "" {
			s.words[r.buffer+" times"] = m[3]
		}
		return set(r.buffer+map[bool]string{true: " unpadded", false: " padding"}[m[1] == "Unpadded size"], m[2])
	}
	return false
}

// oddOfHBM names the buffers that are mostly padding.
func (a *Account) oddOfHBM(s *subject, odd func(string, ...any)) {
	for i := range mostBuffers {
		key := fmt.Sprintf("buffer %d", i+1)
		all, padding := s.figures[key], s.figures[key+" padding"]
		if padding.bytes == 0 || padding.bytes < all.bytes/2 {
			continue
		}
		odd("%s of %s in buffer %d, %s, is padding (%s times its size)", human(padding.bytes), human(all.bytes), i+1, s.words[key], s.words[key+" times"])
		a.Returns = appendNew(a.Returns, "a TPU lays the last two dimensions out in tiles of 8 by 128: shapes whose last dimension is a multiple of 128, and the one before of 8, "+
			"are not padded: transpose, or merge small dimensions into one")
	}
}
