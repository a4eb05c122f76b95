package formats

// That no reader takes memory out of proportion to the file: small files that stand for
// much are refused, whatever of them is held.

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"gpumem/internal/input"
	"gpumem/record/internal/test/tracetest"
	"gpumem/record/trace"
)

// many joins n pieces.
func many(n int, piece func(k int) string) []byte {
	var b bytes.Buffer
	for k := range n {
		b.WriteString(piece(k))
	}
	return b.Bytes()
}

func same(piece tracetest.PB) func(int) string { return func(int) string { return string(piece) } }

// The frame of our own format, see record/internal/tape/binary.go.
const (
	payloadBytes = 64 << 10
	maxText      = 4 << 10
	frameBytes   = 12
)

func putFrame(frame, payload []byte) {
	table := crc32.MakeTable(crc32.Castagnoli)
	binary.LittleEndian.PutUint32(frame, uint32(len(payload)))
	binary.LittleEndian.PutUint32(frame[4:], crc32.Checksum(payload, table))
	binary.LittleEndian.PutUint32(frame[8:], crc32.Checksum(frame[:8], table))
}

// inBlocks is a recording of our own with n records, and the pool p.
func inBlocks(n int, record func(k int) string) []byte {
	out := []byte("\x89gpumem\x01")
	for k := 0; k < n; {
		payload := ""
		if k == 0 {
			payload = "\x80\x01p\x00"
		}
		for ; k < n && len(payload) < payloadBytes-maxText; k++ {
			payload += record(k)
		}
		at := len(out)
		out = append(append(out, make([]byte, frameBytes)...), payload...)
		putFrame(out[at:], []byte(payload))
	}
	return out
}

// greedy are recordings that stand for some MiB of memory once they are packed, and
// say what of them.
func greedy() map[string][]byte {
	kinds := func(n uint64) tracetest.PB { return tracetest.PB{}.Bytes(1, tracetest.PB{}.Num(1, n).Num(2, n)) }
	profile := append(kinds(1), kinds(2)...)
	sample := tracetest.PB{}.Bytes(2, tracetest.PB{}.Bytes(1, []byte{1}).Bytes(2, []byte{1, 1}))
	plane := func(names ...tracetest.PB) []byte {
		m := tracetest.PB{}.Text(2, "/host:CPU")
		for _, n := range names {
			m = append(m, n...)
		}
		return tracetest.PB{}.Bytes(1, m)
	}
	name := func(k int) string {
		return string(tracetest.PB{}.Bytes(5, tracetest.PB{}.Num(1, uint64(k)).Bytes(2, tracetest.PB{}.Text(2, strings.Repeat("x", 150)))))
	}
	return map[string][]byte{
		"pprof: texts":     append(profile, many(100_000, same(tracetest.PB{}.Text(6, "")))...),
		"pprof: samples":   append(profile, many(20_000, same(sample))...),
		"pprof: places":    append(profile, many(50_000, func(k int) string { return string(tracetest.PB{}.Bytes(4, tracetest.PB{}.Num(1, uint64(k)))) })...),
		"pprof: functions": append(profile, many(50_000, func(k int) string { return string(tracetest.PB{}.Bytes(5, tracetest.PB{}.Num(1, uint64(k)))) })...),
		"torch: dicts":     []byte("\x80\x04(" + strings.Repeat("}", 100_000) + "t."),
		"torch: a list":    []byte("\x80\x04](" + strings.Repeat("N", 200_000) + "e."),
		"torch: a memo":    []byte("\x80\x04" + strings.Repeat("N\x94", 200_000) + "."),
		"torch: far memo":  append([]byte("\x80\x04N"), append(many(400_000, func(k int) string { return string([]byte{'r', byte(k), byte(k >> 8), byte(k >> 16), 0x7f}) }), '.')...),
		"torch: a text":    []byte("\x80\x04X\x00\x00\x40\x00" + strings.Repeat("x", 4<<20) + "."),
		"text: blocks":     many(20_000, func(k int) string { return fmt.Sprintf("a %d 1\n", k) }),
		"text: names":      many(100, func(k int) string { return fmt.Sprintf("a %d%s 1\n", k, strings.Repeat("x", 50_000)) }),
		"rmm: blocks":      append([]byte("Thread,Time,Action,Pointer,Size,Stream\n"), many(20_000, func(k int) string { return fmt.Sprintf("1,10:00:00:000000,allocate,0x%x,1,0x0\n", k+1) })...),
		"rmm: older blocks": append([]byte("Thread,Time,Action,Pointer,Size,Stream\n"), many(20_000, func(k int) string {
			return fmt.Sprintf("1,10:00:00:000000,free,0x%x,1,0x0\n", k+1)
		})...),
		"memdebug: blocks": many(20_000, func(k int) string {
			return fmt.Sprintf("%s AllocateRaw,p,1,0x%x,x\n", "[mem-debug]", k+1)
		}),
		"minimalloc: blocks": append([]byte("id,lower,upper,size\n"), many(50_000, func(int) string { return "1,1,1000,1\n" })...),
		"memdump: chunks":    append([]byte(tracetest.PB{}.Text(1, "p")), many(50_000, same(tracetest.PB{}.Bytes(3, tracetest.PB{}.Num(1, 1).Num(2, 1).Num(8, 1))))...),
		"memdump: sites": append([]byte(tracetest.PB{}.Text(1, "p")), many(20_000, func(k int) string {
			return string(tracetest.PB{}.Bytes(3, tracetest.PB{}.Num(2, 1).Text(5, fmt.Sprint(k, strings.Repeat("x", 150))).Num(8, 1)))
		})...),
		"torch-timeline: blocks": append(append([]byte("[[-1,1,8,0]"), many(20_000, func(k int) string { return fmt.Sprintf(",[%d,2,8,0]", k+1) })...), ']'),
		"kineto: threads":        traceEvents(20_000, `"ph":"X","cat":"cpu_op","tid":%d`),
		"kineto: names":          traceEvents(20_000, `"ph":"X","cat":"cpu_op","name":"%0100d"`),
		"kineto: blocks":         traceEvents(20_000, `"ph":"i","name":"[memory]","args":{"Device Type":1,"Bytes":1,"Addr":%d}`),
		"xplane: names":          plane(many(20_000, name)),
		"gpumem: frames":         inBlocks(1000, func(k int) string { return "\x81\x80\x20" + strings.Repeat("x", maxText) }),
		"gpumem: sites": inBlocks(20_000, func(k int) string {
			if k == 0 {
				return "\x81\x01x"
			}
			return "\x82\x40" + strings.Repeat("\x00", 64)
		}),
		"gpumem: notes":  inBlocks(1000, func(k int) string { return "\x83\x80\x20" + strings.Repeat("x", maxText) }),
		"gpumem: blocks": inBlocks(20_000, func(int) string { return "\x00\x01" }),
	}
}

