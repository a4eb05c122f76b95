package doctor

// How messages are recognised: each pattern begins with fixed words, its
// anchors. One pass finds all anchors of all patterns; only there is a
// regular expression tried.

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"gpumem/size"
)

// A pattern is one wording of one message.
type pattern struct {
	kind Kind
	// anchors are the words that the message begins with, any one of them, each
	// of at least minAnchor bytes.
	anchors []string
	// rest is a regular expression of what follows the anchor. In it {want},
	// {free} and so on stand for a size that goes to that field, {size} for one
	// that goes nowhere, {device}, {pid}, {code} and {version} for such words;
	// (?P<name>...) of a field is what it says.
	rest string
	// line makes rest stand for the line from its beginning (in a long one, from
	// margin bytes before the anchor), not from the anchor: for messages that begin with something that varies.
	line bool
	// whole makes rest stand for the anchor too: where the anchor is a part of
	// what is read.
	whole bool
	// within lets the message be a part of another.
	within bool
	// unless is what must not stand in the few words before the message.
	unless *regexp.Regexp
	// once is for what a log repeats without saying more.
	once bool

	nonfatal        bool
	framework, code string
	name, value     string

	re func() *regexp.Regexp // compiled at its first use: every command starts with this table
}

// sizeText is a number with or without a unit: 26.83GiB, 2.44G, 184549376B,
// 52.00 MiB, 805,306,368 bytes, -1.5GiB.
const sizeText = `-?\d+(?:[.,]\d+)*(?: ?(?:bytes|[KMGTPEkmg]i?[Bb]?|[Bb]))?\b`

// beforeWords is how many bytes before a message count as the words before it.
const beforeWords = 40

var macros = strings.NewReplacer(
	"{size}", "(?:"+sizeText+")",
	"{want}", "(?P<want>"+sizeText+")",
	"{free}", "(?P<free>"+sizeText+")",
	"{total}", "(?P<total>"+sizeText+")",
	"{limit}", "(?P<limit>"+sizeText+")",
	"{inuse}", "(?P<inuse>"+sizeText+")",
	"{reserved}", "(?P<reserved>"+sizeText+")",
	"{largest}", "(?P<largest>"+sizeText+")",
	"{allocated}", "(?P<allocated>"+sizeText+")",
	"{device}", `(?P<device>\d+)`,
	"{pid}", `(?P<pid>\d+)`,
	"{code}", `(?P<code>[A-Z][A-Z0-9_]+)`,
	"{version}", `v?(?P<version>\d+(?:\.\w+)+(?:\+\w+(?:\.\w+)*)?)`,
)

// patterns are all that is recognised. Where two begin at the same place the
// earlier one is tried first.
var patterns = compile(slices.Concat(failurePatterns, xlaPatterns, poolPatterns, programPatterns, libraryPatterns, tensorflowPatterns,
	torchPatterns, otherPatterns, hostPatterns, limiterPatterns, settingPatterns, seenPatterns, machinePatterns))

var anchors = newFinder(patterns)

func compile(all []pattern) []pattern {
	for i := range all {
		p := &all[i]
		start := "^"
		if !p.line && !p.whole {
			var words []string
			for _, a := range p.anchors {
				words = append(words, regexp.QuoteMeta(a))
			}
			start += "(?:" + strings.Join(words, "|") + ")"
		}
		p.re = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(start + macros.Replace(p.rest)) })
	}
	return all
}

// match tries the pattern on a line with its anchor at a place. The message
// is line[first:last].
func (p *pattern) match(line []byte, at int) (f Fact, first, last int, ok bool) {
	first = at
	if p.line {
		first = max(0, at-margin)
	}
	if p.unless != nil && p.unless.Match(line[max(0, at-beforeWords):at]) {
		return f, 0, 0, false
	}
	text := line[first:min(len(line), at+margin)]
	groups := p.re().FindSubmatchIndex(text)
	if groups == nil {
		return f, 0, 0, false
	}
	f = Fact{Kind: p.kind, Device: -1, Nonfatal: p.nonfatal, Framework: p.framework, Code: p.code, Name: p.name, Value: p.value}
	for i, name := range p.re().SubexpNames() {
		if from := groups[2*i]; name != "" && from >= 0 {
			f.set(name, string(text[from:groups[2*i+1]]))
		}
	}
	if f.Code == "" {
		f.Code = codeBefore(line[:first])
	}
	if f.Device < 0 {
		f.Device = deviceOf(f.Allocator)
	}
	return f, first, first + groups[1], true
}

