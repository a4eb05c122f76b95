// Tests of XLA_FLAGS: how the text is cut, and what is known of flags.

package frameworks

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpumem/policy"
)

// TestFlagArgs: arguments as the plugin of JAX 0.12.0.1 had them, asked by hand.
func TestFlagArgs(t *testing.T) {
	for _, tc := range []struct {
		text, unread string
		args         []string
	}{
		{"", "", nil},
		{"--a", "", []string{"--a"}},
		{" \t--a=1\n--b\r\n", "", []string{"--a=1", "--b"}},
		{"--a bogus --b", "bogus --b", []string{"--a"}},
		{`--a="x y\" z" --q='x\y'`, "", []string{`--a=x y" z`, `--q=x\y`}},
		{`--a='true'--b`, "", []string{"--a=true", "--b"}},
		{`--a='true'x --b`, "x --b", []string{"--a=true"}},
		{`--a="open`, "", []string{"--a=open"}},
		{`--a=1,--b`, "", []string{"--a=1,--b"}},
		{`--a= "1"`, `"1"`, []string{"--a="}},
		{"--a\v--b", "", []string{"--a\v--b"}},
		{"-", "", []string{"-"}},
		{"-- --a", "", []string{"--", "--a"}},
		{"--a=é --b", "", []string{"--a=é", "--b"}},
	} {
		args, unread := flagArgs(tc.text)
		if !slices.Equal(args, tc.args) || unread != tc.unread {
			t.Errorf("%q: %q, unread %q; want %q, unread %q", tc.text, args, unread, tc.args, tc.unread)
		}
	}
}

func FuzzFlagArgs(f *testing.F) {
	f.Add(`--a="x y\" z" --q='x\y' -b c`)
	f.Add("--xla_gpu_autotune_level=2\x00 --")
	f.Fuzz(func(t *testing.T, text string) {
		args, unread := flagArgs(text)
		for _, a := range args {
			if !strings.HasPrefix(a, "-") {
				t.Errorf("%q: argument %q", text, a)
			}
		}
		if !strings.HasSuffix(text, unread) || strings.HasPrefix(unread, "-") {
			t.Errorf("%q: unread %q", text, unread)
		}
		n := newNotes(policy.Environ([]string{xlaFlagsVar + "=" + text}))
		n.parseFlags(args, newestJAX)
	})
}

// TestFlagBetweenReleasesAsked: between two releases whose kinds of a flag differ a value is
// refused that both refuse. JAX 0.8.1 itself ends over the first.
func TestFlagBetweenReleasesAsked(t *testing.T) {
	for value, refused := range map[string]bool{"x": true, "4": false, "4294967296": false} {
		n := newNotes(policy.Environ([]string{xlaFlagsVar + "=--xla_gpu_autotune_level=" + value}))
		if _, err := n.flags(policy.Version{0, 8, 1}); (err != nil) != refused {
			t.Errorf("%s: %v", value, err)
		}
	}
}

// TestFlagValues: what the parsers of values take, as the plugins said.
func TestFlagValues(t *testing.T) {
	for _, tc := range []struct {
		kind       string
		taken, not []string
	}{
		{"bool", []string{"true", "True", "TRUE", "fAlse", "1", "0"}, []string{"", "yes", "no", "t", "f", "on", "off", "2", " true"}},
		{"int32", []string{"3", "+3", "-3", " 3", "3 ", "03"}, []string{"", "x", "0x3", "3abc", "3.", "1.5", "99999999999"}},
		{"int64", []string{"99999999999"}, []string{"1.5", "99999999999999999999"}},
		{"float", []string{"1.5", " 1.5 ", "nan", "inf", "1e400", "0x1p3", "+1.5"}, []string{"", "x", "1.5f", "1_5"}},
		{"text", []string{"", "anything"}, nil},
		{"word", []string{"", "not known here"}, nil},
		{"word:off,on,LATER", []string{"on", "ON", "LATER"}, []string{"later", "x", ""}},
	} {
		for _, v := range tc.taken {
			if !flagTakes(tc.kind, v, true) {
				t.Errorf("%s refuses %q", tc.kind, v)
			}
		}
		for _, v := range tc.not {
			if flagTakes(tc.kind, v, true) {
				t.Errorf("%s takes %q", tc.kind, v)
			}
		}
	}
}

// TestFlagKnowledge: between two releases that were asked, and beyond them, a
// flag is known, not known, or nobody can tell.
func TestFlagKnowledge(t *testing.T) {
	for _, tc := range []struct {
		name, release string
		want          flagKnowledge
	}{
		{"xla_cpu_enable_fast_math", "0.12.0.1", flagKnown},
		{"xla_no_such_flag", "0.12.0.1", flagUnknown},
		{noPagesFlag, "0.11.2", flagUnknown},
		{noPagesFlag, "0.12.0.1", flagKnown},
		{"xla_cpu_enable_fast_math", "0.13", flagKnown},
		{"xla_no_such_flag", "0.13", flagUnsure}, // it may be new
		{"xla_no_such_flag", "0.4.20", flagUnsure},
		{"xla_no_such_flag", "0.10.0.1", flagUnknown}, // not asked; both neighbours lack it
	} {
		v, err := policy.ParseVersion(tc.release, "", "")
		if err != nil {
			t.Fatal(err)
		}
		if _, got := flagKind(tc.name, v); got != tc.want {
			t.Errorf("%s in %s: %v; want %v", tc.name, tc.release, got, tc.want)
		}
	}
}