// traceEvents is a trace of PyTorch's profiler with n events, each with its number.
func traceEvents(n int, event string) []byte {
	return append(append([]byte(`{"traceEvents":[`), many(n, func(k int) string { return "{" + fmt.Sprintf(event, k) + "}," })...), "{}]}"...)
}

// readWithin is Read with another limit of memory.
func readWithin(data []byte, limit int64) (*trace.Trace, error) {
	in, err := input.New(context.Background(), bytes.NewReader(data), "in", input.Options{Held: limit})
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return all.ReadFrom(in, trace.Options{})
}

func TestReadersTakeMemoryInProportion(t *testing.T) {
	for name, data := range greedy() {
		t.Run(name, func(t *testing.T) {
			packed := tracetest.Zipped(data)
			const limit = 1 << 20
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			tr, err := readWithin(packed, limit)
			runtime.ReadMemStats(&after)
			if tr != nil {
				tr.Close()
			}
			var e *trace.Error
			if !errors.Is(err, input.ErrTooMuch) || !errors.As(err, &e) {
				t.Fatalf("%d bytes, packed %d: error %v", len(data), len(packed), err)
			}
			// Buffers aside, and lists that grow by doubling.
			if took := after.TotalAlloc - before.TotalAlloc; took > 4*(limit+32*uint64(len(packed)))+4<<20 {
				t.Errorf("%d bytes were taken for %d", took, len(packed))
			}
		})
	}
}

// Files as they are recorded stay far below the limit.
func TestRecordingsAreFarFromTheLimit(t *testing.T) {
	for _, name := range []string{"torch2026.pickle", "torch280.pickle", "tensorflow.xplane.pb", "jax.pprof", "jax092.xplane.pb.gz", "jax092.memdump", "rmm.csv", "kineto.json.gz", "timeline.raw.json.gz"} {
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join("..", "trace", "testdata", name))
			if err != nil {
				t.Fatal(err)
			}
			// Two bytes for each of the file, and those of the first pieces.
			tr, err := readWithin(data, 256<<10)
			if err != nil {
				t.Fatal(err)
			}
			tr.Close()
		})
	}
}

// A GPU's streams take the square of their number.
func TestTooManyStreamsAreRefused(t *testing.T) {
	for name, data := range map[string][]byte{
		"gpumem": inBlocks(10_000, func(k int) string { return "\x10\x01" + string([]byte{byte(k) | 0x80, byte(k>>7) | 0x80, 1}) }),
		"rmm":    append([]byte("Thread,Time,Action,Pointer,Size,Stream\n"), many(10_000, func(k int) string { return fmt.Sprintf("1,10:00:00:000000,allocate,0x%x,1,0x%x\n", k+1, k+3) })...),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(context.Background(), bytes.NewReader(data), "in", trace.Options{})
			if err == nil || !strings.HasSuffix(err.Error(), "more than 2048 streams; it is damaged") {
				t.Error(err)
			}
		})
	}
}
