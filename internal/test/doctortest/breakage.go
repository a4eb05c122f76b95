// Logs as they come out of terminals, chats, trackers and collectors: the same
// bytes in another dress. Nothing that a person needs is lost.
package doctortest

import (
	"encoding/json"
	"fmt"
	"html"
	"strings"
)

// A Breakage is one way in which a pasted log differs from what was printed.
type Breakage struct {
	Name  string
	apply func(d draw, log string) string
}

// Apply returns the broken log, always the same for the same n.
func (b Breakage) Apply(log string, n int) string { return b.apply(newDraw(b.Name, n), log) }

// bystander is what an unrelated program prints.
var bystander = []string{
	"GET /healthz 200 0.7 ms",
	"reading shard 17 of 256",
	"background saving started by pid 812",
	"connected to 10.0.0.3:6379",
	"saving finished with success",
}

// epilogue is what a shell and a scheduler print when a program has failed.
var epilogue = []string{
	"user@node7:~$ ",
	"make: *** [Makefile:12: train] Error 1",
	"srun: error: node7: task 0: Exited with exit code 1",
	"real    12m3.114s",
	"wandb: synced 5 files, see ./wandb/run-7",
}

// eachLine does f to every line.
func eachLine(log string, f func(i int, line string) string) string {
	var b strings.Builder
	for i, line := range lines(log) {
		b.WriteString(f(i, line) + "\n")
	}
	return b.String()
}

// hardWrap cuts lines at a width, as a terminal does, and gives each piece to f.
func hardWrap(log string, width int, f func(piece string) string) string {
	return eachLine(log, func(_ int, line string) string {
		var pieces []string
		for rest := []rune(line); ; rest = rest[width:] {
			if len(rest) <= width {
				pieces = append(pieces, f(string(rest)))
				break
			}
			pieces = append(pieces, f(string(rest[:width])))
		}
		return strings.Join(pieces, "\n")
	})
}

// wordWrap breaks lines at the last blank before a width, as mail and chats do.
func wordWrap(log string, width int, f func(piece string) string) string {
	return eachLine(log, func(_ int, line string) string {
		var pieces []string
		for len(line) > width {
			at := strings.LastIndexByte(line[:width+1], ' ')
			if at <= len(line)-len(strings.TrimLeft(line, " ")) {
				if at = strings.IndexByte(line[width:], ' '); at < 0 {
					break
				}
				at += width
			}
			pieces = append(pieces, f(line[:at]))
			line = line[at+1:]
		}
		return strings.Join(append(pieces, f(line)), "\n")
	})
}

func plainPiece(piece string) string { return piece }

// prefix returns what a launcher, a container or a reader's quote puts before
// every line of one log.
func (d draw) prefix() func() string {
	second := d.IntN(40)
	fixed := func(s string) func() string { return func() string { return s } }
	clock := func(format string) func() string {
		return func() string { second += d.IntN(2); return fmt.Sprintf(format, second%60) }
	}
	list := []func() string{
		fixed("> "), fixed("+ "), fixed("- "), fixed("    "), fixed("\t"), fixed("| "), fixed("[rank3]: "), fixed("(pid=31877) "),
		fixed("(EngineCore_DP0 pid=31877) "), fixed("trainer-1  | "), fixed("0: "), fixed("[stderr] "), fixed("[1,0]<stderr>:"), fixed("(RayWorker pid=31877, ip=10.0.0.7) "),
		clock("2026-03-05T10:11:%02d.345678Z stderr F "), clock("2026-03-05T10:11:%02d.345678912Z "), clock("Mar 05 10:11:%02d node7 train[31877]: "),
		clock("[10:11:%02d] "), clock("2026-03-05 10:11:%02d,345 - trainer - ERROR - "), clock("[2026-03-05 10:11:%02d][worker-0] "),
	}
	return list[d.IntN(len(list))]
}

// perPiece gives every line or piece of one log its prefix.
func perPiece(d draw) func(string) string {
	next := d.prefix()
	return func(piece string) string { return next() + piece }
}