// TestReadFlagTable: the embedded table is sound, and a damaged one is an error
// that names its line.
func TestReadFlagTable(t *testing.T) {
	table, err := readFlagTable(flagsText)
	if err != nil || len(table.asked) < 15 || len(table.flags) < 400 {
		t.Errorf("%d releases, %d flags, %v", len(table.asked), len(table.flags), err)
	}
	if !slices.IsSortedFunc(table.asked, func(a, b policy.Version) int { return slices.Compare(a[:], b[:]) }) {
		t.Error("the releases are not in order")
	}
	const head = "# Releases asked: 0.4.31 0.12.0\n"
	for text, want := range map[string]string{
		"":                                     "no line with the releases",
		"xla_a 0.4.31 0.12.0 bool\n":           "no line with the releases",
		"# Releases asked: 0.4.31 soon\n":      `xlaflags.txt:1: "soon" is not a JAX release`,
		head + "xla_a\n":                       "xlaflags.txt:2: got 1 words",
		head + "xla_a 0.4.31 0.12.0\n":         "xlaflags.txt:2: got 3 words",
		head + "xla_a first 0.12.0 bool\n":     `xlaflags.txt:2: "first" is not a JAX release`,
		head + "# x\nxla_a 0.4.31 last bool\n": `xlaflags.txt:3: "last" is not a JAX release`,
		head + "\n":                            "xlaflags.txt:2: got 0 words",
	} {
		if got, err := readFlagTable(text); err == nil || !strings.Contains(err.Error(), want) || got.flags != nil {
			t.Errorf("%q: %v, %v; want %q", text, got, err, want)
		}
	}
}

// TestFlagErrors: what ends the process, in XLA's words, and what only seems to
// be read.
func TestFlagErrors(t *testing.T) {
	for _, tc := range []struct {
		name, text, want, then, warn string
	}{
		{"unknown", "--xla_bogus=1", "Unknown flag in XLA_FLAGS: --xla_bogus=1", "aborts", ""},
		{"two unknown", "--xla_bogus --nor_this", "Unknown flags in XLA_FLAGS: --xla_bogus --nor_this", "aborts", ""},
		{"misspelt", "--xla_gpu_autotune_levl=2", "Unknown flag", "--xla_gpu_autotune_level may be meant", ""},
		{"one dash", "-xla_gpu_autotune_level=2", "Unknown flag in XLA_FLAGS: -xla_gpu_autotune_level=2", "--xla_gpu_autotune_level may be meant", ""},
		{"no value", "--xla_gpu_autotune_level", "Unknown flag in XLA_FLAGS: --xla_gpu_autotune_level", "a value belongs to it", ""},
		{"bad value", "--xla_gpu_autotune_level=two", "Couldn't interpret value two for flag xla_gpu_autotune_level. " + flagParsing, "aborts", ""},
		{"value before name", "--xla_bogus --xla_gpu_autotune_level=two", "Couldn't interpret value two", "aborts", ""},
		{"help", "--help", flagParsing, "aborts", ""},
		{"quotes", `"--xla_gpu_autotune_level=2"`, `Could not open file ""--xla_gpu_autotune_level=2"" to read flags`, "without quotes", ""},
		{"no dashes", "xla_gpu_autotune_level=2", `Could not open file "xla_gpu_autotune_level=2"`, "each flag begins with --", ""},
		{"a blank", " ", `Could not open file " "`, "aborts", ""},
		{"a stop", "--xla_gpu_autotune_level=2 xla_bogus --nor_this", "", "", "is not read"},
		{"a good file", "good.flags", "", "", ""},
		{"a bad file", "bad.flags", "Couldn't interpret value two", "aborts", ""},
		{"a file with a comment", "comment.flags", "", "", "is not read"},
		{"a directory", ".", `Could not open file "."`, "aborts", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			env := policy.Environ([]string{xlaFlagsVar + "=" + tc.text}).In("", filepath.FromSlash("testdata/xla/files"))
			a, e := readAs(t, "jax", "0.12.0.1", env, policy.Device{Total: 1 << 30, Free: 1 << 30})
			if tc.want == "" && e.Text != "" || !strings.Contains(e.Text, tc.want) || !strings.Contains(e.Then, tc.then) {
				t.Errorf("%+v", e)
			}
			if warned := slices.ContainsFunc(a.Warnings, func(w policy.Warning) bool { return tc.warn != "" && strings.Contains(w.Text, tc.warn) }); warned != (tc.warn != "") {
				t.Errorf("warnings %v", a.Warnings)
			}
		})
	}
}

// TestNoPages: JAX refuses a GPU without virtual memory management; since 0.12.0
// a flag does without.
func TestNoPages(t *testing.T) {
	for _, tc := range []struct {
		release, flags string
		refused        bool
		fix            string
	}{
		{"0.9.2", "", false, ""},
		{"0.11.2", "", true, ""},
		{"0.12.0.1", "", true, "XLA_FLAGS=--xla_gpu_experimental_vmm_disabled=true"},
		{"0.12.0.1", "XLA_FLAGS=--xla_gpu_experimental_vmm_disabled=true", false, ""},
		{"0.12.0.1", "XLA_FLAGS=--xla_gpu_experimental_vmm_disabled=false", true, ""},
		{"0.12.0.1", "JAX_PLATFORMS=cpu", false, ""},
	} {
		_, e := readAs(t, "jax", tc.release, policy.Environ([]string{tc.flags}), policy.Device{Total: 1 << 30, Free: 1 << 30, NoPages: true})
		refused := e.Name == "device"
		if refused != tc.refused || refused && e.Fix != tc.fix {
			t.Errorf("%s %s: %+v", tc.release, tc.flags, e)
		}
	}
}
