package statement

// Removal of the text around a message: the encoding of the file, colour codes and the
// prefixes of logs.

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf16"

	"gpumem/doctor/internal/needle"
)

// Decoded is the log r in UTF-8. A byte order mark says what r is in: PowerShell
// 5, which comes with Windows, redirects in UTF-16. Without a mark r is passed
// through as it is. Nothing is read before the first Read.
func Decoded(r io.Reader) io.Reader { return &decoder{r: r} }

type decoder struct {
	r     io.Reader
	order binary.ByteOrder // of UTF-16; nil if it is none
	begun bool
	raw   []byte // of UTF-16: read and not decoded
	out   []byte // decoded and not given
	err   error
}

func (d *decoder) Read(p []byte) (int, error) {
	if !d.begun {
		d.begun = true
		head := make([]byte, 3) // as long as the longest mark
		n, err := io.ReadFull(d.r, head)
		head = head[:n]
		if err != nil && err != io.ErrUnexpectedEOF {
			return 0, err
		}
		switch {
		case bytes.HasPrefix(head, []byte("\xef\xbb\xbf")):
			head = nil
		case bytes.HasPrefix(head, []byte("\xff\xfe")):
			d.order, head = binary.LittleEndian, head[2:]
		case bytes.HasPrefix(head, []byte("\xfe\xff")):
			d.order, head = binary.BigEndian, head[2:]
		}
		d.r = io.MultiReader(bytes.NewReader(head), d.r)
	}
	if d.order == nil {
		return d.r.Read(p)
	}
	for len(d.out) == 0 && d.err == nil {
		buf := make([]byte, 8<<10)
		n, err := d.r.Read(buf)
		d.raw, d.err = append(d.raw, buf[:n]...), err
		var units []uint16
		for len(d.raw) >= 2 {
			u := d.order.Uint16(d.raw)
			if utf16.IsSurrogate(rune(u)) && len(d.raw) < 4 && err == nil {
				break // its other half comes
			}
			units, d.raw = append(units, u), d.raw[2:]
			if utf16.IsSurrogate(rune(u)) && len(d.raw) >= 2 {
				units, d.raw = append(units, d.order.Uint16(d.raw)), d.raw[2:]
			}
		}
		d.out = []byte(string(utf16.Decode(units)))
	}
	n := copy(p, d.out)
	d.out = d.out[n:]
	if n > 0 {
		return n, nil
	}
	return 0, d.err
}

// uncolour is text without terminal codes: ESC [ ... letter, ESC ] ... BEL, and
// ESC with one more byte.
func uncolour(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for len(text) > 0 {
		i := bytes.IndexByte(text, 0x1b)
		if i < 0 {
			return append(out, text...)
		}
		out = append(out, text[:i]...)
		text = text[i:]
		text = text[codeLength(text):]
	}
	return out
}

// maxCode is the longest terminal code that is believed: what has no end
// within it is not one, and only its ESC goes.
const maxCode = 64

// codeLength is how many bytes the terminal code at the beginning of text has.
func codeLength(text []byte) int {
	if len(text) < 2 {
		return len(text)
	}
	switch text[1] {
	case '[':
		for i := 2; i < min(len(text), maxCode); i++ {
			if text[i] >= 0x40 && text[i] <= 0x7e {
				return i + 1
			}
		}
	case ']':
		for i := 2; i < min(len(text), maxCode); i++ {
			if text[i] == 0x07 {
				return i + 1
			}
		}
	case '(', ')':
		return min(3, len(text))
	}
	return 1
}

// A prefix is what stands before a message in a line.
type prefix struct {
	length      int
	from, level string
	pid         int
}

