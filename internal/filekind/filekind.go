// Package filekind tells files that gpumem reads by no name by how they begin: pictures, archives,
// programs, models, and the files of other profilers. Commands refuse them with what they are.
package filekind

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/internal/input"
)

// Group is what is to be done with a file of a kind.
type Group uint8

const (
	Picture Group = 1 + iota // what it shows can be typed as text
	Archive                  // a file in it may be one for gpumem
	Packed                   // Kind.Tool unpacks it to standard output
	Program                  // what it prints may be a log
	Journal                  // Kind.Tool writes it as text
	Model                    // of weights
	Data                     // arrays and tables
	Profile                  // of another profiler; Kind.Next says what to do
	Wheel                    // of Python
)

// Kind is what a file is.
type Kind struct {
	What  string // as in "a model (GGUF)"
	Group Group
	// Tool is the command of Packed and Journal, in which FILE stands for the file.
	Tool string
	// Next is what to do, for a Profile; FILE stands for the file.
	Next string
}

// magic is how files of a kind begin, at a byte.
type magic struct {
	at    int
	bytes string
	Kind
}

// NsightQuery makes a text that gpumem reads of a report that nsys exported to SQLite.
const NsightQuery = `sqlite3 -csv -header FILE "SELECT start, deviceId, address, bytes, memoryOperationType ` +
	`FROM CUDA_GPU_MEMORY_USAGE_EVENTS WHERE memKind = 2 ORDER BY start" > run.csv`

// magics are from the formats' own documents.
var magics = []magic{
	{0, "\x89PNG\r\n\x1a\n", Kind{What: "a picture (PNG)", Group: Picture}},
	{0, "\xff\xd8\xff", Kind{What: "a picture (JPEG)", Group: Picture}},
	{0, "GIF8", Kind{What: "a picture (GIF)", Group: Picture}},
	{0, "II*\x00", Kind{What: "a picture (TIFF)", Group: Picture}},
	{0, "MM\x00*", Kind{What: "a picture (TIFF)", Group: Picture}},
	{8, "WEBP", Kind{What: "a picture (WebP)", Group: Picture}},
	{4, "ftyp", Kind{What: "a picture or video (MP4, HEIC, AVIF)", Group: Picture}},
	{0, "\x1aE\xdf\xa3", Kind{What: "a video (Matroska, WebM)", Group: Picture}},
	{0, "%PDF-", Kind{What: "a PDF", Group: Picture}},

	{0, "7z\xbc\xaf\x27\x1c", Kind{What: "an archive (7z)", Group: Archive}},
	{0, "\xfd7zXZ\x00", Kind{What: "packed by xz", Group: Packed, Tool: "xz -dc FILE"}},
	{0, "\x28\xb5\x2f\xfd", Kind{What: "packed by zstd", Group: Packed, Tool: "zstd -dc FILE"}},
	{0, "BZh", Kind{What: "packed by bzip2", Group: Packed, Tool: "bzip2 -dc FILE"}},
	{0, "\x04\x22\x4d\x18", Kind{What: "packed by lz4", Group: Packed, Tool: "lz4 -dc FILE"}},
	{0, "Rar!\x1a\x07", Kind{What: "an archive (RAR)", Group: Archive}},
	{0, "\x1f\x8b", Kind{What: "packed by gzip more than twice", Group: Archive}},
	{257, "ustar", Kind{What: "an archive (tar)", Group: Archive}},

	{0, "MZ\x90\x00", Kind{What: "a program or library (Windows)", Group: Program}},
	{0, "\xcf\xfa\xed\xfe", Kind{What: "a program or library (macOS)", Group: Program}},
	{0, "\xca\xfe\xba\xbe", Kind{What: "a program (Java, macOS)", Group: Program}},
	{0, "MDMP\x93\xa7", Kind{What: "a memory dump of Windows (minidump)", Group: Program}},
	{0, "LPKSHHRH", Kind{What: "a journal of systemd", Group: Journal, Tool: "journalctl --file FILE"}},
	{0, "ElfFile\x00", Kind{What: "an event log of Windows", Group: Journal, Tool: "wevtutil qe FILE /lf /f:text"}},

	{0, "SQLite format 3\x00", Kind{What: "a database (SQLite), as Nsight Systems exports one", Group: Profile,
		Next: "its allocations, of a run of nsys profile --cuda-memory-usage=true, as a text that gpumem replay reads: " + NsightQuery}},
	{0, "GGUF", Kind{What: "a model (GGUF)", Group: Model}},
	{0, "\x89HDF\r\n\x1a\n", Kind{What: "data or a model (HDF5)", Group: Model}},
	{4, "TFL3", Kind{What: "a model (TensorFlow Lite)", Group: Model}},
	{0, "\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", Kind{What: "a file of torch.save, of releases before 1.6", Group: Model}},
	{0, "\x93NUMPY", Kind{What: "an array (NumPy)", Group: Data}},
	{0, "PAR1", Kind{What: "data (Parquet)", Group: Data}},
	{0, "ARROW1", Kind{What: "data (Arrow)", Group: Data}},

	{0, "memray\x00", Kind{What: "a recording of memray, which is of the host's memory", Group: Profile, Next: "memray stats FILE reads it"}},
	{0, `{"$schema":"https://www.speedscope.app/`, Kind{What: "a profile of time for speedscope, as py-spy writes it", Group: Profile,
		Next: "it has no allocations of a GPU"}},
}

