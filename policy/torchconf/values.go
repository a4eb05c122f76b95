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
func (p *reader) word(key string, i int) string {
	switch {
	case i < len(p.tokens):
		return p.tokens[i]
	case p.r.Grammar == torchTwice:
		panic(refusal{errTorchEnd})
	case key == keyBackend:
		refuse("Error parsing backend value")
	case key == keyExpandable || key == "release_lock_on_cudamalloc":
		refuse("Expected a single True/False argument for %s", key)
	}
	panic(torchRefused("Error, expecting %s value", key))
}

// number returns the token i as a whole number: std::stoi of 32 bits until 2.9,
// std::stoull since. A minus counts down from 2^64.
func (p *reader) number(key string, i int) uint64 {
	token := p.word(key, i)
	text := literal.CInteger.FindString(token)
	digits := strings.TrimLeftFunc(text, literal.IsSpace)
	if text != token && digits != "" {
		p.odd = append(p.odd, token)
	}
	if p.r.Grammar != torchTwice {
		n, err := strconv.ParseInt(digits, 10, 32)
		accept(err == nil, "stoi")
		return uint64(n)
	}
	n, err := strconv.ParseUint(strings.TrimLeft(digits, "+-"), 10, 64)
	accept(err == nil, "stoull")
	if digits[0] == '-' {
		n = -n
	}
	return n
}

// real returns the token i as std::stod reads it: the beginning of it that is a
// number, and an error for one that is too large, or too small to be exact.
func (p *reader) real(key string, i int) float64 {
	token := p.word(key, i)
	text := literal.CReal.FindString(token)
	accept(text != "", "stod")
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
		return math.NaN()
	case strings.Contains(text, "inf"):
		return f
	}
	accept(err == nil && (math.Abs(f) >= least || !strings.ContainsAny(mantissa, nonzero)), "stod")
	return f
}

const mib = 1 << 20

// megabytes reads a size in MiB.
func (p *reader) megabytes(key string, i int) int {
	n := p.number(key, i)
	least := uint64(20) // kLargeBuffer
	if large, ok := p.values[keyLarge].(uint64); ok {
		least = large / mib
	}
	strict := p.r.Grammar != torchTwice
	switch limited := key == keyMaxSplit || key == keyNonSplit; {
	case limited && strict && n <= least:
		refuse("CachingAllocator option %s too small, must be > %d", key, least)
	case limited && n < least:
		refuse("CachingAllocator option %s too small, must be >= %d", key, least)
	case key == keyLarge && n <= 10: // kMinLargeAlloc
		refuse("CachingAllocator option large_segment_size_mb must be > 10 MB")
	}
	p.values[key] = min(n, math.MaxUint64/mib) * mib
	return i
}

func (p *reader) count(key string, i int) int {
	n := p.number(key, i)
	p.values[key] = n
	accept(n != 0, "Pinned reserve segment size has to be greater than 0")
	return i
}

func (p *reader) threads(key string, i int) int {
	n := p.number(key, i)
	got := ""
	if p.r.Grammar == torchTwice {
		got = fmt.Sprintf(", got %d", n)
	}
	accept(bits.OnesCount64(n) == 1, "Number of register threads has to be power of 2%s", got)
	accept(n <= 128, "Number of register threads should be less than or equal to 128%s", got)
	p.values[key] = n
	return i
}

func (p *reader) truth(key string, i int) int {
	word := p.word(key, i)
	switch {
	case word == "True" || word == "False":
	case p.r.Grammar == torchTwice:
		refuse("Expected 'True' or 'False' at index %d in ConfigTokenizer but got '%s'", i, word)
	default:
		refuse("Expected a single True/False argument for %s", key)
	}
	p.values[key] = word == "True"
	return i
}

func (p *reader) threshold(key string, i int) int {
	f := p.real(key, i)
	accept(p.r.Grammar != torchTwice || f > 0 && f < 1, "garbage_collect_threshold is invalid, set it in (0.0, 1.0)")
	accept(f > 0, "garbage_collect_threshold too small, set it 0.0~1.0")
	accept(f < 1, "garbage_collect_threshold too big, set it 0.0~1.0")
	p.values[key] = f
	return i
}

func (p *reader) fraction(key string, i int) int {
	f := p.real(key, i)
	accept(f >= 0 && f <= 1, "per_process_memory_fraction is invalid, set it in [0.0, 1.0]")
	p.values[key] = f
	return i
}