// prefixes are what loggers and launchers put before a line, each as it was seen in
// logs. A line may have several. A header is what a logger puts before a message, and
// not before each piece of a wrapped one.
var prefixes = []struct {
	header bool
	re     *regexp.Regexp
}{
	// [rank3]: of torchrun, (pid=812), (Worker pid=812, ip=10.0.0.1) of Ray and vLLM.
	{false, regexp.MustCompile(`^\[?(?P<from>rank:? ?\d+)\]:? ?`)},
	{false, regexp.MustCompile(`^\((?:[\w.:=\[\]-]+ )*(?P<from>pid=(?P<pid>\d{1,9}))(?:, ?[^()]{0,80})?\)\s`)},
	// worker-1  | of docker compose; [1,3]<stderr>: of mpirun; 3: of srun; > of a mail.
	{false, regexp.MustCompile(`^(?P<from>[A-Za-z][\w.-]{0,60}) +\| `)},
	{false, regexp.MustCompile(`^\[(?P<from>\d+,\d+)\]<std(?:err|out)>: ?`)},
	{false, regexp.MustCompile(`^(?P<from>\d{1,4}): `)},
	{false, regexp.MustCompile(`^(?:> ?)+|^[+-] |^ {2,}|^\t+`)},
	{false, regexp.MustCompile(`^\[(?:stderr|stdout|\d[\d.]*[:-][\d :.,TZ-]{2,28})\](?:\[(?P<from>[\w.-]{1,20})\])? ?`)},
	{false, regexp.MustCompile(`^\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)? std(?:err|out) [FP] `)},
	{false, regexp.MustCompile(`^[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]+ [\w./-]+(?:\[(?P<pid>\d{1,9})\])?: `)},
	{false, regexp.MustCompile(`^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+(?: - [\w.]+)? - (?P<word>DEBUG|INFO|WARNING|ERROR|CRITICAL) - `)},
	{false, regexp.MustCompile(`^(?P<word>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL):[\w.]*: ?`)},
	// E0101 12:00:00.000000    1000 file.cc:12], with the year's seconds in newer ones.
	{true, regexp.MustCompile(`^(?P<level>[IWEF])\d{4} [\d:.]+ +\d+ [\w./+-]+:\d+\] ?`)},
	// 2025-01-01 12:00:00.000000: E path/file.cc:12]
	{true, regexp.MustCompile(`^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: (?P<level>[IWEF]) [\w./+-]+:\d+\] ?`)},
	{true, regexp.MustCompile(`^(?P<level>[IWEF]) [\w./+-]+:\d+\] ?`)},
	// INFO 01-01 12:00:00 [file.py:12] of vLLM.
	{true, regexp.MustCompile(`^(?P<word>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]\s]{1,80}(?: [^\]]{0,40})?\] `)},
	// Times: of journals, containers, Python's logging, the kernel's ring.
	{false, regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d) `)},
	{true, regexp.MustCompile(`^\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:? `)},
	{true, regexp.MustCompile(`^\[ *\d+\.\d+\] `)},
	{true, regexp.MustCompile(`^(?P<word>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\s*[:|-]\s*`)},
}

// prefixesBy are the prefixes that may begin with a byte.
var prefixesBy = func() (by [256][]int) {
	for k := range prefixes {
		for b, may := range needle.Beginnings(prefixes[k].re) {
			if may {
				by[b] = append(by[b], k)
			}
		}
	}
	return by
}()

// levels are the severities that are written as words.
var levels = map[string]string{"DEBUG": "I", "INFO": "I", "WARNING": "W", "WARN": "W", "ERROR": "E", "CRITICAL": "F", "FATAL": "F"}

// parsePrefix reads the prefixes of a line, six at most.
func parsePrefix(line string) prefix {
	var p prefix
	head := line[:min(len(line), 512)]
	p.length = len(head) - len(strings.TrimLeft(head, " \t\r\ufeff"))
	for range 6 {
		_, n := p.one(head[p.length:])
		if n == 0 {
			break
		}
		p.length += n
	}
	return p
}

// or takes what p does not say from q.
func (p *prefix) or(q prefix) {
	p.from, p.level, p.pid = cmp.Or(p.from, q.from), cmp.Or(p.level, q.level), cmp.Or(p.pid, q.pid)
}

// one reads one prefix, and returns which it is and its length; -1 and 0 if there is none.
func (p *prefix) one(text string) (kind, length int) {
	if text == "" {
		return -1, 0
	}
	text = text[:min(len(text), 512)]
	for _, k := range prefixesBy[text[0]] {
		re := prefixes[k].re
		m := re.FindStringSubmatch(text)
		if m == nil {
			continue
		}
		for i, name := range re.SubexpNames() {
			switch got := m[i]; {
			case got == "":
			case name == "from" && p.from == "":
				p.from = got
			case name == "level":
				p.level = got
			case name == "word":
				p.level = levels[got]
			case name == "pid":
				p.pid, _ = strconv.Atoi(got) // at most nine digits
			}
		}
		return k, len(m[0])
	}
	return -1, 0
}
