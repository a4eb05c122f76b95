// XLA_FLAGS as XLA reads it (xla/parse_flags_from_env.cc and
// xla/tsl/util/command_line_flags.cc), with the flags that each release knows
// (xlaflags.txt, asked of the plugins themselves).

package frameworks

import (
	"cmp"
	_ "embed" // xlaflags.txt
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"gpumem/internal/spelling"
	"gpumem/policy"
	"gpumem/policy/internal/literal"
)

// The XLA flags that have to do with memory.
const (
	spatialFlag = "xla_gpu_enable_allocator_spatial_partitioning" // bool, default true since JAX 0.11.0
	updateFlag  = "xla_gpu_command_buffer_update_mode"            // other than ALWAYS_UPDATE needs vmm
	growFlag    = "xla_gpu_memory_fraction_policy"                // text; in no release yet
	pinFlag     = "xla_gpu_enable_nccl_user_buffers_in_default_space"
	noPagesFlag = "xla_gpu_experimental_vmm_disabled" // bool: memory of cuMemAlloc, not of pages
)

const flagSpace = " \t\r\n"

// flagsEnd is what becomes of a program whose flags XLA refuses.
const flagsEnd = "the process aborts at the first operation, on the CPU too"

// xlaFlags are the flags of an environment, as far as the release accepts them:
// the last value of each name.
type xlaFlags map[string]string

// flags reads XLA_FLAGS. The error is XLA's own.
func (n *notes) flags(v policy.Version) (xlaFlags, *policy.SettingError) {
	text := n.Env.Get(xlaFlagsVar)
	if text == "" {
		return nil, nil
	}
	if !strings.HasPrefix(strings.TrimLeft(text, flagSpace), "-") {
		content, err := n.Env.ReadFile(text)
		if err != nil {
			return nil, noFlagFile(text)
		}
		n.Effect(xlaFlagsVar, "flags are read from the file of this name")
		text = content
	}
	args, unread := flagArgs(text)
	if unread != "" {
		n.Warn(xlaFlagsVar, "", "%s and all that follows is not read: each flag begins with --", literal.PyRepr(literal.FirstRunes(unread, 60)))
	}
	return n.parseFlags(args, v)
}

// noFlagFile returns the error of a value that XLA takes for a file's name.
func noFlagFile(text string) *policy.SettingError {
	then := flagsEnd
	inside := strings.Trim(strings.TrimSpace(text), `"'`)
	switch {
	case inside != strings.TrimSpace(text):
		then += "; write the value without quotes in it"
	case strings.HasPrefix(inside, "xla_"):
		then += "; each flag begins with --"
	}
	return &policy.SettingError{Name: xlaFlagsVar, Text: `Could not open file "` + text + `" to read flags for environment variable "XLA_FLAGS". (We assumed "` + text + `" was a file name because it did not start with a "--".)`, Then: then}
}

// flagArgs cuts a text into arguments (ParseArgvFromString). It ends at what does
// not begin with a dash, which is unread.
func flagArgs(text string) (args []string, unread string) {
	for {
		text = strings.TrimLeft(text, flagSpace)
		if !strings.HasPrefix(text, "-") {
			return args, text
		}
		name := len(text) - len(strings.TrimLeftFunc(text, func(r rune) bool {
			return r == '-' || r == '_' || r < 0x80 && ('0' <= r && r <= '9' || r|0x20 >= 'a' && r|0x20 <= 'z')
		}))
		var arg string
		if len(text) > name+1 && text[name] == '=' && (text[name+1] == '"' || text[name+1] == '\'') {
			value, rest := unquoteFlag(text[name+1:])
			arg, text = text[:name+1]+value, rest
		} else {
			end := strings.IndexAny(text[name:], flagSpace)
			if end < 0 {
				end = len(text) - name
			}
			arg, text = text[:name+end], text[name+end:]
		}
		arg, _, _ = strings.Cut(arg, "\x00") // it becomes a C string
		args = append(args, arg)
	}
}

// unquoteFlag reads the value at the beginning of text, which is a quote. Between
// double quotes a backslash stands before what is meant.
func unquoteFlag(text string) (value, rest string) {
	var b strings.Builder
	quote := text[0]
	i := 1
	for ; i < len(text) && text[i] != quote; i++ {
		if quote == '"' && text[i] == '\\' && i+1 < len(text) {
			i++
		}
		b.WriteByte(text[i])
	}
	return b.String(), text[min(i+1, len(text)):]
}

