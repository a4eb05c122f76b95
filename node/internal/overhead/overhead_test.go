package overhead

import (
	_ "embed" // testdata/overhead.txt
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/internal/table"
	"gpumem/internal/test/gpucheck/report"
	"gpumem/internal/test/gpucheck/tables"
	"gpumem/size"
)

const mib = 1 << 20

// TestContexts: the table against what was measured on GPUs of that kind, in MiB:
// total less what was free, or the process's own. It may be above, for it goes by
// the largest GPU of its kind, and hardly below.
func TestContexts(t *testing.T) {
	for _, tc := range []struct {
		gpu      string
		major    int
		totalMiB uint64
		measured uint64
	}{
		{"RTX 3060", 8, 12044, 123},
		{"RTX 3070 Ti", 8, 7973, 184},
		{"A30", 8, 24060, 255},
		{"RTX 3090", 8, 24252, 256},
		{"Quadro GV100", 7, 32508, 345},
		{"V100", 7, 16144, 312},
		{"RTX 4060 Ti", 8, 7805, 107},
		{"RTX PRO 6000", 12, 97247, 555},
		{"GTX 1650", 7, 3903, 64},
	} {
		got := contextBytes(GPU{CCMajor: tc.major, Total: tc.totalMiB * mib}) / mib
		if got*10 < tc.measured*9 || got > tc.measured*3 {
			t.Errorf("%s: %d MiB, measured %d", tc.gpu, got, tc.measured)
		}
	}
	contexts := figures().contexts
	if last := contexts[len(contexts)-1]; last.major != 0 || last.most != 0 {
		t.Error("the last row does not take all")
	}
}

//go:embed testdata/overhead.txt
var fixedText string

func TestOverhead(t *testing.T) {
	table := figures
	t.Cleanup(func() { figures = table })
	fixed, err := readRows(fixedText)
	if err != nil {
		t.Fatal(err)
	}
	figures = func() rows { return fixed }
	h100 := GPU{Total: 81089 * mib, CCMajor: 9}
	for _, tc := range []struct {
		name      string
		framework string
		l         GPU
		gpus      int
		want      uint64
	}{
		{"JAX on an H100", "jax", h100, 1, 552 + 30 + 500 + 32},
		{"TensorFlow", "tensorflow", h100, 1, 552 + 30 + 500 + 32},
		{"PyTorch", "pytorch", h100, 1, 552 + 150 + 500},
		{"CuPy", "cupy", h100, 1, 552 + 30 + 32},
		{"eight of them", "jax", h100, 8, 552 + 30 + 500 + 32 + 512},
		{"a context that is known", "cupy", GPU{Total: h100.Total, CCMajor: 9, Context: 100 * mib}, 1, 100 + 30 + 32},
		{"simulated", "jax", GPU{Total: 1 << 30, CCMajor: 9, Simulated: true}, 4, 0},
		{"simulated, with a context", "jax", GPU{Total: 1 << 30, CCMajor: 9, Simulated: true, Context: 300 * mib}, 4, 300},
	} {
		if got := Of(tc.framework, tc.l, tc.gpus); got != tc.want*mib {
			t.Errorf("%s: %d MiB, want %d", tc.name, got/mib, tc.want)
		}
		for _, p := range Parts(tc.framework, tc.l, tc.gpus) {
			if p.What == "" || p.Source == "" || p.Bytes == 0 {
				t.Errorf("%s: %+v", tc.name, p)
			}
		}
	}
	a100 := Of("jax", GPU{Total: 81101 * mib, CCMajor: 8}, 1)
	if a100 != (456+30+500+8)*mib+mib/8 {
		t.Errorf("JAX on an A100: %d", a100)
	}
}

