package open_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/device"
	"gpumem/device/open"
	"gpumem/device/sim"
)

func TestParse(t *testing.T) {
	gib := uint64(1 << 30)
	for _, tc := range []struct {
		text string
		want open.Spec
	}{
		{"sim:80GiB", open.Spec{Sim: sim.Config{Total: 80 * gib, Name: "sim:80GiB"}}},
		{"sim:24G,used=2G,name=mine", open.Spec{Sim: sim.Config{Total: 24 * gib, Used: 2 * gib, Name: "mine"}}},
		{"sim:1G,context=500MiB,vmm=false,fail=3", open.Spec{Sim: sim.Config{Total: gib, Context: 500 << 20, NoPages: true, Faults: sim.Faults{FailAt: 3}, Name: "sim:1G,context=500MiB,vmm=false,fail=3"}}},
		{"cuda:0", open.Spec{Kind: open.CUDA}},
		{"cuda:12", open.Spec{Kind: open.CUDA, Index: 12}},
		{"sim@/tmp/a gpu", open.Spec{Kind: open.Shared, File: "/tmp/a gpu", All: true}},
		{"sim@gpu,device=2", open.Spec{Kind: open.Shared, File: "gpu", Index: 2}},
		{"sim@gpu,device=0,fail=3,slow=0:1ms", open.Spec{Kind: open.Shared, File: "gpu", Sim: sim.Config{Faults: sim.Faults{FailAt: 3, Slow: 1e6}}}},
		{"sim@gpu,total=24G,create", open.Spec{Kind: open.Shared, File: "gpu", All: true, Create: []sim.Config{{Total: 24 * gib}}}},
		{"sim@gpu,create,used=1G,total=24G/8G", open.Spec{Kind: open.Shared, File: "gpu", All: true,
			Create: []sim.Config{{Total: 24 * gib, Used: gib}, {Total: 8 * gib, Used: gib}}}},
		{"sim@gpu,create,name=mine,total=24G", open.Spec{Kind: open.Shared, File: "gpu", All: true, Create: []sim.Config{{Total: 24 * gib, Name: "mine"}}}},
	} {
		got, err := open.Parse(tc.text)
		if err != nil {
			t.Errorf("Parse(%q): %v", tc.text, err)
			continue
		}
		tc.want.Text = tc.text
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("Parse(%q) differs (-want +got):\n%s", tc.text, diff)
		}
	}
}

func TestParseErrors(t *testing.T) {
	const form = "want cuda:N, sim:SIZE[,key=value...] or sim@FILE"
	const number = "want cuda:N with the number of the GPU"
	for _, tc := range []struct{ name, text, want string }{
		{"no number", "cuda:", number},
		{"no such number", "cuda:-1", number},
		{"a number with a zero", "cuda:00", number},
		{"something else", "cuda:all", number},
		{"no file", "sim@", "the name of a file"},
		{"no file but keys", "sim@,total=1G,create", "the name of a file"},
		{"create what", "sim@gpu,create", "create needs total=SIZE"},
		{"create with a value", "sim@gpu,create=yes,total=1G", "create takes no value"},
		{"create one of them", "sim@gpu,create,total=1G,device=1", "leave device=1 out"},
		{"total of what is there", "sim@gpu,total=1G", "total is for a new file"},
		{"name of what is there", "sim@gpu,name=x", `unknown key "name"; known for a device that is there are device, fail`},
		{"key of a new file", "sim@gpu,create,total=1G,colour=red", `unknown key "colour"`},
		{"bad total", "sim@gpu,create,total=1G/1x", `size "1x"`},
		{"used by more than there is", "sim@gpu,create,total=4G/1G,used=2G", "more than the device's 1 GiB"},
		{"twice", "sim@gpu,total=1G,total=2G,create", "total is given twice"},
		{"device", "sim@gpu,device=one", `"one" is no number of a device`},
		{"fault", "sim@gpu,fail=x", "fail"},
		{"empty", "", form},
		{"no kind", "no device", "no card is known"},
		{"another kind", "tpu:0", form},
		{"kind alone", "sim", "(other forms: cuda:N, sim:SIZE[,key=value...], sim@FILE)"},
		{"upper case", "SIM:80GiB", form},
		{"no size", "sim:", `size ""`},
		{"bad size", "sim:1lots", `size "1lots"`},
		{"zero", "sim:0", "a device of 0 bytes"},
		{"too much used", "sim:4GiB,used=3GiB,display=2GiB", "used 3 GiB and display 2 GiB are more than the device's 4 GiB"},
		{"key", "sim:4GiB,colour=red", `unknown key "colour"`},
		{"line break", "cuda:0\n", number},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec, err := open.Parse(tc.text)
			if err == nil {
				t.Fatalf("Parse(%q) = %+v and no error", tc.text, spec)
			}
			if s := err.Error(); !strings.Contains(s, tc.want) || strings.Contains(s, "\n") {
				t.Errorf("Parse(%q): %q is not one line with %q", tc.text, s, tc.want)
			}
		})
	}
}

