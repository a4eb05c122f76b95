package doctor

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpumem/device"
	"gpumem/node/machine"
	leases "gpumem/node/share"
)

// format is the text in a source file that has these words, without its own newline, and with the
// values of its verbs. So the texts cannot drift away from what the doctor knows.
func format(t *testing.T, file, words string, values ...any) string {
	t.Helper()
	source, err := os.ReadFile("../" + file)
	if err != nil {
		t.Fatal(err)
	}
	for _, literal := range regexp.MustCompile(`"(?:[^"\\\n]|\\.)*"`).FindAllString(string(source), -1) {
		if strings.Contains(literal, words) {
			text, err := strconv.Unquote(literal)
			if err != nil {
				t.Fatal(err)
			}
			text = strings.TrimSuffix(strings.NewReplacer("%s", "%v", "%d", "%v").Replace(text), "\n")
			return "gpumem: " + strings.TrimPrefix(fmt.Sprintf(text, values...), "gpumem: ")
		}
	}
	t.Fatalf("%s has no %q", file, words)
	return ""
}

// TestOwnLines: what gpumem run and the pool library print, made by their own functions and
// formats. What the reports of commands say is in cmd/gpumem/testdata/script/doctorown.txtar.
func TestOwnLines(t *testing.T) {
	const gib = 1 << 30
	refusal := func(e leases.InsufficientMemoryError) string {
		e.Device, e.Total, e.Shareable = "cuda:0", 24*gib, 23*gib
		return "gpumem: " + e.Error()
	}
	taken, beside := uint64(3*gib), uint64(128<<20)
	const main, front, hook = "preload/libgpumem/main.go", "preload/front/front.c", "node/internal/hook/gpumem_hook.py"
	for name, c := range map[string]struct{ log, verdict, cause string }{
		"others have leases": {refusal(leases.InsufficientMemoryError{Want: 20 * gib, Free: 3 * gib,
			Holders: []leases.Entry{{PID: 7, Bytes: 20 * gib}}}), "cause", "device_occupied"},
		"others share by turns": {refusal(leases.InsufficientMemoryError{Want: 20 * gib, Free: 3 * gib, Turns: true,
			Holders: []leases.Entry{{PID: 7, Bytes: 20 * gib}}, ByTurns: []leases.TurnGroup{{Leases: 2, Limit: 20 * gib}}}), "cause", "device_occupied"},
		"a program without": {refusal(leases.InsufficientMemoryError{Want: 20 * gib, Free: 3 * gib,
			Foreign: []device.Process{{PID: 7, Used: taken}}}), "cause", "device_occupied"},
		"nobody is named": {refusal(leases.InsufficientMemoryError{Want: 20 * gib, Free: 3 * gib}), "cause", "device_occupied"},
		"waited in vain": {refusal(leases.InsufficientMemoryError{Want: 20 * gib, Free: 3 * gib, Waited: os.ErrDeadlineExceeded,
			After: time.Minute}), "cause", "device_occupied"},
		"more than there is": {refusal(leases.InsufficientMemoryError{Want: 40 * gib, Free: 23 * gib, Never: true}), "cause",
			"program_too_big"},
		"too large a reserve": {refusal(leases.InsufficientMemoryError{Want: 20 * gib, Free: 3 * gib, Reserve: 20 * gib, Never: true}),
			"cause", "program_too_big"},
		"inside a lease": {refusal(leases.InsufficientMemoryError{Want: 20 * gib, Free: 2 * gib,
			Inside: &leases.Entry{Bytes: 6 * gib}}), "cause", "external_quota"},
		"inside a container": {refusal(leases.InsufficientMemoryError{Want: 20 * gib,
			Inside: &leases.Entry{Bytes: 6 * gib, Containers: []leases.Container{{Pod: "p", Name: "c"}}}}), "cause", "external_quota"},
		"beside its lease": {"gpumem: process 7 " + (&machine.Beside{Bytes: &beside, How: "by a copy of the driver"}).String(),
			"nonfatal", "nonfatal_warning"},
		"how much is unknown": {"gpumem: process 7 " + (&machine.Beside{How: "by a copy of the driver"}).String(), "nonfatal",
			"nonfatal_warning"},
		"waits": {format(t, "node/launch/plan.go", "waiting for room", "", "next", "6 GiB are missing"), "nonfatal",
			"nonfatal_warning"},
		"figures": {format(t, main, "pool %s: peak", 0, "elastic", "5.40 GiB", "6 GiB", 1200, 0, 31), "nonfatal",
			"nonfatal_warning"},
		"figures of refusals": {format(t, main, "pool %s: peak", 0, "elastic", "5.40 GiB", "6 GiB", 1200, 3, 31), "nonfatal",
			"nonfatal_warning"},
		"a graph": {format(t, front, "a graph took memory beyond"), "nonfatal", "nonfatal_warning"},
		"the lease is full": {format(t, "preload/internal/shim/shim.go", "out of memory: a request", 0, "2 GiB",
			"1 GiB are left of the lease of 6 GiB", "5 GiB", "4.50 GiB"), "cause", "external_quota"},
		"a process is too many": {format(t, "preload/libgpumem/main.go", `GPU %d: %v`, 0, "the lease has no room for what a process takes"),
			"cause", "external_quota"},
		"the hook's last word": {"jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 bytes.\n" + format(t, hook, "this process had", "a lease of 6 GiB", "run it with a larger gpumem run --mem, or "), "cause", "external_quota"},
		"no lease file": {format(t, "preload/front/mark.c", "no GPU memory is served: lease file", "/run/x", "it is gone"), "cause",
			"external_quota"},
		"no ledger": {format(t, main, "no memory without the lease", 0, "the ledger is damaged"), "cause", "external_quota"},
		"a limit of letters": {"gpumem: no GPU memory is served: " + strings.TrimPrefix(format(t, front, "GPUMEM_LIMIT, GPUMEM_OUTSIDE"),
			"gpumem: "), "cause", "bad_setting"},
		"no driver": {"gpumem: no driver: " + strings.TrimPrefix(format(t, front, "libcuda.so.1 of the driver is not"),
			"gpumem: "), "cause", "library_mismatch"},
		"another release": {"gpumem: the pools are not loaded: " + strings.TrimPrefix(format(t, front,
			"libgpumem.so is of another release"), "gpumem: "), "cause", "library_mismatch"},
		"no sharing": {"gpumem: cuIpcGetMemHandle: " + strings.TrimPrefix(format(t, front,
			"cannot be shared with other processes"), "gpumem: "), "not_memory", "not_memory"},
		"too many processes": {format(t, hook, "is number %d on GPU", 7, 2, "0", "6 GiB", "all", 2), "unknown", ""},
		"a plain end":        {"gpumem: GPU 0 draws a display: 3 GiB are left for it\nstep 1 loss 2.5\n", "unknown", ""},
		"a simulated GPU": {"jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: " +
			"Out of memory while trying to allocate 26.00GiB with allocator GPU_0_bfc on device 0.\n" +
			format(t, "node/launch/simulate.go", "total %s, peak %s", 0, "24 GiB", "18 GiB", 7), "cause", "program_too_big"},
		"a note, and a refusal": {format(t, main, "pool %s: peak", 0, "elastic", "5.40 GiB", "6 GiB", 1200, 0, 31) + "\n" + refused, "needs",
			"program_too_big"},
		"refused later": {refusal(leases.InsufficientMemoryError{Want: 40 * gib, Free: 23 * gib,
			Never: true}) + "\nMemoryError: Unable to allocate 8.00 GiB for an array with shape (1073741824,) and data type float64\n", "cause",
			"host_memory"},
	} {
		t.Run(name, func(t *testing.T) {
			d := diagnose(t, c.log+"\n", "")
			if string(d.Verdict) != c.verdict || c.cause != "" && !slices.Contains(ids(d), c.cause) {
				t.Errorf("%s %v, want %s %s\n%s", d.Verdict, ids(d), c.verdict, c.cause, c.log)
			}
		})
	}
}