// TestReadRowsRefusesWhatIsNoRow: a figure put there by hand or by a program is not read as another one.
func TestReadRowsRefusesWhatIsNoRow(t *testing.T) {
	for _, tc := range []struct{ name, text, err string }{
		{"a word too many", "\na.b.c.d 1MiB\n\tabout: x", `overhead.txt:2: "a.b.c.d 1MiB": want context.CC.SIZE BYTES or PART.FRAMEWORK BYTES`},
		{"a context without a size", "context.jax 1MiB\n\tabout: x", `overhead.txt:1: "context.jax 1MiB": want context.CC.SIZE BYTES or PART.FRAMEWORK BYTES`},
		{"no source", "context.9.any 1MiB", `overhead.txt:1: "context.9.any 1MiB": about is missing: what the figure rests on`},
		{"no number", "context.x.any 1MiB\n\tabout: x", `overhead.txt:1: "context.x.any 1MiB": compute capability "x": want its first number`},
		{"no size", "context.9.all 1MiB\n\tabout: x", `overhead.txt:1: "context.9.all 1MiB": size "all": want a number of bytes, at least 0, with or without a unit, such as 512, 4KiB, 1.5GiB or 80G`},
		{"no bytes", "a.jax\n\tabout: x", `overhead.txt:1: "a.jax": size "": want a number of bytes, at least 0, with or without a unit, such as 512, 4KiB, 1.5GiB or 80G`},
		{"a context with a number of GPUs", "context.9.any 1MiB\n\tgpus: 2\n\tabout: x", `overhead.txt:1: "context.9.any 1MiB": a context has no from and no gpus`},
		{"an unknown framework", "a.torch 1MiB\n\tabout: x", `overhead.txt:1: "a.torch 1MiB": framework "torch": want one of jax, tensorflow, pytorch, cupy, cuda`},
		{"no GPU", "a.jax 1MiB\n\tgpus: 0\n\tabout: x", `overhead.txt:1: "a.jax 1MiB": gpus "0": want a number above 0`},
		{"an unknown field", "a.jax 1MiB\n\tin: jax", `overhead.txt:2: "in: jax": want a field of an entry, each at most once, of from, gpus, about, measured`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := readRows(tc.text)
			if err == nil || err.Error() != tc.err {
				t.Errorf("got %v\nwant %s", err, tc.err)
			}
		})
	}
}

// TestReadRows: each field is where it belongs, and the first row that fits is taken.
func TestReadRows(t *testing.T) {
	got, err := readRows("context.9.80GiB 500MiB\n\tabout: a\nNCCL.jax.new 1.5MiB\n\tfrom: 8\n\tgpus: 2\n\tmeasured: c\n\tabout: b")
	want := rows{
		contexts: []contextRow{{9, 80 << 30, 500 * mib}},
		parts:    []partRow{{Part{"NCCL", 3 * mib / 2, "c"}, "jax", 8, 2}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(rows{}, contextRow{}, partRow{})); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	row := got.parts[0]
	for _, tc := range []struct {
		framework   string
		major, gpus int
		want        bool
	}{{"jax", 8, 2, true}, {"jax", 0, 3, true}, {"jax", 7, 2, false}, {"jax", 8, 1, false}, {"cupy", 8, 2, false}} {
		if got := row.isIn(tc.framework, GPU{CCMajor: tc.major}, tc.gpus); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}

// TestRemadeOverheadIsRead refuses a table that scripts/gpu-check --tables makes and readRows does not
// read, or reads otherwise than it was measured, with an eighth more.
func TestRemadeOverheadIsRead(t *testing.T) {
	entries, err := table.Read("overhead.txt", overheadText, "from", "gpus", "about", "measured")
	if err != nil {
		t.Fatal(err)
	}
	measured := map[string]report.Figure{}
	var want []uint64
	for _, e := range entries {
		name, amount, _ := strings.Cut(e.Name, " ")
		bytes, err := size.Parse(amount)
		if err != nil {
			t.Fatal(err)
		}
		value := float64(bytes) * 1.3
		measured[name] = report.Figure{Name: "outside." + name, Value: value, Unit: "bytes"}
		want = append(want, uint64(math.Ceil(value*9/8/mib))*mib)
	}
	after, notes := tables.Outside.Remake(overheadText, measured, "a GPU, 2026-11-28", false)
	if len(notes.Written) != len(entries) || len(notes.Left) != 0 {
		t.Errorf("%d of %d entries are remade; left are %q", len(notes.Written), len(entries), notes.Left)
	}
	remade, err := readRows(after)
	if err != nil {
		t.Fatal(err)
	}
	var got []uint64
	for _, c := range remade.contexts {
		got = append(got, c.bytes)
	}
	for _, p := range remade.parts {
		got = append(got, p.Bytes)
		if !strings.HasSuffix(p.Source, "on a GPU, 2026-11-28") {
			t.Errorf("%s of %s is from %q", p.What, p.of, p.Source)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" { // all contexts are before all parts
		t.Errorf("the amounts differ (-want +got):\n%s", diff)
	}
}