// TestChoose: the flag, else the environment, else the default with a note.
func TestChoose(t *testing.T) {
	for _, tc := range []struct {
		name, flag string
		env        map[string]string
		want       string // Spec.Text
		err        string // what the error contains
		note       bool
	}{
		{name: "nothing", want: open.Default, note: true},
		{name: "empty variable", env: map[string]string{open.EnvVar: ""}, want: open.Default, note: true},
		{name: "variable", env: map[string]string{open.EnvVar: "sim:24GiB"}, want: "sim:24GiB"},
		{name: "flag", flag: "sim:8GiB", want: "sim:8GiB"},
		{name: "flag before variable", flag: "sim:8GiB", env: map[string]string{open.EnvVar: "sim:24GiB"}, want: "sim:8GiB"},
		{name: "flag before bad variable", flag: "sim:8GiB", env: map[string]string{open.EnvVar: "nonsense"}, want: "sim:8GiB"},
		{name: "bad flag", flag: "nonsense", env: map[string]string{open.EnvVar: "sim:24GiB"}, err: `device "nonsense"`},
		{name: "bad variable", env: map[string]string{open.EnvVar: "nonsense"}, err: `GPUMEM_DEVICE: device "nonsense"`},
		{name: "other variables", env: map[string]string{"DEVICE": "nonsense"}, want: open.Default, note: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec, note, err := open.Choose(tc.flag, func(key string) (string, bool) {
				v, ok := tc.env[key]
				return v, ok
			}, false)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) || note != "" {
					t.Errorf("error %v and note %q, want %q and none", err, note, tc.err)
				}
				return
			}
			if err != nil || spec.Text != tc.want {
				t.Fatalf("%q, %v; want %q", spec.Text, err, tc.want)
			}
			if (note != "") != tc.note {
				t.Errorf("note %q", note)
			}
			for _, word := range []string{"simulated", open.Default, "--device", "$" + open.EnvVar} {
				if tc.note && (!strings.Contains(note, word) || strings.Contains(note, "\n")) {
					t.Errorf("note %q is not one line with %q", note, word)
				}
			}
		})
	}
}

func TestDevice(t *testing.T) {
	spec, err := open.Parse("sim:4GiB,granularity=1,used=1GiB,display=512MiB,cc=8.6")
	if err != nil {
		t.Fatal(err)
	}
	d, err := spec.Device()
	if err != nil {
		t.Fatal(err)
	}
	want := device.Info{
		Name: spec.Text, Total: 4 << 30, Granularity: 1, CCMajor: 8, CCMinor: 6,
		Display: true, HasPages: true, Page: 2 << 20, HasPools: true, HasManaged: true, Oversubscribes: true,
		Simulated: true, Base: sim.Base,
	}
	if diff := cmp.Diff(want, d.Info()); diff != "" {
		t.Errorf("Info differs (-want +got):\n%s", diff)
	}
	if free, total, err := d.MemInfo(); free != 5<<29 || total != 4<<30 || err != nil {
		t.Errorf("MemInfo() = %d, %d, %v", free, total, err)
	}
	// Each call makes another device.
	if _, err := d.Alloc(1 << 30); err != nil {
		t.Fatal(err)
	}
	if d, err = spec.Device(); err != nil {
		t.Fatal(err)
	}
	if free, _, _ := d.MemInfo(); free != 5<<29 {
		t.Errorf("a second device has %d bytes free", free)
	}
}

