package inventory

// Lists of memory by name, and gauges of metrics: each figure as told, none a part of another.

import (
	"fmt"
	"regexp"
	"strings"
)

var (
	listLine  = with(`^[\s|*-]*([A-Za-z][\w .()/-]{1,40}?)\s*[:=]\s*(SIZE)\s*$`)
	gaugeLine = regexp.MustCompile(`^(\w+)\{([^}]*)\} ([\d.e+]+)$`)
	gaugeOf   = regexp.MustCompile(`(?:deviceidx|gpu|index|minor_number|device)="(?:nvidia)?(\d+)"`)
	ofMemory  = regexp.MustCompile(`(?i)mem|ram\b|gtt|free|total|used|available|_FB_`)
)

// listGap is how many lines may stand between two of a list.
const listGap = 3

// listing reads a line of a list, or a gauge. It reports whether the line is one.
func (r *Reader) listing(n int, text string) bool {
	switch last := text[len(text)-1]; {
	case (last == 'B' || last == 's') && len(text) < 100 && oneFigure(text):
		m := listLine.FindStringSubmatch(text)
		if m == nil || !ofMemory.MatchString(m[1]) || fails(text) {
			return false
		}
		b, ok := bytesOf(m[2], "")
		if s := r.lists; ok && (s == nil || n > r.listEnd+listGap || s.has(m[1])) {
			r.lists = r.of(list, fmt.Sprintf("from line %d", n))
		}
		if ok && r.lists != nil {
			r.listEnd = n
			r.lists.told(m[1], figure{b, From{n, text}})
			return true
		}
	case last >= '0' && last <= '9' && strings.Contains(text, `"} `):
		m := gaugeLine.FindStringSubmatch(text)
		if m == nil || !ofMemory.MatchString(m[1]) {
			return false
		}
		name := ""
		if g := gaugeOf.FindStringSubmatch(m[2]); g != nil {
			name = "GPU " + g[1]
		}
		unit := "B"
		if strings.HasPrefix(m[1], "DCGM_FI_DEV_FB_") {
			unit = "MiB"
		}
		b, ok := bytesOf(m[3], unit)
		whole := strings.Contains(strings.ToLower(m[1]), "byte") || unit == "MiB" || strings.HasPrefix(m[1], "GPUDeviceMemory")
		if s := r.of(gauges, name); s != nil && ok && (whole || b == 0) {
			s.told(m[1], figure{b, From{n, text}})
			return true
		}
	}
	return false
}

// oneFigure reports whether a line has one colon or equals sign, and a digit behind it, as each line
// of listLine has: most lines are none, and the expression is slow.
func oneFigure(text string) bool {
	i := strings.IndexAny(text, ":=")
	if i < 0 || strings.ContainsAny(text[i+1:], ":=") {
		return false
	}
	rest := strings.TrimLeft(text[i+1:], " \t\r\n\f")
	return rest != "" && rest[0] >= '0' && rest[0] <= '9'
}

// told sets a figure under the name that the log has for it.
func (s *subject) told(name string, f figure) {
	if !s.has(name) && len(s.names) < maxFigures {
		s.names = append(s.names, part{name, name})
	}
	s.set(name, f)
}

// asTold adds the figures of a list. Fewer than four may be those of a refusal in words unknown.
func (a *Account) asTold(s *subject) {
	if s.source == list && len(s.names) < 4 {
		return
	}
	var rows []Row
	for _, p := range s.names {
		f := s.figures[p.key]
		rows = append(rows, Row{What: p.what, Bytes: f.bytes, From: f.From, Kind: Other})
		total, ok := s.figures[strings.Replace(p.key, "free", "total", 1)]
		if ok && strings.Contains(p.key, "free") && f.bytes > total.bytes {
			a.Odd = appendNew(a.Odd, fmt.Sprintf("%s, %s, is above the total beside it, %s (line %d): memory that is shared with the host has no one total",
				p.key, human(f.bytes), human(total.bytes), total.Line))
		}
	}
	name := s.title
	if s.name != "" {
		name += ", " + s.name
	}
	a.add(name, Row{}, rows)
	a.NotTold = appendNew(a.NotTold, s.notTold)
}
