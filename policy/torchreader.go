// The list of settings in PyTorch's variables, as its releases read it.

package policy

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A torchKey is one that a release knows.
type torchKey struct {
	name   string
	common bool // for GPUs of all makers
	read   torchRead
}

// torchRead takes a value that begins with the token i, and says which token
// was its last.
type torchRead func(p *torchReader, key string, i int) (int, error)

func (r *torchRelease) key(name string) (torchKey, bool) {
	i := slices.IndexFunc(r.keys, func(k torchKey) bool { return k.name == name })
	if i < 0 {
		return torchKey{}, false
	}
	return r.keys[i], true
}

// torchSince is the first release that knows a key.
func torchSince(key string) (version, bool) {
	for _, row := range torchReleases {
		r := at(torchReleases, row.version)
		if _, ok := r.key(key); ok {
			return row.version, true
		}
	}
	return version{}, false
}

// torchTarget is what a key sets: AMD's names are NVIDIA's here.
func torchTarget(key string) string { return strings.Replace(key, "_hip", "_cuda", 1) }

// torchSettings are what a list sets. A value is a uint64 (bytes, or a count),
// float64, bool or string, or the roundup for 1, 2, 4 ... 32768 MiB.
type torchSettings struct {
	values map[string]any // by torchTarget
	given  []string       // the keys as they come, also twice
	failed string         // the key whose value was refused
	odd    []string       // values of which PyTorch takes a part, or nothing
}

func (s *torchSettings) fraction() (float64, bool) {
	f, ok := s.values[torchFraction].(float64)
	return f, ok
}

// capped says whether the pool has a limit.
func (s *torchSettings) capped() bool {
	f, ok := s.fraction()
	return ok && f < 1
}

// A torchReader reads one list.
//
// Since 2.10 there are two: one for the settings that GPUs of all makers have
// in common, which takes the large segments' size first of all, and one for
// CUDA's own. Each passes over what is the other's.
type torchReader struct {
	r      *torchRelease
	own    bool // the second reader, for CUDA's own settings
	tokens []string
	loaded string // the backend, which was chosen when the libraries were loaded
	torchSettings
}

// torchRefused is an error in PyTorch's words, less places in its source.
func torchRefused(format string, args ...any) error { return fmt.Errorf(format, args...) }

// What PyTorch says of an index beyond the end.
var errTorchEnd = errors.New("i < config_.size() INTERNAL ASSERT FAILED, please report a bug to PyTorch. Index out of bounds in ConfigTokenizer")

// torchCrash stands for a segmentation fault, which has no words.
var errTorchCrash = errors.New("Segmentation fault")

func torchNoBracket(vector string) error {
	return torchRefused("i < %s.size() INTERNAL ASSERT FAILED, please report a bug to PyTorch. Expected closing bracket ']' in ConfigTokenizer but reached end of config", vector)
}

// parse reads a list. Where the release has two readers each may get another
// text.
func (r *torchRelease) parse(common, own, loaded string) (torchSettings, error) {
	if r.grammar == torchSplit {
		return r.parseSplit(own)
	}
	p := &torchReader{r: r, tokens: r.tokens(common), loaded: loaded, torchSettings: torchSettings{values: map[string]any{}}}
	if r.grammar == torchStrict {
		err := p.strict()
		return p.torchSettings, err
	}
	err := p.segments()
	if err == nil {
		err = p.loose()
	}
	if err == nil {
		p.own, p.tokens = true, r.tokens(own)
		err = p.loose()
	}
	return p.torchSettings, err
}

// take reads the value of a key, which begins with the token i.
func (p *torchReader) take(k torchKey, i int) (int, error) {
	p.given, p.failed = append(p.given, k.name), k.name
	i, err := k.read(p, torchTarget(k.name), i)
	if err == nil {
		p.failed = ""
	}
	return i, err
}