// set gives one field what a message says.
func (f *Fact) set(name, text string) {
	text = strings.TrimSpace(text)
	switch name {
	case "device":
		if n, err := strconv.ParseInt(text, 10, 31); err == nil {
			f.Device = int(n)
		}
	case "pid":
		if n, err := strconv.ParseInt(text, 10, 31); err == nil {
			f.PID = int(n)
		}
	case "allocator":
		f.Allocator = clip(text)
	case "version":
		f.Version = clip(text)
	case "code":
		f.Code = clip(text)
	case "name":
		f.Name = clip(text)
	case "value":
		f.Value = clip(text)
	case "framework":
		f.Framework = strings.ToLower(text)
	case "pair":
		// 109.53/121.69 GiB: free of total, one unit for both.
		free, total, _ := strings.Cut(text, "/")
		f.setSize("free", free+strings.TrimLeft(total, "0123456789., "))
		f.setSize("total", total)
	default:
		f.setSize(name, text)
	}
}

// clip bounds a field as MaxText bounds the quotation.
func clip(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), MaxText)], "")
}

func (f *Fact) setSize(name, text string) {
	n, ok := bytesOf(text)
	if !ok && name == "want" && strings.IndexFunc(text, notDigit) > 8 {
		n, ok = 1<<62, true // more than 64 bits hold; with a unit they need nine digits
	}
	if !ok {
		return // as good as not told
	}
	for _, field := range []struct {
		name string
		has  Sizes
		at   *uint64
	}{
		{"want", HasWant, &f.Want}, {"free", HasFree, &f.Free}, {"total", HasTotal, &f.Total}, {"limit", HasLimit, &f.Limit},
		{"inuse", HasInUse, &f.InUse}, {"reserved", HasReserved, &f.Reserved}, {"largest", HasLargestFree, &f.LargestFree},
		{"allocated", HasAllocated, &f.Allocated},
	} {
		if field.name == name {
			*field.at = n
			f.Has |= field.has
		}
	}
}

func notDigit(r rune) bool { return r < '0' || r > '9' }

// bytesOf reads a size as logs write it. All units are powers of 1024: the MB
// of TensorFlow and of PyTorch's older releases are MiB.
func bytesOf(text string) (uint64, bool) {
	text = strings.ReplaceAll(strings.TrimSuffix(text, "bytes"), ",", "")
	n, err := size.Parse(text)
	return n, err == nil
}

var codeRE = regexp.MustCompile(`(?:\b(RESOURCE_EXHAUSTED|INTERNAL|UNKNOWN|FAILED_PRECONDITION|INVALID_ARGUMENT|UNAVAILABLE|ABORTED|UNIMPLEMENTED|NOT_FOUND)|(Resource exhausted|Internal)): $`)

// codeBefore is the status (absl::StatusCode) that a message's text ends with, as in
// "RESOURCE_EXHAUSTED: ". Up to 2021 it was spelled with small letters.
func codeBefore(text []byte) string {
	text = text[max(0, len(text)-40):]
	if m := codeRE.FindSubmatch(text); m != nil {
		return strings.ToUpper(strings.ReplaceAll(string(m[1])+string(m[2]), " ", "_"))
	}
	return ""
}

var poolDeviceRE = regexp.MustCompile(`^(?:GPU|gpu_async|SE|GPU_collectivememory|GPUcollectivememory)_(\d{1,9})(?:_|$)`)

// deviceOf is the GPU in a pool's name, or -1.
func deviceOf(allocator string) int {
	if m := poolDeviceRE.FindStringSubmatch(allocator); m != nil {
		n, _ := strconv.Atoi(m[1]) // at most nine digits
		return n
	}
	return -1
}
