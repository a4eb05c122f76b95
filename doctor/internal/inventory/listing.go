package inventory

// Figures in the words of any program, and gauges of metrics: each as told, none a part of another.
// What is general in them is a label, an amount with a unit, and perhaps a subject:
//
//	unet compute buffer size: 830.86 MB
//	Epoch 2/100, train loss 0.024, GPU: 3166.0/11011.5 MiB
//	-- Model: weights 17.82 GB, cache 4.00 GB
//	| GPU Memory Used (MiB)       | 14210      |

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"gpumem/doctor/internal/needle"
	"gpumem/size"
)

var (
	// anAmount is a number with its unit, or two of which the second is the whole of the first.
	anAmount = regexp.MustCompile(`(-?\d[\d,]*(?:\.\d+)?)(?:\s?/\s?(\d[\d,]*(?:\.\d+)?))?\s?(KiB|MiB|GiB|TiB|[KMGT][Bb]|[KMG]i\b|[MGT]\b|[Bb]ytes\b)`)
	// unitBefore is an amount whose unit stands in its label.
	unitBefore = regexp.MustCompile(`^(.*?)[ (\[](MiB|MB|GiB|GB|B|bytes)[)\]]?\s*[|:=]+\s*(\d[\d.]*)[\s|]*$`)
	// ofBytes is a number that is large enough for bytes.
	ofBytes = regexp.MustCompile(`[:=]\s*(\d{8,})\b()()`)
	// onlyFigure is a line of nothing else, for which the words of a list of memory are enough.
	onlyFigure = needle.MustCompile(`(?i)^[^:=]*\b(?:free|total|used|available)\b[^:=]*[:=]\s*[\d.,]+\s?(?:[KMGT]i?B|bytes)\s*$`)
	labelOf    = regexp.MustCompile(`[A-Za-z](?:[\w./()'-]| [^\s])*$`)
	behind     = regexp.MustCompile(`^\)?\s?\(?([A-Za-z]+(?: [A-Za-z]+)?)`)

	gaugeLine = regexp.MustCompile(`^(\w+)\{([^}]*)\} ([\d.e+]+)$`)
	gaugeOf   = regexp.MustCompile(`(?:deviceidx|gpu|index|minor_number|device)="(?:nvidia)?(\d+)"`)
	ofMemory  = needle.MustCompile(`(?i)mem|[vg]?ram\b|gtt|hbm|alloc|reserved|cache|\bkv\b|\bpool|buffer|workspace|weights|footprint|offload|_FB_|\bGPU: |CUDA\d|free\b.*\btotal|total\b.*\bfree|used\b.*\btotal`)
	// elsewhere are the sizes of other things, readings beside a program's progress, and amounts of a
	// failure.
	elsewhere = needle.MustCompile(`(?i)[KMG]i?B/s|\bloss\b|\bit/s|download|upload|\bdisk|\bfiles?\b|dataset|checkpoint|saved|saving|https?:|\.safetensors|exceed|too (?:large|big|small)|` +
		`short|could not|cannot|can't|fail|error|unable|denied|kill|abort|warn|deprecat|larger|smaller|requires? |required|needed|recommend|should|please|at least|\d seconds \(`)
	aGPU = needle.MustCompile(`(?i)\b(?:gpu|cuda|hip|xpu|device)[ :#\[_]{0,2}(\d{1,2})\b`)
)

// joints are words between a label and its amount that belong to neither.
var joints = []string{"is", "was", "are", "of", "with", "takes", "take", "took", "uses", "used:", "and", "in", "to", "about", "up", "a"}

// mostListed bounds a line with figures, in bytes.
const mostListed = 400