func (r *torchRelease) parseSplit(text string) (torchSettings, error) {
	p := &torchReader{r: r, torchSettings: torchSettings{values: map[string]any{}}}
	for _, option := range strings.FieldsFunc(text, func(c rune) bool { return c == ',' || isCSpace(c) }) {
		parts := torchColons.Split(option, -1)
		if parts[len(parts)-1] == "" {
			parts = parts[:len(parts)-1]
		}
		if len(parts) < 2 {
			p.odd = append(p.odd, option)
			continue
		}
		k, known := r.key(parts[0])
		if !known {
			p.failed = parts[0]
			return p.torchSettings, torchRefused("Unrecognized CachingAllocator option: %s", parts[0])
		}
		p.tokens = parts
		if _, err := p.take(k, 1); err != nil {
			return p.torchSettings, err
		}
	}
	return p.torchSettings, nil
}

var torchColons = regexp.MustCompile(":+")

// isCSpace is C's isspace.
func isCSpace(c rune) bool { return c == ' ' || '\t' <= c && c <= '\r' }

// tokens are the marks , : [ ] and what is between them, less blanks; until 2.9
// only the space is one.
func (r *torchRelease) tokens(text string) []string {
	var tokens []string
	var word []byte
	flush := func() {
		if len(word) > 0 {
			tokens, word = append(tokens, string(word)), nil
		}
	}
	for i := range len(text) {
		switch c := text[i]; {
		case strings.IndexByte(",:[]", c) >= 0:
			flush()
			tokens = append(tokens, string(c))
		case c == ' ', r.grammar == torchTwice && isCSpace(rune(c)):
		default:
			word = append(word, c)
		}
	}
	flush()
	return tokens
}