func (p *reader) backend(key string, i int) int {
	name := p.word(key, i)
	const failed = "INTERNAL ASSERT FAILED, please report a bug to PyTorch. Allocator backend parsed at runtime != allocator backend parsed at load time"
	switch {
	case name != torchNative && name != torchAsync:
		refuse("Unknown allocator backend, options are native and cudaMallocAsync")
	case name != p.loaded && p.r.Grammar == torchTwice:
		refuse("tokenizer[i] == get()->name() %s, %s != %s", failed, name, p.loaded)
	case name != p.loaded:
		refuse("config[i] == get()->name() %s", failed)
	}
	p.values[key] = name
	return i
}

// roundup reads one number of divisions for all sizes, or a list of them by
// size.
func (p *reader) roundup(key string, i int) int {
	if word := p.word(key, i); word == "[" && p.r.Grammar != torchSplit {
		return p.roundups(key, i)
	}
	n := p.number(key, i)
	accept(bits.OnesCount64(n) == 1, "For roundups, the %s has to be power of 2", p.r.Divisions)
	var all [16]uint64
	for j := range all {
		all[j] = n
	}
	p.values[key] = all
	return i
}

func (p *reader) roundups(key string, i int) int {
	all, _ := p.values[key].([16]uint64)
	p.values[key] = all // [] sets nothing, and is no error
	first, last := true, 0
	for i++; i < len(p.tokens) && p.tokens[i] != "]"; i++ {
		size := i
		p.mark(i+1, ":")
		i += 2
		accept(i < len(p.tokens) || p.r.Grammar != torchStrict, "Error parsing roundup_power2_divisions value")
		n := p.number(key, i)
		or := ""
		if p.r.NoStep {
			or = " or 0 to disable roundup"
		}
		accept(bits.OnesCount64(n) == 1 || n == 0 && p.r.NoStep, "For roundups, the %s has to be power of 2%s", p.r.Divisions, or)
		if p.tokens[size] == ">" {
			from := last
			if p.r.Grammar == torchTwice {
				from++ // the size before it keeps its own
			}
			for j := from; j < len(all); j++ {
				all[j] = n
			}
		} else {
			at := p.interval(size)
			for j := 0; first && j < at; j++ {
				all[j] = n
			}
			all[at], first, last = n, false, at
		}
		p.values[key] = all
		if i+1 == len(p.tokens) {
			switch {
			case p.r.Grammar == torchTwice:
				panic(refusal{errTorchEnd})
			case p.r.Crashes:
				panic(refusal{errTorchCrash})
			}
		}
		if i+1 == len(p.tokens) || p.tokens[i+1] != "]" {
			i++
			p.mark(i, ",")
		}
	}
	if i >= len(p.tokens) && p.r.Grammar == torchTwice {
		panic(torchNoBracket("tokenizer"))
	}
	return i
}

// interval returns the index of a size in MiB.
func (p *reader) interval(i int) int {
	text := literal.CInteger.FindString(p.tokens[i])
	n, err := strconv.ParseUint(strings.TrimLeft(text, "+- \t\n\v\f\r"), 10, 64)
	accept(err == nil || p.r.Grammar != torchTwice, "stoull")
	accept(err == nil, "stoul")
	if strings.Contains(text, "-") {
		n = -n
	}
	accept(bits.OnesCount64(n) == 1, "For roundups, the intervals have to be power of 2")
	return min(bits.TrailingZeros64(n), 15)
}

// reserve reads how many addresses a segment reserves. What makes no sense is
// left out with a warning.
func (p *reader) reserve(key string, i int) int {
	word := p.word(key, i)
	number := word
	if word != "" && strings.ContainsAny(word[len(word)-1:], "gG") {
		number = word[:len(word)-1]
	}
	f, err := strconv.ParseFloat(number, 64)
	if !plainReal.MatchString(number) || err != nil || f <= 0 {
		p.odd = append(p.odd, word)
		return i
	}
	p.values[key] = word
	return i
}

// plainReal is what a C++ stream reads as a double to its end.
var plainReal = regexp.MustCompile(`^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$`)

// reserves reads [name:reserve,name:reserve]; the opening bracket may be any
// token.
func (p *reader) reserves(key string, i int) int {
	classes := map[string]any{}
	for {
		switch {
		case i+1 >= len(p.tokens):
			panic(refusal{errTorchEnd})
		case p.tokens[i+1] == "]":
			p.values[key] = fmt.Sprint(classes)
			return i + 1
		case i+3 >= len(p.tokens):
			panic(refusal{errTorchEnd})
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
