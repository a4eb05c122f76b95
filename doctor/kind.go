package doctor

// Files that are no logs, told by how they begin. Their bytes get no diagnosis: the error says
// what the file is and what reads it.

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"

	"gpumem/internal/input"
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

// A kind is how a file that is no log begins: with magic, at a byte.
type kind struct {
	at                int
	magic, what, next string
}

// kinds are the magic numbers, from the formats' own documents.
var kinds = []kind{
	{0, "\x89PNG\r\n\x1a\n", "a picture (PNG)", retype},
	{0, "\xff\xd8\xff", "a picture (JPEG)", retype},
	{0, "GIF8", "a picture (GIF)", retype},
	{0, "II*\x00", "a picture (TIFF)", retype},
	{0, "MM\x00*", "a picture (TIFF)", retype},
	{8, "WEBP", "a picture (WebP)", retype},
	{4, "ftyp", "a picture or video (MP4, HEIC, AVIF)", retype},
	{0, "\x1aE\xdf\xa3", "a video (Matroska, WebM)", retype},
	{0, "%PDF-", "a PDF", retype},

	{0, "7z\xbc\xaf\x27\x1c", "an archive (7z)", unpack},
	{0, "\xfd7zXZ\x00", "packed by xz", "unpack it: xz -dc FILE | gpumem doctor"},
	{0, "\x28\xb5\x2f\xfd", "packed by zstd", "unpack it: zstd -dc FILE | gpumem doctor"},
	{0, "BZh", "packed by bzip2", "unpack it: bzip2 -dc FILE | gpumem doctor"},
	{0, "\x04\x22\x4d\x18", "packed by lz4", "unpack it: lz4 -dc FILE | gpumem doctor"},
	{0, "Rar!\x1a\x07", "an archive (RAR)", unpack},
	{0, "\x1f\x8b", "packed by gzip more than twice", unpack},
	{257, "ustar", "an archive (tar)", unpack},

	{0, "MZ\x90\x00", "a program or library (Windows)", printed},
	{0, "\xcf\xfa\xed\xfe", "a program or library (macOS)", printed},
	{0, "\xca\xfe\xba\xbe", "a program (Java, macOS)", printed},
	{0, "MDMP\x93\xa7", "a memory dump of Windows (minidump)", printed},
	{0, "LPKSHHRH", "a journal of systemd", "journalctl --file FILE | gpumem doctor"},
	{0, "ElfFile\x00", "an event log of Windows", "wevtutil qe FILE /lf /f:text | gpumem doctor"},

	{0, "SQLite format 3\x00", "a database (SQLite), as Nsight Systems exports one", printed},
	{0, "GGUF", "a model (GGUF)", models},
	{0, "\x89HDF\r\n\x1a\n", "data or a model (HDF5)", models},
	{4, "TFL3", "a model (TensorFlow Lite)", models},
	{0, "\x93NUMPY", "an array (NumPy)", printed},
	{0, "PAR1", "data (Parquet)", printed},
	{0, "ARROW1", "data (Arrow)", printed},
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
	for _, k := range kinds {
		if len(head) >= k.at && hasPrefix(head[k.at:], k.magic) && !isPlain(head[:min(len(head), 512)]) {
			return k.what, k.next
		}
	}
	switch {
	case len(head) == 0 || isWide(head):
		return "", ""
	case hasPrefix(head, "\x7fELF") && elfType(head) == elfCore:
		return "a core file", "a debugger reads it; " + printed
	case hasPrefix(head, "\x7fELF"):
		return "a program or library (ELF)", "the log is what it prints; gpumem fit -- COMMAND finds what a program needs"
	case hasPrefix(head, "PK\x03\x04"):
		return zipped(path, head)
	case isSafetensors(head):
		return "a model (safetensors)", models
	case isONNX(head):
		return "a model (ONNX)", models
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
		if isPlain(head[:min(len(head), 256)]) { // a log may begin with a blank line, and name a device
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

// isPlain reports whether all of a text may stand in a log: lines may begin as magic numbers do.
func isPlain(text []byte) bool { return controls(text) == 0 && bytes.IndexByte(text, 0) < 0 }

// isBinary reports whether content is no text. Random bytes are control characters in one of
// eleven; logs have few, in codes for the terminal, and zeros where a disk was full or a writer
// was late. Text of an older encoding is not UTF-8 and has none.
func isBinary(head []byte) bool {
	n, all, odd := controls(head), len(head)-bytes.Count(head, []byte{0}), 0
	for rest := head; len(rest) > 0; {
		r, size := utf8.DecodeRune(rest)
		if rest = rest[size:]; r == utf8.RuneError && size == 1 {
			odd++
		}
	}
	return n*20 > all || n*100 > all && odd*10 > all
}

// controls counts the control characters that no log has for a purpose: all but zeros, bell,
// backspace, blanks and the escape.
func controls(text []byte) (n int) {
	for _, b := range text {
		if b != 0 && b < '\a' || b > '\r' && b < ' ' && b != 0x1b || b == 0x7f {
			n++
		}
	}
	return n
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

// zipped tells zip files by their names.
func zipped(path string, head []byte) (what, next string) {
	switch {
	case filepath.Ext(path) == ".whl" || bytes.Contains(head, []byte(".dist-info/")):
		return "a wheel of Python", "pip installs it; " + printed
	case bytes.Contains(head, []byte("/data.pkl")) || bytes.Contains(head, []byte(".data/version")):
		return "a file of torch.save", models
	case bytes.Contains(head[:min(len(head), 256)], []byte(".npy")):
		return "arrays (NumPy)", printed
	}
	return "an archive (zip)", unpack
}

// isSafetensors: the length of a JSON object in 8 bytes, and the object.
func isSafetensors(head []byte) bool {
	return len(head) > 9 && head[8] == '{' && binary.LittleEndian.Uint64(head) < 1<<30 && (head[9] == '"' || head[9] == ' ' || head[9] == '}')
}

// isONNX: ir_version (1), a small number, and producer_name (2).
func isONNX(head []byte) bool {
	if len(head) < 4 || head[0] != 1<<3 || head[1] >= ' ' || head[2] != 2<<3|2 || int(head[3]) > len(head)-4 {
		return false
	}
	return input.IsPrintable(head[4 : 4+int(head[3])])
}