// strict is the reader of 2.0 to 2.9.
func (p *torchReader) strict() error {
	for i := 0; i < len(p.tokens); i++ {
		k, known := p.r.key(p.tokens[i])
		if !known {
			p.failed = p.tokens[i]
			return torchRefused("Unrecognized CachingAllocator option: %s", p.tokens[i])
		}
		err := p.mark(i+1, ":")
		if err == nil {
			i, err = p.take(k, i+2)
		}
		if i++; err == nil && i < len(p.tokens) {
			err = p.mark(i, ",")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mark wants a separator at i; since 2.10 any token will do.
func (p *torchReader) mark(i int, want string) error {
	switch {
	case p.r.grammar == torchTwice && i >= len(p.tokens):
		return errTorchEnd
	case p.r.grammar != torchTwice && (i >= len(p.tokens) || p.tokens[i] != want):
		return torchRefused("Error parsing CachingAllocator settings, expected %s", want)
	}
	return nil
}

// segments takes the size of large segments, wherever the list has it.
func (p *torchReader) segments() error {
	k, known := p.r.key(torchLarge)
	for i := 0; known && i < len(p.tokens); i++ {
		if p.tokens[i] == torchLarge {
			err := p.mark(i+1, ":")
			if err == nil {
				i, err = p.take(k, i+2)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// loose is each of the two readers since 2.10.
func (p *torchReader) loose() error {
	for i := 0; i < len(p.tokens); i++ {
		k, known := p.r.key(p.tokens[i])
		var err error
		switch {
		case !known:
			p.failed = p.tokens[i]
			of := "Accelerator"
			if p.own {
				of = "CUDA"
			}
			return torchRefused("Unrecognized key '%s' in %s allocator config.", p.tokens[i], of)
		case k.common == p.own || k.name == torchLarge:
			i, err = p.skip(i)
		default:
			if err = p.mark(i+1, ":"); err == nil {
				i, err = p.take(k, i+2)
			}
		}
		if err != nil {
			return err
		}
		i++ // whatever separates
	}
	return nil
}

// skip passes over the key at i.
func (p *torchReader) skip(i int) (int, error) {
	if i += 2; i >= len(p.tokens) {
		return i, errTorchEnd
	}
	if p.tokens[i] != "[" {
		return i, nil
	}
	for i++; i < len(p.tokens); i++ {
		if p.tokens[i] == "]" {
			return i, nil
		}
	}
	return i, torchNoBracket("config_")
}

// word is the token i; key is for the error of 2.0 to 2.9.
func (p *torchReader) word(key string, i int) (string, error) {
	switch {
	case i < len(p.tokens):
		return p.tokens[i], nil
	case p.r.grammar == torchTwice:
		return "", errTorchEnd
	case key == torchBackend:
		return "", torchRefused("Error parsing backend value")
	case key == torchExpandable || key == "release_lock_on_cudamalloc":
		return "", torchRefused("Expected a single True/False argument for %s", key)
	}
	return "", torchRefused("Error, expecting %s value", key)
}

// number is the token i as a whole number: std::stoi of 32 bits until 2.9,
// std::stoull since. A minus counts down from 2^64.
func (p *torchReader) number(key string, i int) (uint64, error) {
	token, err := p.word(key, i)
	if err != nil {
		return 0, err
	}
	text := cInteger.FindString(token)
	digits := strings.TrimLeftFunc(text, isCSpace)
	if text != token && digits != "" {
		p.odd = append(p.odd, token)
	}
	if p.r.grammar != torchTwice {
		n, err := strconv.ParseInt(digits, 10, 32)
		if err != nil {
			return 0, torchRefused("stoi")
		}
		return uint64(n), nil
	}
	n, err := strconv.ParseUint(strings.TrimLeft(digits, "+-"), 10, 64)
	if err != nil {
		return 0, torchRefused("stoull")
	}
	if digits[0] == '-' {
		n = -n
	}
	return n, nil
}

var cInteger = regexp.MustCompile(`^[ \t-\r]*[+-]?[0-9]+`)

// real is the token i as std::stod reads it: the beginning of it that is a
// number, and an error for one that is too large, or too small to be exact.
func (p *torchReader) real(key string, i int) (float64, error) {
	token, err := p.word(key, i)
	if err != nil {
		return 0, err
	}
	text := cReal.FindString(token)
	if text == "" {
		return 0, torchRefused("stod")
	}
	if text != token {
		p.odd = append(p.odd, token)
	}
	text = strings.ToLower(strings.TrimLeftFunc(text, isCSpace))
	mantissa, _, _ := strings.Cut(text, "e")
	nonzero := "123456789"
	if strings.Contains(text, "0x") {
		mantissa, _, _ = strings.Cut(text[strings.Index(text, "x")+1:], "p")
		nonzero = "123456789abcdef"
		if !strings.Contains(text, "p") {
			text += "p0"
		}
	}
	f, err := strconv.ParseFloat(strings.TrimLeft(text, "+"), 64)
	const least = 0x1p-1022
	switch {
	case strings.Contains(text, "nan"):
		return math.NaN(), nil
	case strings.Contains(text, "inf"):
		return f, nil
	case err != nil, math.Abs(f) < least && strings.ContainsAny(mantissa, nonzero):
		return 0, torchRefused("stod")
	}
	return f, nil
}

var cReal = regexp.MustCompile(`^[ \t-\r]*[+-]?(?i:0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)(?:p[+-]?[0-9]+)?|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf(?:inity)?|nan)`)

const mib = 1 << 20

// megabytes reads a size in MiB.
func (p *torchReader) megabytes(key string, i int) (int, error) {
	n, err := p.number(key, i)
	if err != nil {
		return i, err
	}
	least := uint64(20) // kLargeBuffer
	if large, ok := p.values[torchLarge].(uint64); ok {
		least = large / mib
	}
	strict := p.r.grammar != torchTwice
	switch limited := key == torchMaxSplit || key == torchNonSplit; {
	case limited && strict && n <= least:
		return i, torchRefused("CachingAllocator option %s too small, must be > %d", key, least)
	case limited && n < least:
		return i, torchRefused("CachingAllocator option %s too small, must be >= %d", key, least)
	case key == torchLarge && n <= 10: // kMinLargeAlloc
		return i, torchRefused("CachingAllocator option large_segment_size_mb must be > 10 MB")
	}
	p.values[key] = min(n, math.MaxUint64/mib) * mib
	return i, nil
}

func (p *torchReader) count(key string, i int) (int, error) {
	n, err := p.number(key, i)
	if err == nil && n == 0 {
		err = torchRefused("Pinned reserve segment size has to be greater than 0")
	}
	p.values[key] = n
	return i, err
}

func (p *torchReader) threads(key string, i int) (int, error) {
	n, err := p.number(key, i)
	if err != nil {
		return i, err
	}
	got := ""
	if p.r.grammar == torchTwice {
		got = fmt.Sprintf(", got %d", n)
	}
	switch {
	case bits.OnesCount64(n) != 1:
		return i, torchRefused("Number of register threads has to be power of 2%s", got)
	case n > 128:
		return i, torchRefused("Number of register threads should be less than or equal to 128%s", got)
	}
	p.values[key] = n
	return i, nil
}

func (p *torchReader) truth(key string, i int) (int, error) {
	word, err := p.word(key, i)
	switch {
	case err != nil:
		return i, err
	case word != "True" && word != "False" && p.r.grammar == torchTwice:
		return i, torchRefused("Expected 'True' or 'False' at index %d in ConfigTokenizer but got '%s'", i, word)
	case word != "True" && word != "False":
		return i, torchRefused("Expected a single True/False argument for %s", key)
	}
	p.values[key] = word == "True"
	return i, nil
}

func (p *torchReader) threshold(key string, i int) (int, error) {
	f, err := p.real(key, i)
	switch {
	case err != nil:
		return i, err
	case p.r.grammar == torchTwice && !(f > 0 && f < 1):
		return i, torchRefused("garbage_collect_threshold is invalid, set it in (0.0, 1.0)")
	case !(f > 0):
		return i, torchRefused("garbage_collect_threshold too small, set it 0.0~1.0")
	case f >= 1:
		return i, torchRefused("garbage_collect_threshold too big, set it 0.0~1.0")
	}
	p.values[key] = f
	return i, nil
}

func (p *torchReader) fraction(key string, i int) (int, error) {
	f, err := p.real(key, i)
	if err == nil && !(f >= 0 && f <= 1) {
		err = torchRefused("per_process_memory_fraction is invalid, set it in [0.0, 1.0]")
	}
	if err == nil {
		p.values[key] = f
	}
	return i, err
}

func (p *torchReader) backend(key string, i int) (int, error) {
	name, err := p.word(key, i)
	switch {
	case err != nil:
		return i, err
	case name != torchNative && name != torchAsync:
		return i, torchRefused("Unknown allocator backend, options are native and cudaMallocAsync")
	case name != p.loaded && p.r.grammar == torchTwice:
		return i, torchRefused("tokenizer[i] == get()->name() INTERNAL ASSERT FAILED, please report a bug to PyTorch. Allocator backend parsed at runtime != allocator backend parsed at load time, %s != %s", name, p.loaded)
	case name != p.loaded:
		return i, torchRefused("config[i] == get()->name() INTERNAL ASSERT FAILED, please report a bug to PyTorch. Allocator backend parsed at runtime != allocator backend parsed at load time")
	}
	p.values[key] = name
	return i, nil
}

// roundup reads one number of divisions for all sizes, or a list of them by
// size.
func (p *torchReader) roundup(key string, i int) (int, error) {
	word, err := p.word(key, i)
	if err != nil {
		return i, err
	}
	if word == "[" && p.r.grammar != torchSplit {
		return p.roundups(key, i)
	}
	n, err := p.number(key, i)
	if err == nil && bits.OnesCount64(n) != 1 {
		err = torchRefused("For roundups, the %s has to be power of 2", p.r.divisions)
	}
	if err == nil {
		var all [16]uint64
		for j := range all {
			all[j] = n
		}
		p.values[key] = all
	}
	return i, err
}

func (p *torchReader) roundups(key string, i int) (int, error) {
	all, _ := p.values[key].([16]uint64)
	first, last := true, 0
	for i++; i < len(p.tokens) && p.tokens[i] != "]"; i++ {
		size := i
		if err := p.mark(i+1, ":"); err != nil {
			return i, err
		}
		if i += 2; i >= len(p.tokens) && p.r.grammar == torchStrict {
			return i, torchRefused("Error parsing roundup_power2_divisions value")
		}
		n, err := p.number(key, i)
		switch {
		case err != nil:
			return i, err
		case bits.OnesCount64(n) > 1 || n == 0 && !p.r.noStep:
			or := ""
			if p.r.noStep {
				or = " or 0 to disable roundup"
			}
			return i, torchRefused("For roundups, the %s has to be power of 2%s", p.r.divisions, or)
		}
		if p.tokens[size] == ">" {
			from := last
			if p.r.grammar == torchTwice {
				from++ // the size before it keeps its own
			}
			for j := from; j < len(all); j++ {
				all[j] = n
			}
		} else {
			at, err := p.interval(size)
			if err != nil {
				return i, err
			}
			for j := 0; first && j < at; j++ {
				all[j] = n
			}
			all[at], first, last = n, false, at
		}
		p.values[key] = all
		if i+1 == len(p.tokens) {
			switch {
			case p.r.grammar == torchTwice:
				return i, errTorchEnd
			case p.r.crashes:
				return i, errTorchCrash
			}
		}
		if i+1 == len(p.tokens) || p.tokens[i+1] != "]" {
			i++
			if err := p.mark(i, ","); err != nil {
				return i, err
			}
		}
	}
	if i >= len(p.tokens) && p.r.grammar == torchTwice {
		return i, torchNoBracket("tokenizer")
	}
	return i, nil
}

// interval is the index of a size in MiB.
func (p *torchReader) interval(i int) (int, error) {
	text := cInteger.FindString(p.tokens[i])
	n, err := strconv.ParseUint(strings.TrimLeft(text, "+- \t\n\v\f\r"), 10, 64)
	switch {
	case err != nil && p.r.grammar == torchTwice:
		return 0, torchRefused("stoull")
	case err != nil:
		return 0, torchRefused("stoul")
	}
	if strings.Contains(text, "-") {
		n = -n
	}
	if bits.OnesCount64(n) != 1 {
		return 0, torchRefused("For roundups, the intervals have to be power of 2")
	}
	return min(bits.TrailingZeros64(n), 15), nil
}

// reserve reads how many addresses a segment reserves. What makes no sense is
// left out with a warning.
func (p *torchReader) reserve(key string, i int) (int, error) {
	word, err := p.word(key, i)
	if err != nil {
		return i, err
	}
	number := word
	if word != "" && strings.ContainsAny(word[len(word)-1:], "gG") {
		number = word[:len(word)-1]
	}
	f, err := strconv.ParseFloat(number, 64)
	if !plainReal.MatchString(number) || err != nil || f <= 0 {
		p.odd = append(p.odd, word)
		return i, nil
	}
	p.values[key] = word
	return i, nil
}

// plainReal is what a C++ stream reads as a double to its end.
var plainReal = regexp.MustCompile(`^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$`)

// reserves reads [name:reserve,name:reserve]; the opening bracket may be any
// token.
func (p *torchReader) reserves(key string, i int) (int, error) {
	classes := map[string]any{}
	for {
		switch {
		case i+1 >= len(p.tokens):
			return i, errTorchEnd
		case p.tokens[i+1] == "]":
			p.values[key] = fmt.Sprint(classes)
			return i + 1, nil
		case i+3 >= len(p.tokens):
			return i, errTorchEnd
		}
		one := torchReader{r: p.r, tokens: p.tokens, torchSettings: torchSettings{values: map[string]any{}}}
		name := p.tokens[i+1]
		i += 3
		one.reserve(name, i)
		maps.Copy(classes, one.values)
		p.odd = append(p.odd, one.odd...)
		if i+1 < len(p.tokens) && p.tokens[i+1] == "," {
			i++
		}
	}
}