// Breakages are all of them. Widths are drawn anew for every log.
func Breakages() []Breakage {
	width := func(d draw) int { return 60 + d.IntN(141) }
	return []Breakage{
		{"hard-wrap-60-79", func(d draw, log string) string { return hardWrap(log, 60+d.IntN(20), plainPiece) }},
		{"hard-wrap-80", func(_ draw, log string) string { return hardWrap(log, 80, plainPiece) }},
		{"hard-wrap-81-119", func(d draw, log string) string { return hardWrap(log, 81+d.IntN(39), plainPiece) }},
		{"hard-wrap-120", func(_ draw, log string) string { return hardWrap(log, 120, plainPiece) }},
		{"hard-wrap-121-200", func(d draw, log string) string { return hardWrap(log, 121+d.IntN(80), plainPiece) }},
		{"word-wrap-60-79", func(d draw, log string) string { return wordWrap(log, 60+d.IntN(20), plainPiece) }},
		{"word-wrap-80", func(_ draw, log string) string { return wordWrap(log, 80, plainPiece) }},
		{"word-wrap-81-119", func(d draw, log string) string { return wordWrap(log, 81+d.IntN(39), plainPiece) }},
		{"word-wrap-120-200", func(d draw, log string) string { return wordWrap(log, 120+d.IntN(81), plainPiece) }},
		{"prefix", func(d draw, log string) string {
			f := perPiece(d)
			return eachLine(log, func(_ int, line string) string { return f(line) })
		}},
		{"prefix-hard-wrap", func(d draw, log string) string { return hardWrap(log, width(d), perPiece(d)) }},
		{"prefix-word-wrap", func(d draw, log string) string { return wordWrap(log, width(d), perPiece(d)) }},
		{"quote-of-wrap", func(d draw, log string) string {
			return wordWrap(hardWrap(log, width(d), plainPiece), width(d), func(p string) string { return "> " + p })
		}},
		{"markdown", func(_ draw, log string) string {
			return strings.NewReplacer(`_`, `\_`, `*`, `\*`, `[`, `\[`, `]`, `\]`, `<`, `\<`, `>`, `\>`, "`", "\\`", `#`, `\#`).Replace(log)
		}},
		{"markdown-underscores", func(_ draw, log string) string { return strings.ReplaceAll(log, `_`, `\_`) }},
		{"markdown-fence", func(d draw, log string) string {
			return "It fails with:\n\n```" + d.one("", "text", "python", "shell", "log") + "\n" + log + "```\n\nAny idea?\n"
		}},
		{"markdown-details", func(_ draw, log string) string {
			return "<details>\n<summary>Log</summary>\n\n```\n" + log + "```\n\n</details>\n"
		}},
		{"markdown-inline", func(_ draw, log string) string {
			return eachLine(log, func(_ int, line string) string { return "`" + line + "`  " })
		}},
		{"html", func(_ draw, log string) string { return html.EscapeString(log) }},
		{"html-page", func(_ draw, log string) string {
			return "<pre><code>" + strings.ReplaceAll(html.EscapeString(log), "\n", "<br>\n") + "</code></pre>\n"
		}},
		{"html-blanks", func(_ draw, log string) string {
			return eachLine(html.EscapeString(log), func(_ int, line string) string { return strings.ReplaceAll(line, "  ", "&nbsp; ") })
		}},
		{"json-docker", func(d draw, log string) string {
			return eachLine(log, func(_ int, line string) string {
				return jsonText(map[string]string{"log": line + "\n", "stream": "stderr", "time": "2026-03-05T10:11:12.345678912Z"})
			})
		}},
		{"json-record", func(d draw, log string) string {
			return eachLine(log, func(_ int, line string) string {
				return jsonText(map[string]string{"severity": d.one("ERROR", "INFO"), "message": line, "logger": "trainer"})
			})
		}},
		{"json-whole", func(_ draw, log string) string {
			return jsonText(map[string]string{"level": "error", "msg": log}) + "\n"
		}},
		{"python-repr", func(d draw, log string) string {
			return "Exception: " + d.one("", "b") + "'" + strings.NewReplacer(`\`, `\\`, "\n", `\n`, "'", `\'`, "\t", `\t`).Replace(log) + "'\n"
		}},
		{"interleaved", func(d draw, log string) string {
			names := [][2]string{{"trainer-1  | ", "redis-1    | "}, {"[rank0]: ", "[rank1]: "}, {"(pid=31877) ", "(pid=31990) "}, {"web_1      | ", "train_1    | "}}[d.IntN(4)]
			n := 0
			return eachLine(log, func(_ int, line string) string {
				out := names[0] + line
				for range d.IntN(3) {
					out += "\n" + names[1] + bystander[n%len(bystander)]
					n++
				}
				return out
			})
		}},
		{"interleaved-hard-wrap", func(d draw, log string) string {
			other := 0
			return hardWrap(log, width(d), func(piece string) string {
				other++
				return "trainer-1  | " + piece + "\nredis-1    | " + bystander[other%len(bystander)]
			})
		}},
		{"cut", func(d draw, log string) string {
			head, tail := d.one(chatter...), d.one(epilogue...)
			return head[len(head)/2:] + "\n" + log + tail[:len(tail)/2]
		}},
		{"no-last-newline", func(_ draw, log string) string { return strings.TrimRight(log, "\n") }},
		{"crlf", func(_ draw, log string) string { return strings.ReplaceAll(log, "\n", "\r\n") }},
		{"colours", func(d draw, log string) string {
			return eachLine(log, func(i int, line string) string { return fmt.Sprintf("\x1b[1;%dm%s\x1b[0m\x1b[K", 31+i%6, line) })
		}},
		{"colours-of-words", func(d draw, log string) string {
			return eachLine(log, func(_ int, line string) string {
				words := strings.Split(line, " ")
				at := d.IntN(len(words))
				words[at] = "\x1b[31m" + words[at] + "\x1b[0m"
				return strings.Join(words, " ")
			})
		}},
		{"progress-bar", func(d draw, log string) string {
			return "\r 12%|█▏        | 12/100\r 13%|█▎        | 13/100\n" + log
		}},
		{"twice", func(_ draw, log string) string { return log + "\n" + log }},
		{"noise-before", func(d draw, log string) string { return noise(d, 120, chatter) + log }},
		{"noise-after", func(d draw, log string) string { return log + noise(d, 20, epilogue) }},
		{"blank-lines", func(_ draw, log string) string { return strings.ReplaceAll(log, "\n", "\n\n") }},
		{"smart-quotes", func(_ draw, log string) string { return strings.NewReplacer("'", "’", `"`, "”").Replace(log) }},
		{"no-break-space", func(_ draw, log string) string { return strings.ReplaceAll(log, " ", "\u00a0") }},
		{"trailing-blanks", func(_ draw, log string) string { return strings.ReplaceAll(log, "\n", "   \n") }},
		{"chat", func(d draw, log string) string {
			return "hi all, since yesterday my job dies, any help? this is what I get:\n\n" + log + "\nI already rebooted.\n"
		}},
	}
}

func jsonText(v any) string {
	text, _ := json.Marshal(v) // of strings: it cannot fail
	return string(text)
}

// noise is n of the lines.
func noise(d draw, n int, lines []string) string {
	var b strings.Builder
	for range n {
		b.WriteString(d.one(lines...) + "\n")
	}
	return b.String()
}

// Wraps are the wraps at one width, each with what a mail, a launcher, a collector or an
// editor puts before or behind the pieces.
func Wraps(width int) []Breakage {
	fixed := func(before string) func(draw) func(string) string {
		return func(draw) func(string) string { return func(piece string) string { return before + piece } }
	}
	escaped := func(f func(string) string) func(draw) func(string) string {
		return func(draw) func(string) string { return f }
	}
	out := []Breakage{
		{"indented", func(_ draw, log string) string { return continued(log, width, "    ", "") }},
		{"indented by one", func(_ draw, log string) string { return continued(log, width, " ", "") }},
		{"backslash", func(_ draw, log string) string { return continued(log, width, "", `\`) }},
		{"indented, backslash", func(_ draw, log string) string { return continued(log, width, "  ", ` \`) }},
		{"blank at the end", func(_ draw, log string) string { return continued(log, width, "", " ") }},
		{"quoted twice", func(_ draw, log string) string {
			quote := func(p string) string { return "> " + p }
			return wordWrap(wordWrap(log, width, quote), width+20, quote)
		}},
		{"cut at head and tail", func(d draw, log string) string {
			head, tail := d.one(chatter...), d.one(epilogue...)
			return wordWrap(head[len(head)/2:]+"\n"+log+tail[:len(tail)/2], width, plainPiece)
		}},
	}
	for _, k := range []struct {
		name  string
		piece func(draw) func(string) string
	}{
		{"plain", fixed("")},
		{"quote", fixed("> ")},
		{"time", fixed("2026-03-05T10:11:12.345678912Z ")},
		{"pod", fixed("trainer-1  | ")},
		{"any prefix", perPiece},
		{"markdown", escaped(func(p string) string { return strings.NewReplacer(`_`, `\_`, `*`, `\*`, `[`, `\[`).Replace(p) })},
		{"html", escaped(func(p string) string { return html.EscapeString(p) + "<br>" })},
		{"json", escaped(func(p string) string { return jsonText(map[string]string{"log": p + "\n", "stream": "stderr"}) })},
		{"colours", escaped(func(p string) string { return "\x1b[31m" + p + "\x1b[0m" })},
		{"interleaved", func(draw) func(string) string {
			n := 0
			return func(p string) string { n++; return "[rank0]: " + p + "\n[rank1]: " + bystander[n%len(bystander)] }
		}},
	} {
		out = append(out,
			Breakage{"words, " + k.name, func(d draw, log string) string { return wordWrap(log, width, k.piece(d)) }},
			Breakage{"characters, " + k.name, func(d draw, log string) string { return hardWrap(log, width, k.piece(d)) }})
	}
	return out
}

// continued breaks lines between words and marks what follows: the rest of a line is
// indented, and every piece but the last has an end.
func continued(log string, width int, indent, end string) string {
	return eachLine(log, func(_ int, line string) string {
		first, rest, more := strings.Cut(wordWrap(line, width-len(end), plainPiece), "\n")
		if rest = strings.TrimSuffix(rest, "\n"); !more || rest == "" {
			return first
		}
		rest = wordWrap(strings.ReplaceAll(rest, "\n", " "), width-len(indent)-len(end), plainPiece)
		return first + end + "\n" + indent + strings.ReplaceAll(strings.TrimSuffix(rest, "\n"), "\n", end+"\n"+indent)
	})
}