// peeked is how much of a file must be text for its first bytes to be letters of a text, and not
// a magic number.
const peeked = 512

// Of tells what a file is, by its first bytes, 64 KiB or all of it, and by the ending of its name
// where that alone tells; ok is false for what may be text, a recording or a module.
func Of(path string, head []byte) (k Kind, ok bool) {
	for _, m := range magics {
		text := m.Group != Profile && IsPlain(head[:min(len(head), peeked)])
		if len(head) >= m.at && bytes.HasPrefix(head[m.at:], []byte(m.bytes)) && !text {
			return m.Kind, true
		}
	}
	switch {
	case bytes.HasPrefix(head, []byte("PK\x03\x04")):
		return zipped(path, head), true
	case isSafetensors(head):
		return Kind{What: "a model (safetensors)", Group: Model}, true
	case isONNX(head):
		return Kind{What: "a model (ONNX)", Group: Model}, true
	case isEvents(head):
		return Kind{What: "a file of events for TensorBoard", Group: Profile,
			Next: "it has curves, and no allocations; a profile of the same program is plugins/profile/DATE/HOST.xplane.pb, " +
				"or *.pt.trace.json, beside it"}, true
	case isGoProfile(head):
		what := "a profile of a Go program (pprof)"
		if bytes.Contains(head, []byte("inuse_space")) {
			what = "a heap profile of a Go program (pprof)"
		}
		return Kind{What: what + ", not of JAX", Group: Profile,
			Next: "go tool pprof FILE reads it; jax.profiler.save_device_memory_profile writes JAX's"}, true
	case isPerfetto(head):
		return Kind{What: "a trace for Perfetto (protocol buffers)", Group: Profile,
			Next: "it has no allocations of a GPU that are read; of JAX the file HOST.xplane.pb beside it has them"}, true
	case hasEnding(path, ".nsys-rep", ".qdrep") && !IsPlain(head[:min(len(head), peeked)]):
		return Kind{What: "a report of Nsight Systems", Group: Profile,
			Next: "with the allocations of a run of nsys profile --cuda-memory-usage=true: nsys export -t sqlite -o nsys.sqlite FILE && " +
				strings.ReplaceAll(NsightQuery, "FILE", "nsys.sqlite") + " makes a text that gpumem replay reads"}, true
	case hasEnding(path, ".ncu-rep") && !IsPlain(head[:min(len(head), peeked)]):
		return Kind{What: "a report of Nsight Compute", Group: Profile, Next: "it has kernels, and no allocations"}, true
	}
	return Kind{}, false
}

func hasEnding(path string, endings ...string) bool {
	for _, e := range endings {
		if strings.EqualFold(filepath.Ext(path), e) {
			return true
		}
	}
	return false
}