func TestWithTotal(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		total      uint64
		wantName   string
		wantErr    string
	}{
		{"larger", "sim:4GiB", 6 << 30, "sim:6GiB", ""},
		{"smaller", "sim:4GiB,used=1GiB", 2 << 30, "sim:2GiB", ""},
		{"named", "sim:4GiB,name=mine", 2 << 30, "mine", ""},
		{"just what others hold", "sim:4GiB,used=1GiB", 1 << 30, "sim:1GiB", ""},
		{"less than others hold", "sim:4GiB,used=1GiB", 1<<30 - 1, "", "used 1 GiB"},
		{"nothing", "sim:4GiB", 0, "", "0 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec, err := open.Parse(tc.text)
			if err != nil {
				t.Fatal(err)
			}
			d, err := spec.WithTotal(tc.total)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("error %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if info := d.Info(); info.Total != tc.total || info.Name != tc.wantName {
				t.Errorf("%d bytes and called %q, want %d and %q", info.Total, info.Name, tc.total, tc.wantName)
			}
			free, _, _ := d.MemInfo()
			if free != tc.total-spec.Sim.Used {
				t.Errorf("%d bytes free", free)
			}
			if _, err := d.Alloc(free + 1); !errors.Is(err, device.ErrOutOfMemory) {
				t.Errorf("one byte more than is free: %v", err)
			}
			if spec.Sim.Total != 4<<30 {
				t.Errorf("the words' own total became %d", spec.Sim.Total)
			}
		})
	}
}

// FuzzParse: an error is one line that names the words; a device that parses
// can be made.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "sim", "sim:", "sim:80GiB", "sim:1,granularity=1", "sim@x", "cuda:0", "sim:4G,used=5G", "sim:1G\n", "sim:1G,name=\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		spec, err := open.Parse(s)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("Parse(%q): the error has several lines: %q", s, err)
			}
			return
		}
		if spec.Kind != open.Private { // the rest is not in the words
			return
		}
		d, err := spec.Device()
		if err != nil || spec.Text != s || d.Info().Total == 0 || d.Info().Name == "" {
			t.Errorf("Parse(%q) = %+v: %v", s, spec, err)
		}
	})
}

func TestKey(t *testing.T) {
	sim := device.Status{Info: device.Info{Simulated: true, Ordinal: 1}}
	for words, want := range map[string]string{
		"sim@/nosuch/gpu,device=1": "sim@/nosuch/gpu,device=1",
		"sim:24GiB":                "",
	} {
		if got := (open.Listed{Words: words, Status: sim}).Key(); got != want {
			t.Errorf("%s: %s, want %s", words, got, want)
		}
	}
	if got := (open.Listed{Status: device.Status{Info: device.Info{UUID: "GPU-1"}}}).Key(); got != "GPU-1" {
		t.Error(got)
	}
	if got := (open.Listed{Status: device.Status{Info: device.Info{Ordinal: 1}}}).Key(); got != "cuda:1" {
		t.Error(got)
	}
}

func TestCards(t *testing.T) {
	for _, tc := range []struct {
		words, one string
		n          int
		bad        bool
	}{
		{words: "sim:24GiB", one: "sim:24GiB", n: 1},
		{words: "cuda:0", one: "cuda:0", n: 1},
		{words: "sim:24GiB*4", one: "sim:24GiB", n: 4},
		{words: "sim:24GiB*8,used=2GiB", one: "sim:24GiB,used=2GiB", n: 8},
		{words: "sim:24GiB*0", bad: true},
		{words: "sim:24GiB*16", one: "sim:24GiB", n: 16},
		{words: "sim:24GiB*17", bad: true},
		{words: "sim:24GiB*x", bad: true},
		{words: "sim:24GiB*", bad: true},
		{words: "cuda:0*2", bad: true},
		{words: "sim@gpus*2", bad: true},
		{words: "T4*2", one: "T4", n: 2},
		{words: "24GB*2,cc=8.0", one: "24GB,cc=8.0", n: 2},
	} {
		t.Run(tc.words, func(t *testing.T) {
			one, n, err := open.Cards(tc.words)
			if one != tc.one || n != tc.n || (err != nil) != tc.bad {
				t.Errorf("%q, %d, %v", one, n, err)
			}
		})
	}
}