// listing reads the figures of a line. It reports whether there are any.
func (r *Reader) listing(n int, text string) bool {
	if len(text) > mostListed || !ofMemory.MatchString(text) && !onlyFigure.MatchString(text) || elsewhere.MatchString(text) || fails(text) {
		return false
	}
	name := ""
	if m := aGPU.FindStringSubmatch(text); m != nil {
		name = "GPU " + m[1]
	}
	from := From{n, text}
	var s *subject
	tell := func(label, amount, unit string) {
		b, ok := bytesOf(strings.TrimPrefix(amount, "-"), unit)
		if !ok || label == "" || r.took(n, b) {
			return
		}
		if strings.HasPrefix(amount, "-") {
			label += ", negative"
		}
		if s == nil {
			if s = r.of(list, name); s == nil {
				return
			}
		}
		s.told(label, figure{b, from})
	}
	if m := unitBefore.FindStringSubmatch(text); m != nil {
		tell(label(m[1]), m[3], m[2])
		return s != nil
	}
	all := anAmount.FindAllStringSubmatchIndex(text, 12)
	if len(all) == 0 {
		all = ofBytes.FindAllStringSubmatchIndex(text, 4)
	}
	if text[0] == '|' {
		return false // a row of a table, whose columns are not known
	}
	at, last := 0, ""
	for _, m := range all {
		what := label(text[at:m[0]])
		if what == "" && strings.TrimSpace(text[at:m[0]]) == "of" {
			what = last + ", of"
		}
		if after := behind.FindStringSubmatch(text[m[1]:]); after != nil && !slices.Contains(joints, after[1]) && (what == "" || len(text) == m[1]+len(after[0])) {
			what = strings.TrimPrefix(what+", "+after[1], ", ")
		}
		group := func(i int) string { return text[max(m[2*i], 0):max(m[2*i+1], 0)] }
		tell(what, group(1), group(3))
		if m[4] >= 0 && m[4] < m[5] {
			tell(what+", of", group(2), group(3))
		}
		at, last = m[1], what
	}
	return s != nil
}

// took reports whether a form has read an amount in this line.
func (r *Reader) took(n int, bytes uint64) bool {
	return slices.ContainsFunc(r.subjects, func(s *subject) bool {
		for _, readings := range s.growth {
			if slices.ContainsFunc(readings, func(f figure) bool { return f.Line == n && f.bytes == bytes && s.source != list }) {
				return true
			}
		}
		return false
	})
}

// label is what the words before an amount call it.
func label(before string) string {
	before = strings.TrimRight(before, " \t:=|([")
	for {
		cut := false
		for _, j := range joints {
			if rest, ok := strings.CutSuffix(before, " "+j); ok {
				before, cut = strings.TrimRight(rest, " \t:=|(["), true
			}
		}
		if !cut {
			break
		}
	}
	text := labelOf.FindString(before)
	if strings.Count(text, "(") < strings.Count(text, ")") {
		text = text[strings.IndexByte(text, ')')+1:]
	}
	words := strings.Fields(aGPU.ReplaceAllLiteralString(text, ""))
	words = words[max(0, len(words)-6):]
	for len(words) > 0 && slices.Contains(joints, words[0]) {
		words = words[1:]
	}
	return strings.Trim(strings.Join(words, " "), "-.()'/ ")
}

// gauge reads a gauge of metrics.
func (r *Reader) gauge(n int, text string) bool {
	if !strings.Contains(text, `"} `) {
		return false
	}
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
	return false
}

// told sets a figure under the name that the log has for it.
func (s *subject) told(name string, f figure) {
	if !s.has(name) && len(s.names) < maxFigures {
		s.names = append(s.names, part{name, name})
	}
	s.set(name, f)
}

// fewFigures is how many figures a list has at least that stands alone: fewer may be a refusal's, in
// words unknown.
const fewFigures = 4

// figuresTold counts the readings of a list.
func (s *subject) figuresTold() (n int) {
	for _, readings := range s.growth {
		n += len(readings)
	}
	return n
}

// asTold adds the figures of a list, and of those that changed the first reading, too.
func (a *Account) asTold(s *subject) {
	var rows []Row
	for _, p := range s.names {
		f := s.figures[p.key]
		rows = append(rows, Row{What: p.what, Bytes: f.bytes, From: f.From, Kind: Other})
		if all := s.growth[p.key+" "]; len(all) > 1 && all[0].bytes != f.bytes && s.source == list {
			rows = append(rows, Row{What: p.what + ", at first", Bytes: all[0].bytes, From: all[0].From, Kind: Other})
		}
		total, ok := s.figures[strings.Replace(p.key, "free", "total", 1)]
		if ok && strings.Contains(p.key, "free") && f.bytes > total.bytes {
			a.Odd = appendNew(a.Odd, fmt.Sprintf("%s, %s, is above the total beside it, %s (line %d): memory that is shared with the host has no one total",
				p.key, human(f.bytes), human(total.bytes), total.Line))
		}
	}
	if s.together != "" && len(rows) > 1 {
		sum := Row{What: s.together, From: rows[0].From, Kind: Other}
		for _, r := range rows {
			sum.Bytes = size.Add(sum.Bytes, r.Bytes)
		}
		rows = append(rows, sum)
	}
	name := s.title
	if s.name != "" {
		name += ", " + s.name
	}
	a.add(name, Row{}, rows)
	a.NotTold = appendNew(a.NotTold, s.notTold)
}
