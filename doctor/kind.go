package doctor

// Files that are no logs, told by how they begin. Their bytes get no diagnosis: the error says
// what the file is and what reads it.

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"gpumem/internal/filekind"
	"gpumem/internal/report"
	"gpumem/record/formats"
	"gpumem/record/trace"
	"gpumem/xla/measure"
)

// What reads a kind, or where the log is. FILE becomes the file's name.
const (
	replays = "gpumem replay FILE and gpumem leaks FILE read it; beside a log, gpumem doctor LOG --with FILE"
	modules = "gpumem hlo FILE, gpumem remat FILE and gpumem fit FILE read it"
	models  = "gpumem reads no models; gpumem fit -- COMMAND finds what a program needs with it"
	unpack  = "unpack it and name the log in it"
	retype  = "copy what it shows as text"
	printed = "a log is what the program printed"
)

// nextOf says what to do with a file of a kind.
func nextOf(k filekind.Kind) string {
	switch k.Group {
	case filekind.Picture:
		return retype
	case filekind.Archive:
		return unpack
	case filekind.Packed:
		return "unpack it: " + k.Tool + " | gpumem doctor"
	case filekind.Journal:
		return k.Tool + " | gpumem doctor"
	case filekind.Model:
		return models
	case filekind.Wheel:
		return "pip installs it; " + printed
	case filekind.Profile:
		return k.Next
	}
	return printed
}

// stateFile is how gpumem ps --json begins.
var stateFile = regexp.MustCompile(`^\s*\{\s*"devices": ?\[\s*(?:\{\s*"index"|\])`)

// notLog says what content is that is no log, and what reads it; "" for what may be a log: all
// text that no reader of recordings and modules takes, and the dumps of pools.
func notLog(ctx context.Context, path string, head []byte) string {
	what, next := kindOf(ctx, path, head)
	if what == "" {
		return ""
	}
	file := "FILE"
	if path != "-" {
		file = report.ShellQuote(path)
	}
	return fmt.Sprintf("this is no log; it is %s; %s", what, strings.ReplaceAll(next, "FILE", file))
}

func kindOf(ctx context.Context, path string, head []byte) (what, next string) {
	if k, ok := filekind.Of(path, head); ok && !isWide(head) {
		return k.What, nextOf(k)
	}
	switch {
	case len(head) == 0 || isWide(head):
		return "", ""
	case hasPrefix(head, "\x7fELF") && elfType(head) == elfCore:
		return "a core file", "a debugger reads it; " + printed
	case hasPrefix(head, "\x7fELF"):
		return "a program or library (ELF)", "the log is what it prints; gpumem fit -- COMMAND finds what a program needs"
	case stateFile.Match(head):
		return "a state of gpumem ps --json", "gpumem doctor --state FILE reads it, with a log or alone"
	case hasPrefix(bytes.TrimSpace(head), "module @"):
		return "a module (StableHLO), which XLA has not compiled", "jitted.lower(...).compile().as_text() is one that gpumem hlo reads"
	case measure.LooksNamed(head), measure.Looks(bytes.TrimSpace(head)): // no text begins with a tag then
		return "a module of XLA", modules
	}
	if what, next = recording(ctx, head); what != "" {
		return what, next
	}
	switch {
	case !isBinary(head) || formats.All().Recognise(head) == "memdump":
		return "", ""
	case measure.Looks(head):
		return "a message of protocol buffers", "of a module of XLA, " + modules
	}
	return "no text", printed
}

func hasPrefix(s []byte, prefix string) bool { return bytes.HasPrefix(s, []byte(prefix)) }

// recording tells recordings. One that is text is one only if each of its lines is: many logs
// begin with a comment.
func recording(ctx context.Context, head []byte) (what, next string) {
	name := formats.All().Recognise(head)
	switch name {
	case "", "memdebug", "memdump": // logs, and dumps that are read like one
		return "", ""
	case "torch":
		if bytes.Contains(head, []byte("segments")) || bytes.Contains(head, []byte("device_traces")) {
			return "a snapshot of PyTorch's memory", replays
		}
		return "a pickle", "those of torch.cuda.memory._dump_snapshot are for gpumem replay FILE; " + printed
	case "xplane":
		if filekind.IsPlain(head[:min(len(head), 256)]) { // a log may begin with a blank line, and name a device
			return "", ""
		}
	case "text", "rmm", "minimalloc":
		lines := head[:bytes.LastIndexByte(head, '\n')+1]
		if len(head) < maxHead {
			lines = head
		}
		t, err := formats.Read(ctx, bytes.NewReader(lines), "", trace.Options{Format: name})
		if err != nil {
			return "", ""
		}
		defer t.Close()
		if t.Events == 0 {
			return "", ""
		}
	}
	return fmt.Sprintf("a recording (%s)", name), replays
}

// maxHead is how much of a file is looked at.
const maxHead = 64 << 10

// isWide reports whether content begins with the mark of UTF-16.
func isWide(head []byte) bool { return hasPrefix(head, "\xff\xfe") || hasPrefix(head, "\xfe\xff") }

// markless is how many bytes are looked at for UTF-16 without its mark.
const markless = 64

// missingMark is the mark that UTF-16 without one should have: empty unless every other byte, but for a
// few letters of other scripts, is 0, and no other one is.
func missingMark(head []byte) string {
	var zeros [2]int
	for i, b := range head {
		if b == 0 {
			zeros[i&1]++
		}
	}
	enough := max(4, len(head)*3/8)
	switch {
	case zeros[0] == 0 && zeros[1] >= enough:
		return "\xff\xfe"
	case zeros[1] == 0 && zeros[0] >= enough:
		return "\xfe\xff"
	}
	return ""
}

// isBinary reports whether content is no text. Random bytes are control characters in one of
// eleven; logs have few, in codes for the terminal, and zeros where a disk was full or a writer
// was late. Text of an older encoding is not UTF-8 and has none.
func isBinary(head []byte) bool {
	n, all, odd := filekind.Controls(head), len(head)-bytes.Count(head, []byte{0}), 0
	for rest := head; len(rest) > 0; {
		r, size := utf8.DecodeRune(rest)
		if rest = rest[size:]; r == utf8.RuneError && size == 1 {
			odd++
		}
	}
	return n*20 > all || n*100 > all && odd*10 > all
}

// elfCore is ET_CORE.
const elfCore = 4

// elfType is e_type of an ELF file.
func elfType(head []byte) uint16 {
	switch {
	case len(head) < 18:
		return 0
	case head[5] == 2: // ELFDATA2MSB
		return binary.BigEndian.Uint16(head[16:])
	}
	return binary.LittleEndian.Uint16(head[16:])
}
