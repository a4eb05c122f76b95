// The values in PyTorch's list of settings, with what its releases refuse.

package torchconf

import (
	"fmt"
	"maps"
	"math"
	"math/bits"
	"regexp"
	"strconv"
	"strings"

	"gpumem/policy/internal/literal"
)

// word returns the token i; key is for the error of 2.0 to 2.9.
func (p *reader) word(key string, i int) (string, error) {
	switch {
	case i < len(p.tokens):
		return p.tokens[i], nil
	case p.r.Grammar == torchTwice:
		return "", errTorchEnd
	case key == keyBackend:
		return "", torchRefused("Error parsing backend value")
	case key == keyExpandable || key == "release_lock_on_cudamalloc":
		return "", torchRefused("Expected a single True/False argument for %s", key)
	}
	return "", torchRefused("Error, expecting %s value", key)
}

// number returns the token i as a whole number: std::stoi of 32 bits until 2.9,
// std::stoull since. A minus counts down from 2^64.
func (p *reader) number(key string, i int) (uint64, error) {
	token, err := p.word(key, i)
	if err != nil {
		return 0, err
	}
	text := literal.CInteger.FindString(token)
	digits := strings.TrimLeftFunc(text, literal.IsSpace)
	if text != token && digits != "" {
		p.odd = append(p.odd, token)
	}
	if p.r.Grammar != torchTwice {
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

// real returns the token i as std::stod reads it: the beginning of it that is a
// number, and an error for one that is too large, or too small to be exact.
func (p *reader) real(key string, i int) (float64, error) {
	token, err := p.word(key, i)
	if err != nil {
		return 0, err
	}
	text := literal.CReal.FindString(token)
	if text == "" {
		return 0, torchRefused("stod")
	}
	if text != token {
		p.odd = append(p.odd, token)
	}
	text = strings.ToLower(strings.TrimLeftFunc(text, literal.IsSpace))
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

const mib = 1 << 20

// megabytes reads a size in MiB.
func (p *reader) megabytes(key string, i int) (int, error) {
	n, err := p.number(key, i)
	if err != nil {
		return i, err
	}
	least := uint64(20) // kLargeBuffer
	if large, ok := p.values[keyLarge].(uint64); ok {
		least = large / mib
	}
	strict := p.r.Grammar != torchTwice
	switch limited := key == keyMaxSplit || key == keyNonSplit; {
	case limited && strict && n <= least:
		return i, torchRefused("CachingAllocator option %s too small, must be > %d", key, least)
	case limited && n < least:
		return i, torchRefused("CachingAllocator option %s too small, must be >= %d", key, least)
	case key == keyLarge && n <= 10: // kMinLargeAlloc
		return i, torchRefused("CachingAllocator option large_segment_size_mb must be > 10 MB")
	}
	p.values[key] = min(n, math.MaxUint64/mib) * mib
	return i, nil
}

func (p *reader) count(key string, i int) (int, error) {
	n, err := p.number(key, i)
	if err == nil && n == 0 {
		err = torchRefused("Pinned reserve segment size has to be greater than 0")
	}
	p.values[key] = n
	return i, err
}

func (p *reader) threads(key string, i int) (int, error) {
	n, err := p.number(key, i)
	if err != nil {
		return i, err
	}
	got := ""
	if p.r.Grammar == torchTwice {
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

func (p *reader) truth(key string, i int) (int, error) {
	word, err := p.word(key, i)
	switch {
	case err != nil:
		return i, err
	case word != "True" && word != "False" && p.r.Grammar == torchTwice:
		return i, torchRefused("Expected 'True' or 'False' at index %d in ConfigTokenizer but got '%s'", i, word)
	case word != "True" && word != "False":
		return i, torchRefused("Expected a single True/False argument for %s", key)
	}
	p.values[key] = word == "True"
	return i, nil
}

func (p *reader) threshold(key string, i int) (int, error) {
	f, err := p.real(key, i)
	switch {
	case err != nil:
		return i, err
	case p.r.Grammar == torchTwice && !(f > 0 && f < 1):
		return i, torchRefused("garbage_collect_threshold is invalid, set it in (0.0, 1.0)")
	case !(f > 0):
		return i, torchRefused("garbage_collect_threshold too small, set it 0.0~1.0")
	case f >= 1:
		return i, torchRefused("garbage_collect_threshold too big, set it 0.0~1.0")
	}
	p.values[key] = f
	return i, nil
}

func (p *reader) fraction(key string, i int) (int, error) {
	f, err := p.real(key, i)
	if err == nil && !(f >= 0 && f <= 1) {
		err = torchRefused("per_process_memory_fraction is invalid, set it in [0.0, 1.0]")
	}
	if err == nil {
		p.values[key] = f
	}
	return i, err
}

func (p *reader) backend(key string, i int) (int, error) {
	name, err := p.word(key, i)
	switch {
	case err != nil:
		return i, err
	case name != torchNative && name != torchAsync:
		return i, torchRefused("Unknown allocator backend, options are native and cudaMallocAsync")
	case name != p.loaded && p.r.Grammar == torchTwice:
		return i, torchRefused("tokenizer[i] == get()->name() INTERNAL ASSERT FAILED, please report a bug to PyTorch. Allocator backend parsed at runtime != allocator backend parsed at load time, %s != %s", name, p.loaded)
	case name != p.loaded:
		return i, torchRefused("config[i] == get()->name() INTERNAL ASSERT FAILED, please report a bug to PyTorch. Allocator backend parsed at runtime != allocator backend parsed at load time")
	}
	p.values[key] = name
	return i, nil
}

// roundup reads one number of divisions for all sizes, or a list of them by
// size.
func (p *reader) roundup(key string, i int) (int, error) {
	word, err := p.word(key, i)
	if err != nil {
		return i, err
	}
	if word == "[" && p.r.Grammar != torchSplit {
		return p.roundups(key, i)
	}
	n, err := p.number(key, i)
	if err == nil && bits.OnesCount64(n) != 1 {
		err = torchRefused("For roundups, the %s has to be power of 2", p.r.Divisions)
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

func (p *reader) roundups(key string, i int) (int, error) {
	all, _ := p.values[key].([16]uint64)
	p.values[key] = all // [] sets nothing, and is no error
	first, last := true, 0
	for i++; i < len(p.tokens) && p.tokens[i] != "]"; i++ {
		size := i
		if err := p.mark(i+1, ":"); err != nil {
			return i, err
		}
		if i += 2; i >= len(p.tokens) && p.r.Grammar == torchStrict {
			return i, torchRefused("Error parsing roundup_power2_divisions value")
		}
		n, err := p.number(key, i)
		switch {
		case err != nil:
			return i, err
		case bits.OnesCount64(n) > 1 || n == 0 && !p.r.NoStep:
			or := ""
			if p.r.NoStep {
				or = " or 0 to disable roundup"
			}
			return i, torchRefused("For roundups, the %s has to be power of 2%s", p.r.Divisions, or)
		}
		if p.tokens[size] == ">" {
			from := last
			if p.r.Grammar == torchTwice {
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
			case p.r.Grammar == torchTwice:
				return i, errTorchEnd
			case p.r.Crashes:
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
	if i >= len(p.tokens) && p.r.Grammar == torchTwice {
		return i, torchNoBracket("tokenizer")
	}
	return i, nil
}

// interval returns the index of a size in MiB.
func (p *reader) interval(i int) (int, error) {
	text := literal.CInteger.FindString(p.tokens[i])
	n, err := strconv.ParseUint(strings.TrimLeft(text, "+- \t\n\v\f\r"), 10, 64)
	switch {
	case err != nil && p.r.Grammar == torchTwice:
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
func (p *reader) reserve(key string, i int) (int, error) {
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
func (p *reader) reserves(key string, i int) (int, error) {
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
		one := reader{r: p.r, tokens: p.tokens, torchSettings: torchSettings{values: map[string]any{}}}
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