// parseFlags gives each argument to the release (tsl::Flags::Parse). Values come
// before names: one that is refused ends the process even beside unknown flags.
func (n *notes) parseFlags(args []string, v policy.Version) (xlaFlags, *policy.SettingError) {
	flags := xlaFlags{}
	var unknown, unsure []string
	var refused string // the line that XLA logs before it ends
	bad := ""          // the flag whose value is refused
	for i, arg := range args {
		if arg == "--" {
			unknown = append(unknown, args[i:]...)
			break
		}
		name, value, has := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if !strings.HasPrefix(arg, "--") {
			unknown = append(unknown, arg)
			continue
		}
		kind, known := flagKind(name, v)
		switch {
		case known == flagUnsure:
			unsure = append(unsure, "--"+name)
			continue
		case known == flagUnknown, kind != "bool" && !has:
			unknown = append(unknown, arg)
			continue
		case !flagTakes(kind, value, has):
			if bad == "" {
				bad = name
				if refused = "Couldn't interpret value " + value + " for flag " + name + "."; strings.HasPrefix(kind, "word") {
					refused = ""
				}
			}
			continue
		}
		if kind == "bool" && !has {
			value = "true"
		}
		flags[name] = value
	}
	switch {
	case bad != "" || len(unknown) > 0 && unknown[0] == "--help":
		then := flagsEnd
		if bad != "" {
			then += "; the value of --" + bad + " is not one that it takes"
		}
		return nil, &policy.SettingError{Name: xlaFlagsVar, Text: strings.TrimLeft(refused+" "+flagParsing, " "), Then: then}
	case len(unknown) > 0:
		plural := ""
		if len(unknown) > 1 || v.Less(flagSingular) {
			plural = "s"
		}
		return nil, &policy.SettingError{Name: xlaFlagsVar, Text: "Unknown flag" + plural + " in XLA_FLAGS: " + strings.Join(unknown, " "), Then: flagsEnd + flagHint(unknown[0], v)}
	}
	for _, name := range unsure {
		n.Warn(xlaFlagsVar, "", "whether this release knows %s is not known here; a flag that it does not know ends the process", name)
	}
	return flags, nil
}

// flagSingular is the first release whose error calls one unknown flag a flag: before, it spoke
// of flags (the CPU's jaxlib of 0.4.36 to 0.6.0, asked).
var flagSingular = policy.Version{0, 5, 1}

// flagParsing is how XLA ends over a flag's value.
const flagParsing = "Check failed: tsl::Flags::Parse(&env_argv->argc, env_argv->argv.data(), flag_list) Flag parsing failed."

