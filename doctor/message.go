package doctor

// Messages in lines of JSON, as collectors write them: Docker's json-file and
// Kubernetes ({"log":"...\n","stream":"stderr"}), Google's Cloud Logging
// ({"textPayload":"..."}), journalctl -o json, and programs that log so
// themselves. Such a message may be a line of JSON again.

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// messageKeys are the keys of messages, each with its colon.
var messageKeys = []string{`"log":`, `"message":`, `"MESSAGE":`, `"msg":`, `"textPayload":`, `"event":`, `"error":`,
	`"exception":`, `"exc_info":`, `"stack_trace":`, `"stacktrace":`, `"traceback":`}

// maxNested is how deep messages are looked for in messages.
const maxNested = 3

// jsonMessages are the messages in a line of JSON, and the line without them. ok is false
// if it has none.
func jsonMessages(text string) (messages []string, rest string, ok bool) {
	var b strings.Builder
	done := 0
	for done < len(text) {
		first, after := -1, 0
		for _, key := range messageKeys {
			if i := strings.Index(text[done:], key); i >= 0 && (first < 0 || i < first) {
				first, after = i, i+len(key)
			}
		}
		if first < 0 {
			break
		}
		quote := done + after
		for quote < len(text) && text[quote] == ' ' {
			quote++
		}
		if quote == len(text) || text[quote] != '"' {
			b.WriteString(text[done : done+after])
			done += after
			continue
		}
		b.WriteString(text[done : done+first])
		message, end := unquote(nil, []byte(text), quote+1)
		messages, done = append(messages, string(message)), end
	}
	b.WriteString(text[done:])
	return messages, b.String(), len(messages) > 0
}

// unquote adds the JSON string that begins at text[from:], without its quotes, to
// out, and says where it ends. What is no escape of JSON stays as it is.
func unquote(out, text []byte, from int) ([]byte, int) {
	for {
		n := bytes.IndexAny(text[from:], `"\`)
		if n < 0 {
			return append(out, text[from:]...), len(text) // cut off
		}
		out = append(out, text[from:from+n]...)
		from += n + 1
		if text[from-1] == '"' {
			return out, from
		}
		if from == len(text) {
			return append(out, '\\'), from
		}
		c := text[from]
		from++
		switch c {
		case '"', '\\', '/':
			out = append(out, c)
		case 'n':
			out = append(out, '\n')
		case 't':
			out = append(out, '\t')
		case 'r':
			out = append(out, '\r')
		case 'b', 'f':
			out = append(out, ' ')
		case 'u':
			r, ok := fourDigits(text[from:])
			if !ok {
				out = append(out, `\u`...)
				break
			}
			from += 4
			if utf16.IsSurrogate(r) {
				var low rune
				if next, more := bytes.CutPrefix(text[from:], []byte(`\u`)); more {
					low, _ = fourDigits(next)
				}
				if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
					from += len(`\u0000`)
				}
			}
			out = utf8.AppendRune(out, r)
		default:
			out = append(out, '\\', c)
		}
	}
}

// fourDigits reads what stands behind \u.
func fourDigits(text []byte) (rune, bool) {
	if len(text) < 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(text[:4]), 16, 16)
	return rune(n), err == nil
}
