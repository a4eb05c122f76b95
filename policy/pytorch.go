// PyTorch: its variables, the list of settings in them as each release reads
// it, and what the settings do.

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

// torchRelease is what a release of PyTorch's builds for CUDA does.
type torchRelease struct {
	grammar   torchGrammar
	keys      []torchKey
	divisions string // the word in its errors
	noStep    bool   // divisions of 0 in a list mean none
	crashes   bool   // a list without its end is read beyond it
	scolds    bool   // calls PYTORCH_CUDA_ALLOC_CONF deprecated and reads nothing else
	hipNoPool bool   // PYTORCH_NO_HIP_MEMORY_CACHING counts, too
}

// torchGrammar is how a list is read.
type torchGrammar uint8

const (
	torchSplit  torchGrammar = iota // cut at blanks, commas and colons; what has no value is passed over
	torchStrict                     // tokens, and what is between them is looked at
	torchTwice                      // tokens, and what is between them may be anything; read by two readers, see torchReader
)

// know adds keys to those of a release.
func (r *torchRelease) know(common bool, read torchRead, names ...string) {
	for _, name := range names {
		r.keys = append(r.keys, torchKey{name, common, read})
	}
}

// torchReleases, oldest first.
var torchReleases = []row[torchRelease]{
	{version{1, 13, 0}, "2022-10-28",
		"The oldest release known here. `PYTORCH_CUDA_ALLOC_CONF` has `max_split_size_mb`, `roundup_power2_divisions` and `garbage_collection_threshold`; what has no value is passed over in silence.",
		"PyTorch 1.13.1, asked",
		func(r *torchRelease) {
			r.divisions = "divisons"
			r.know(true, (*torchReader).megabytes, torchMaxSplit)
			r.know(true, (*torchReader).threshold, torchGC)
			r.know(true, (*torchReader).roundup, torchRoundup)
		}},
	{version{2, 0, 0}, "2023-03-15",
		"The list is read strictly: all that is not understood is an error. `backend`; `roundup_power2_divisions` may be a list.",
		"PyTorch 2.0.1, asked",
		func(r *torchRelease) {
			r.grammar, r.crashes = torchStrict, true
			r.know(false, (*torchReader).backend, torchBackend)
		}},
	{version{2, 1, 0}, "2023-10-04",
		"`expandable_segments`.",
		"PyTorch 2.1.2, asked",
		func(r *torchRelease) { r.know(true, (*torchReader).truth, torchExpandable) }},
	{version{2, 2, 0}, "2024-01-30",
		"`release_lock_on_cudamalloc`, `pinned_use_cuda_host_register`, `pinned_num_register_threads`.",
		"PyTorch 2.2.2, asked",
		func(r *torchRelease) {
			r.know(false, (*torchReader).truth, "release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "pinned_use_cuda_host_register", "pinned_use_hip_host_register")
			r.know(false, (*torchReader).threads, "pinned_num_register_threads")
		}},
	{version{2, 4, 0}, "2024-07-24",
		"In a list of `roundup_power2_divisions`, 0 means no rounding.",
		"PyTorch 2.3.1 and 2.4.1, asked",
		func(r *torchRelease) { r.noStep = true }},
	{version{2, 5, 0}, "2024-10-17",
		"`pinned_use_background_threads`.",
		"PyTorch 2.4.1 and 2.5.1, asked",
		func(r *torchRelease) { r.know(true, (*torchReader).truth, "pinned_use_background_threads") }},
	{version{2, 6, 0}, "2025-01-29",
		"`max_non_split_rounding_mb`. `PYTORCH_NO_HIP_MEMORY_CACHING` turns the pool off in builds for CUDA, too.",
		"PyTorch 2.5.1 and 2.6.0, asked; the names in their libraries",
		func(r *torchRelease) {
			r.crashes, r.hipNoPool = false, true
			r.know(true, (*torchReader).megabytes, torchNonSplit)
		}},
	{version{2, 8, 0}, "2025-08-06",
		"An error spells \"divisions\" right.",
		"PyTorch 2.7.1 and 2.8.0, asked",
		func(r *torchRelease) { r.divisions = "divisions" }},
	{version{2, 9, 0}, "2025-10-15",
		"`graph_capture_record_stream_reuse`. A warning calls `PYTORCH_CUDA_ALLOC_CONF` deprecated in favour of `PYTORCH_ALLOC_CONF`, which the pool for CUDA does not read.",
		"PyTorch 2.9.0 and 2.9.1, asked",
		func(r *torchRelease) {
			r.scolds = true
			r.know(false, (*torchReader).truth, "graph_capture_record_stream_reuse")
		}},
	{version{2, 10, 0}, "2026-01-21",
		"`per_process_memory_fraction`, `pinned_reserve_segment_size_mb`. `PYTORCH_ALLOC_CONF` is read where `PYTORCH_CUDA_ALLOC_CONF` is not set. Separators are not checked any more. 20 MiB is enough for `max_split_size_mb`.",
		"PyTorch 2.10.0, asked; c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.cpp of 2025-11",
		func(r *torchRelease) {
			r.grammar, r.scolds = torchTwice, false
			r.know(false, (*torchReader).fraction, torchFraction)
			r.know(false, (*torchReader).count, torchReserve)
		}},
	{version{2, 11, 0}, "2026-03",
		"`large_segment_size_mb`.",
		"PyTorch 2.11.0, asked",
		func(r *torchRelease) { r.know(true, (*torchReader).megabytes, torchLarge) }},
	{version{2, 13, 0}, "2026-07",
		"`throw_on_cudamalloc_oom`, `pinned_free_catch_all`, `pinned_max_round_threshold_mb`, `pinned_max_cached_size_mb`.",
		"PyTorch 2.13.0, asked",
		func(r *torchRelease) {
			r.know(false, (*torchReader).truth, torchThrow, "pinned_free_catch_all")
			r.know(true, (*torchReader).megabytes, torchRoundMost, torchCacheMost)
		}},
	{version{2, 15, 0}, "2026-11",
		"`expandable_segments_reserve`, `expandable_segments_reserve_by_class`.",
		"PyTorch 2.15.0, asked; PyTorch PR 192269",
		func(r *torchRelease) {
			r.know(false, (*torchReader).reserve, torchAddresses)
			r.know(false, (*torchReader).reserves, torchAddresses+"_by_class")
		}},
}

// newestTorch is the newest release that was looked at.
var newestTorch = version{2, 15}

// The keys that this file speaks of.
const (
	torchMaxSplit   = "max_split_size_mb"
	torchNonSplit   = "max_non_split_rounding_mb"
	torchLarge      = "large_segment_size_mb"
	torchGC         = "garbage_collection_threshold"
	torchRoundup    = "roundup_power2_divisions"
	torchExpandable = "expandable_segments"
	torchAddresses  = "expandable_segments_reserve"
	torchBackend    = "backend"
	torchFraction   = "per_process_memory_fraction"
	torchThrow      = "throw_on_cudamalloc_oom"
	torchReserve    = "pinned_reserve_segment_size_mb"
	torchRoundMost  = "pinned_max_round_threshold_mb"
	torchCacheMost  = "pinned_max_cached_size_mb"

	torchNative = "native"
	torchAsync  = "cudaMallocAsync"
	torchNoHIP  = "PYTORCH_NO_HIP_MEMORY_CACHING"
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
