// Variants: the same log as it comes out of terminals, files and collectors.
package doctortest

import (
	"fmt"
	"strings"
)

// oneLineLimit is how many lines OneLine still joins: nobody pastes a whole
// table as one line.
const oneLineLimit = 4

// prefixes are what launchers, clusters and containers put before each line.
var prefixes = []string{
	"[rank0]: ",
	"(pid=31877) ",
	"(EngineCore_DP0 pid=31877) ",
	"2026-03-05T10:11:12.345678Z stderr F ",
	"trainer-1  | ",
	"2026-03-05 10:11:12,345 - trainer - ERROR - ",
	"0: ",
	"(RayWorker pid=31877, ip=10.0.0.7) ",
}

// chatter is what an innocent program prints.
var chatter = []string{
	"epoch 3 step 1200 loss 0.7134 lr 0.00030",
	"saved checkpoint to /data/run7/ckpt-1200",
	"reading shard 17 of 256",
	"epoch 3 step 1210 loss 0.7102 lr 0.00030",
	"validation accuracy 0.8123",
}

// lines gives the lines of a log without their ends.
func lines(log string) []string { return strings.Split(strings.TrimSuffix(log, "\n"), "\n") }

func lineCount(log string) int { return len(lines(log)) }

// mapLines gives the variant of c with f done to each line.
func mapLines(c Case, variant string, f func(i int, line string) string) Case {
	var b strings.Builder
	for i, line := range lines(c.Log) {
		b.WriteString(f(i, line) + "\n")
	}
	c.Name, c.Log = c.Name+"/"+variant, b.String()
	return c
}

// Colour gives c as a terminal shows it: each line in a colour, and erased to its end.
func Colour(c Case) Case {
	return mapLines(c, "colour", func(i int, line string) string {
		return fmt.Sprintf("\x1b[1;%dm%s\x1b[0m\x1b[K", 31+i%6, line)
	})
}

// CRLF gives c with the line ends of Windows.
func CRLF(c Case) Case {
	return mapLines(c, "crlf", func(_ int, line string) string { return line + "\r" })
}

// Prefixed gives c with prefix before each line.
func Prefixed(c Case, prefix string) Case {
	return mapLines(c, "prefixed", func(_ int, line string) string { return prefix + line })
}

// Truncated gives c without what comes before the first line that decides
// (head) or behind the last one. Of the line next to the cut a half stays, and
// where there is none the half of an innocent line.
func Truncated(c Case, head bool) Case {
	all := lines(c.Log)
	first, last := len(all), -1
	for i, line := range all {
		for _, quote := range c.Quotes {
			if strings.Contains(line, quote) {
				first, last = min(first, i), max(last, i)
			}
		}
	}
	if head {
		half := chatter[0]
		if first > 0 {
			half = all[first-1]
		}
		c.Name += "/no-head"
		c.Log = half[len(half)/2:] + "\n" + strings.Join(all[first:], "\n") + "\n"
		return c
	}
	half := chatter[0]
	if last+1 < len(all) {
		half = all[last+1]
	}
	c.Name += "/no-tail"
	c.Log = strings.Join(all[:last+1], "\n") + "\n" + half[:len(half)/2]
	return c
}

// Interleaved gives c with the lines of an innocent process between its own.
func Interleaved(c Case) Case {
	return mapLines(c, "interleaved", func(i int, line string) string {
		return chatter[i%len(chatter)] + "\n" + line
	})
}

// OneLine gives c with blanks for its line ends, as a chat or a form makes it.
func OneLine(c Case) Case {
	c.Name += "/one-line"
	c.Log = strings.Join(lines(c.Log), " ")
	return c
}
