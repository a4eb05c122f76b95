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
	for _, tc := range []struct {
		text string
		want sim.Config
	}{
		{"sim:80GiB", sim.Config{Total: 80 << 30, Name: "sim:80GiB"}},
		{"sim:24G,used=2G,name=mine", sim.Config{Total: 24 << 30, Used: 2 << 30, Name: "mine"}},
	} {
		got, err := open.Parse(tc.text)
		if err != nil {
			t.Errorf("Parse(%q): %v", tc.text, err)
			continue
		}
		if diff := cmp.Diff(open.Spec{Text: tc.text, Sim: tc.want}, got); diff != "" {
			t.Errorf("Parse(%q) differs (-want +got):\n%s", tc.text, diff)
		}
	}
}

func TestParseErrors(t *testing.T) {
	const later = "this version has private simulated GPUs only; use sim:SIZE"
	const form = "want sim:SIZE[,granularity=SIZE]"
	for _, tc := range []struct{ name, text, want string }{
		{"real GPU", "cuda:0", later},
		{"shared", "sim@/tmp/gpu", later},
		{"empty", "", form},
		{"no kind", "80GiB", form},
		{"another kind", "tpu:0", form},
		{"kind alone", "sim", form},
		{"upper case", "SIM:80GiB", form},
		{"no size", "sim:", `size ""`},
		{"bad size", "sim:lots", `size "lots"`},
		{"zero", "sim:0", "a device of 0 bytes"},
		{"too much used", "sim:4GiB,used=3GiB,display=2GiB", "used 3 GiB and display 2 GiB are more than the device's 4 GiB"},
		{"key", "sim:4GiB,colour=red", `unknown key "colour"`},
		{"line break", "cuda:0\n", later},
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
			})
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
		Display: true, Simulated: true, Base: sim.Base,
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
		d, err := spec.Device()
		if err != nil || spec.Text != s || d.Info().Total == 0 || d.Info().Name == "" {
			t.Errorf("Parse(%q) = %+v: %v", s, spec, err)
		}
	})
}