// IsPlain reports whether all of a text may stand in a log: lines may begin as magic numbers do.
func IsPlain(text []byte) bool { return Controls(text) == 0 && bytes.IndexByte(text, 0) < 0 }

// Controls counts the control characters that no log has for a purpose: all but zeros, bell,
// backspace, blanks and the escape.
func Controls(text []byte) (n int) {
	for _, b := range text {
		if isControl(b) {
			n++
		}
	}
	return n
}

// isControl reports whether no log has a byte for a purpose.
func isControl(b byte) bool {
	const bell, carriageReturn, escape, del = '\a', '\r', 0x1b, 0x7f // between the first two are the blanks
	switch b {
	case 0, escape:
		return false
	case del:
		return true
	}
	return b < bell || b > carriageReturn && b < ' '
}

// zipped tells zip files by their names.
func zipped(path string, head []byte) Kind {
	switch {
	case filepath.Ext(path) == ".whl" || bytes.Contains(head, []byte(".dist-info/")):
		return Kind{What: "a wheel of Python", Group: Wheel}
	case bytes.Contains(head, []byte("/data.pkl")) || bytes.Contains(head, []byte(".data/version")):
		return Kind{What: "a file of torch.save", Group: Model}
	case bytes.Contains(head[:min(len(head), 256)], []byte(".npy")):
		return Kind{What: "arrays (NumPy)", Group: Data}
	}
	return Kind{What: "an archive (zip)", Group: Archive}
}

// isSafetensors: the length of a JSON object in 8 bytes, and the object.
func isSafetensors(head []byte) bool {
	const longest = 1 << 30 // of what is believed to be a length
	return len(head) > 9 && head[8] == '{' && bytes.IndexByte([]byte(`" }`), head[9]) >= 0 && binary.LittleEndian.Uint64(head) < longest
}

// isONNX: ir_version (1), a small number, and producer_name (2).
func isONNX(head []byte) bool {
	if len(head) < 4 || head[0] != 1<<3 || head[1] >= ' ' || head[2] != 2<<3|2 || int(head[3]) > len(head)-4 {
		return false
	}
	return input.IsPrintable(head[4 : 4+int(head[3])])
}

// isEvents: a record of TensorFlow (its length in 8 bytes and a sum of that in 4), which is an
// Event with a time (field 1) and a version of the file (field 3), "brain.Event:2".
func isEvents(head []byte) bool {
	const frame, time = 8 + 4, 1 + 8
	return len(head) > frame+time && head[frame] == 1<<3|1 && bytes.HasPrefix(head[frame+time:], []byte("\x1a\x0dbrain.Event:"))
}

// isGoProfile: a Profile that begins with its period's type (field 11), two numbers of small
// strings, as Go's runtime/pprof writes it and JAX does not.
func isGoProfile(head []byte) bool {
	const bytesOfType = 6 // a tag and a length, two tags and numbers
	if len(head) <= bytesOfType || head[0] != 11<<3|2 {
		return false
	}
	return head[1] <= 8 && head[2] == 1<<3 && head[4] == 2<<3 && head[5] < 0x80
}

// isPerfetto: the first packets of a Trace (field 1, each), with numbers that packets alone have:
// a timestamp (8) or the sequence (10).
func isPerfetto(head []byte) bool {
	const timestamp, sequence, enough = 8, 10, 3
	packets, numbered := 0, 0
	for len(head) > 0 && packets < enough {
		num, typ, n := protowire.ConsumeTag(head)
		if n < 0 || num != 1 || typ != protowire.BytesType {
			return false
		}
		packet, m := protowire.ConsumeBytes(head[n:])
		if m < 0 {
			return false
		}
		head = head[n+m:]
		packets++
		for len(packet) > 0 {
			num, typ, n := protowire.ConsumeField(packet)
			if n < 0 {
				return false
			}
			if (num == timestamp || num == sequence) && typ == protowire.VarintType {
				numbered++
			}
			packet = packet[n:]
		}
	}
	return packets == enough && numbered >= packets
}
