package doctor

// What stands around a message: colour codes and the prefixes of logs.

import (
	"bytes"
	"regexp"
	"strconv"
)

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

// prefixes are what loggers and launchers put before a line, each as it was
// seen in logs. A line may have several.
var prefixes = []*regexp.Regexp{
	// [rank3]: of torchrun, (pid=812), (Worker pid=812, ip=10.0.0.1) of Ray and vLLM.
	regexp.MustCompile(`^\[?(?P<from>rank:? ?\d+)\]:? ?`),
	regexp.MustCompile(`^\((?:[\w.:\[\]-]+ )*(?P<from>pid=(?P<pid>\d{1,9}))(?:, ?[^()]{0,80})?\)\s`),
	// worker-1  | of docker compose; [1,3]<stderr>: of mpirun; 3: of srun.
	regexp.MustCompile(`^(?P<from>[A-Za-z][\w.-]{0,60}) +\| `),
	regexp.MustCompile(`^\[(?P<from>\d+,\d+)\]<std(?:err|out)>: ?`),
	// E0101 12:00:00.000000    1000 file.cc:12], with the year's seconds in newer ones.
	regexp.MustCompile(`^(?P<level>[IWEF])\d{4} [\d:.]+ +\d+ [\w./+-]+:\d+\] ?`),
	// 2025-01-01 12:00:00.000000: E path/file.cc:12]
	regexp.MustCompile(`^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: (?P<level>[IWEF]) [\w./+-]+:\d+\] ?`),
	regexp.MustCompile(`^(?P<level>[IWEF]) [\w./+-]+:\d+\] ?`),
	// INFO 01-01 12:00:00 [file.py:12] of vLLM.
	regexp.MustCompile(`^(?P<word>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]\s]{1,80}\] `),
	// Times: of journals, containers, Python's logging, the kernel's ring.
	regexp.MustCompile(`^\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:? `),
	regexp.MustCompile(`^[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]+ [\w./-]+(?:\[(?P<pid>\d{1,9})\])?: `),
	regexp.MustCompile(`^\[ *\d+\.\d+\] `),
	regexp.MustCompile(`^(?P<word>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\s*[:|-]\s*`),
}

// levels are the severities that are written as words.
var levels = map[string]string{"DEBUG": "I", "INFO": "I", "WARNING": "W", "WARN": "W", "ERROR": "E", "CRITICAL": "F", "FATAL": "F"}

// parsePrefix reads the prefixes of a line, six at most.
func parsePrefix(line []byte) prefix {
	var p prefix
	head := line[:min(len(line), 512)]
	p.length = len(head) - len(bytes.TrimLeft(head, " \t\r\xef\xbb\xbf"))
	for range 6 {
		n := p.one(head[p.length:])
		if n == 0 {
			break
		}
		p.length += n
	}
	return p
}

// one reads one prefix and says how long it is.
func (p *prefix) one(text []byte) int {
	for _, re := range prefixes {
		m := re.FindSubmatch(text)
		if m == nil {
			continue
		}
		for i, name := range re.SubexpNames() {
			switch got := string(m[i]); {
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
		return len(m[0])
	}
	return 0
}
