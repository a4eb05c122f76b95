package dump

import (
	"reflect"
	"strings"
	"testing"
)

// TestReadLogFindsWhatEachReaderFinds reads a dump and a program's report between lines of
// a log, together and one by one, with no line skipped.
func TestReadLogFindsWhatEachReaderFinds(t *testing.T) {
	const dump = "Allocator (GPU_0_bfc) ran out of memory trying to allocate 400.0KiB (rounded to 409600)\n" +
		"Bin (256): \tTotal Chunks: 3, Chunks in use: 2.\nNext region of size 1048576\n" +
		"InUse at 7f0000000000 of size 204800 next 2\nFree  at 7f0000032000 of size 307200 next 3\n" +
		"InUse at 7f000007d000 of size 536576 next 18446744073709551615\nSum Total of in-use chunks: 724.0KiB\n"
	const program = "BufferAssignment stats:\n             parameter allocation:    6.00GiB\n                  total allocation:   14.00GiB\n" +
		"Peak buffers:\n\tBuffer 1:\n\t\tSize: 2.00GiB\n\t\tShape: f32[65536,8192]\n\t\t==========================\n" +
		"Can't reduce memory use below 1.00GiB (1073741824 bytes) by rematerialization; only reduced to 2.00GiB\n"
	const steps = "step 1, batch size 3\nstep 2, allocated 4 GiB\n"
	for name, text := range map[string]string{
		"nothing": steps, "dump": steps + dump + steps, "program": steps + program, "both": steps + dump + steps + program,
		"both, the other way round": program + steps + dump, "one line": steps + strings.ReplaceAll(program, "\n", `\n`), "empty": "",
	} {
		wantDump, _ := Read(strings.NewReader(text))
		plain := programs{of: map[string]*Program{}}
		for i, line := range strings.Split(text, "\n") {
			plain.line(i+1, []byte(line))
		}
		wantProgram := plain.result()
		d, p, err := ReadLog(strings.NewReader(text))
		if err != nil || !reflect.DeepEqual(d, wantDump) || !reflect.DeepEqual(p, wantProgram) {
			t.Errorf("%s: %+v, %+v, %v; want %+v, %+v", name, d, p, err, wantDump, wantProgram)
		}
		if (d != nil) != strings.Contains(text, "Next region") || (p != nil) != strings.Contains(text, "Peak buffers") {
			t.Errorf("%s: %v, %v", name, d, p)
		}
	}
}