// flagHint returns what may have been meant by an argument that is no flag.
func flagHint(arg string, v policy.Version) string {
	name, _, has := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	if kind, known := flagKind(name, v); known == flagKnown {
		if strings.HasPrefix(arg, "--"+name) && !has && kind != "bool" {
			return "; a value belongs to it: --" + name + "=..."
		}
		return "; --" + name + " may be meant"
	}
	table := flagTable()
	if spans := table.flags[name]; spans != nil {
		last := spans[len(spans)-1].last
		if first := spans[0].first; first == policy.Next {
			return "; no release knows it yet"
		} else if v.Less(first) {
			return "; JAX " + first.String() + " and later know it"
		} else if last.Less(v) {
			return "; JAX " + last.String() + " was the last to know it"
		}
	}
	var names []string
	for name := range table.flags {
		if _, known := flagKind(name, v); known == flagKnown {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if near := spelling.Nearest(name, names); near != "" {
		return "; --" + near + " may be meant"
	}
	return ""
}

// flagTakes reports whether a flag of a kind, or of one of two kinds, takes a value.
func flagTakes(kind, value string, has bool) bool {
	if before, after, two := strings.Cut(kind, "|"); two {
		return flagTakes(before, value, has) || flagTakes(after, value, has)
	}
	kind, words, listed := strings.Cut(kind, ":")
	switch kind {
	case "bool":
		_, ok := literal.CBool(value)
		return ok || !has
	case "int32":
		n, ok := literal.CInt(value)
		return ok && n == int64(int32(n))
	case "int64":
		_, ok := literal.CInt(value)
		return ok
	case "float":
		return literal.CReal.FindString(value) != "" && strings.TrimRight(literal.CReal.ReplaceAllString(value, ""), " \t\n\v\f\r") == ""
	case "word":
		return !listed || slices.ContainsFunc(strings.Split(words, ","), func(w string) bool {
			return w == value || w == strings.ToLower(w) && strings.EqualFold(w, value)
		})
	}
	return true
}

// on reports whether a truth value is given and true.
func (f xlaFlags) on(name string) bool {
	on, _ := literal.CBool(f[name])
	return on
}

// flagKnowledge is what is known of a flag in a release.
type flagKnowledge uint8

const (
	flagUnknown flagKnowledge = iota // the release does not know it
	flagKnown
	flagUnsure // the release was not asked, and its neighbours differ
)

// A flagSpan is a run of releases that were asked and know a flag.
type flagSpan struct {
	first, last policy.Version
	kind        string
}

type flagsTable struct {
	asked []policy.Version
	flags map[string][]flagSpan
}

//go:embed xlaflags.txt
var flagsText string

// flagTable is xlaflags.txt. A damaged table, which a test rules out, would know
// nothing: of every flag it would be unknown whether the release has it.
var flagTable = sync.OnceValue(func() flagsTable {
	t, _ := readFlagTable(flagsText)
	return t
})

// readFlagTable reads the format of xlaflags.txt. The error names the line, and
// no table comes with it.
func readFlagTable(text string) (flagsTable, error) {
	t := flagsTable{flags: map[string][]flagSpan{}}
	n := 0
	for line := range strings.Lines(text) {
		n++
		if releases, ok := strings.CutPrefix(line, "# Releases asked: "); ok {
			for _, word := range strings.Fields(releases) {
				v, err := policy.ParseVersion(word, "JAX", "0.4.30")
				if err != nil {
					return flagsTable{}, fmt.Errorf("xlaflags.txt:%d: %w", n, err)
				}
				t.asked = append(t.asked, v)
			}
		}
		if strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Fields(line)
		if len(words) < 4 || len(words)%3 != 1 {
			return flagsTable{}, fmt.Errorf("xlaflags.txt:%d: got %d words, want a flag, then first release, last release and values for each run", n, len(words))
		}
		for run := range slices.Chunk(words[1:], 3) {
			first, err1 := policy.ParseVersion(run[0], "JAX", "0.4.30")
			last, err2 := policy.ParseVersion(run[1], "JAX", "0.4.30")
			if err := errors.Join(err1, err2); err != nil {
				return flagsTable{}, fmt.Errorf("xlaflags.txt:%d: %w", n, err)
			}
			t.flags[words[0]] = append(t.flags[words[0]], flagSpan{first, last, run[2]})
		}
	}
	if len(t.asked) == 0 {
		return flagsTable{}, errors.New("xlaflags.txt: no line with the releases that were asked")
	}
	return t, nil
}

// flagKind returns what values a flag takes in a release, and whether the release
// knows it. A release that was not asked knows what both of its neighbours know.
func flagKind(name string, v policy.Version) (string, flagKnowledge) {
	t := flagTable()
	in := func(v policy.Version) string {
		for _, s := range t.flags[name] {
			if !v.Less(s.first) && !s.last.Less(v) {
				return s.kind
			}
		}
		return ""
	}
	i, exact := slices.BinarySearchFunc(t.asked, v, func(a, b policy.Version) int { return slices.Compare(a[:], b[:]) })
	var kinds []string
	switch {
	case exact:
		kinds = []string{in(v)}
	case len(t.asked) == 0:
		return "", flagUnsure
	case i == 0: // older than all: nothing is known of what it lacks
		return in(t.asked[0]), flagUnsure
	case i == len(t.asked): // newer than all: it may know more
		if kind := cmp.Or(in(v), in(t.asked[i-1])); kind != "" {
			return kind, flagKnown
		}
		return "", flagUnsure
	default:
		kinds = []string{in(t.asked[i-1]), in(t.asked[i])}
	}
	before, after := kinds[0], kinds[len(kinds)-1]
	switch {
	case before == "" && after == "":
		return "", flagUnknown
	case before == "" || after == "":
		return "", flagUnsure
	case before != after: // the values that it takes changed
		return before + "|" + after, flagKnown
	}
	return before, flagKnown
}