// TestParseCard: a card or a size alone is the simulated GPU of that name.
func TestParseCard(t *testing.T) {
	for _, words := range []string{"T4", "24GiB", "24GB", "a100-40gb", "T4,used=2GiB"} {
		short, err := open.Parse(words)
		long, longErr := open.Parse("sim:" + words)
		if diff := cmp.Diff(long, short); diff != "" || err != nil || longErr != nil {
			t.Errorf("%s: %v, %v; sim: before it (-), left out (+):\n%s", words, err, longErr, diff)
		}
	}
	for _, words := range []string{"T5000", "24", "4090", "", ",used=2GiB", "gpu0"} {
		if spec, err := open.Parse(words); err == nil {
			t.Errorf("%q is %+v; want an error", words, spec)
		}
	}
}

// TestSimulated: what people write for simulated GPUs, and of what is none what to write, without forms that are
// no simulated GPU.
func TestSimulated(t *testing.T) {
	for _, tc := range []struct {
		words string
		n     int
		wrong string // the whole error
	}{
		{words: "24GiB", n: 1},
		{words: "sim:T4*4", n: 4},
		{words: "T4 * 2", n: 2},
		{words: "T4*2,used=1GiB", n: 2},
		{words: "A6000", n: 1},
		{words: "sim@/tmp/gpu", n: 1},
		{words: "T5", wrong: `no card is known by the name "T5"; did you mean T4?`},
		{words: "24", wrong: "24 has no unit; write 24GiB"},
		{words: "24*2", wrong: "24 has no unit; write 24GiB"},
		{words: "80000", wrong: "80000 has no unit; write 80000MiB"},
		{words: "4090", wrong: `write "RTX 4090", or 4090MiB for a GPU of that size`},
		{words: "4070ti", wrong: `write "RTX 4070TI"`},
		{words: "2xT4", wrong: `"2xT4": write T4*2`},
		{words: "2 x RTX 4090", wrong: `"2 x RTX 4090": write RTX 4090*2`},
		{words: "8*24GiB", wrong: `"8*24GiB": write 24GiB*8`},
		{words: "T4x2", wrong: `"T4x2": write T4*2`},
		{words: "A100x2", wrong: `"A100x2": write A100*2`},
		{words: "T4,count=2", wrong: `"T4,count=2": write T4*2`},
		{words: "H100,H100", wrong: `"H100,H100": write H100*2`},
		{words: "RTX 4090, RTX 4090", wrong: `"RTX 4090, RTX 4090": write RTX 4090*2`},
		{words: "T4,L4", wrong: `"L4" is not key=value`},
		{words: "T4*17", wrong: `"T4*17": want a size or a card and *N with N from 1 to 16, such as 24GiB*4 or T4*2`},
		{words: "T4,used=x", wrong: `used: size "x": want a number of bytes, at least 0, with or without a unit, such as 512, 4KiB, 1.5GiB or 80G`},
		{words: "cuda:0", wrong: `"cuda:0": want a size, a card or a file, such as 24GiB, T4, T4*2 or sim@FILE`},
		{words: "", wrong: `"": want a size, a card or a file, such as 24GiB, T4, T4*2 or sim@FILE`},
	} {
		spec, n, err := open.Simulated(tc.words)
		switch {
		case tc.wrong != "" && (err == nil || err.Error() != tc.wrong):
			t.Errorf("%s: %+v, %v; want %s", tc.words, spec, err, tc.wrong)
		case tc.wrong == "" && (err != nil || n != tc.n || spec.Kind == open.CUDA):
			t.Errorf("%s: %+v, %d, %v; want %d", tc.words, spec, n, err, tc.n)
		}
	}
}
