// The list of settings in PyTorch's variables, as its releases read it.

package torchconf

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"gpumem/policy"
	"gpumem/policy/internal/literal"
)

// torchGrammar is how a list is read.
type torchGrammar string

const (
	torchSplit  torchGrammar = ""       // cut at blanks, commas and colons; what has no value is passed over
	torchStrict torchGrammar = "strict" // tokens, and what is between them is looked at
	torchTwice  torchGrammar = "twice"  // tokens, and what is between them may be anything; read by two readers, see torchReader
)

// A torchKey is one that a release knows.
type torchKey struct {
	name   string
	common bool // for GPUs of all makers
	read   torchRead
}

// torchRead takes a value that begins with the token i, and says which token
// was its last. It refuses what the release refuses.
type torchRead func(p *reader, key string, i int) int

func (r *release) key(name string) (torchKey, bool) {
	i := slices.IndexFunc(r.Keys, func(k torchKey) bool { return k.name == name })
	if i < 0 {
		return torchKey{}, false
	}
	return r.Keys[i], true
}

// since returns the first release that knows a key.
func since(key string) (policy.Version, bool) {
	for _, row := range Releases() {
		r := row.Does
		if _, ok := r.key(key); ok {
			return row.Version, true
		}
	}
	return policy.Version{}, false
}

// torchTarget returns what a key sets: AMD's names are NVIDIA's here.
func torchTarget(key string) string { return strings.Replace(key, "_hip", "_cuda", 1) }

// torchSettings are what a list sets. A value is a uint64 (bytes, or a count),
// float64, bool or string, or the roundup for 1, 2, 4 ... 32768 MiB.
type torchSettings struct {
	values map[string]any // by torchTarget
	given  []string       // the keys as they come, also twice
	failed string         // the key whose value was refused
	odd    []string       // values of which PyTorch takes a part, or nothing
	own    bool           // the last reader was that of CUDA's own settings
}

func (s *torchSettings) fraction() (float64, bool) {
	f, ok := s.values[keyFraction].(float64)
	return f, ok
}

// capped reports whether the pool has a limit.
func (s *torchSettings) capped() bool {
	f, ok := s.fraction()
	return ok && f < 1
}

// A reader reads one list.
//
// Since 2.10 there are two: one for the settings that GPUs of all makers have
// in common, which takes the large segments' size first of all, and one for
// CUDA's own. Each passes over what is the other's.
type reader struct {
	r      *release
	tokens []string
	loaded string // the backend, which was chosen when the libraries were loaded
	torchSettings
}

// A refusal is what a reader panics with: an error in PyTorch's words, less places in its
// source.
type refusal struct{ error }

func torchRefused(format string, args ...any) refusal { return refusal{fmt.Errorf(format, args...)} }

// refuse ends the reading of a list.
func refuse(format string, args ...any) { panic(torchRefused(format, args...)) }

// accept refuses a value unless ok.
func accept(ok bool, format string, args ...any) {
	if !ok {
		refuse(format, args...)
	}
}

// caught sets err to the refusal that ended a reading, if one did.
func caught(err *error) {
	switch r := recover().(type) {
	case nil:
	case refusal:
		*err = r.error
	default:
		panic(r)
	}
}

// errTorchEnd is PyTorch's error for an index beyond the end.
var errTorchEnd = errors.New("i < config_.size() INTERNAL ASSERT FAILED, please report a bug to PyTorch. Index out of bounds in ConfigTokenizer")

// errTorchCrash stands for a segmentation fault, which has no words.
//
//lint:ignore ST1005 the shell says it so
var errTorchCrash = errors.New("Segmentation fault")

func torchNoBracket(vector string) refusal {
	return torchRefused("i < %s.size() INTERNAL ASSERT FAILED, please report a bug to PyTorch. "+
		"Expected closing bracket ']' in ConfigTokenizer but reached end of config", vector)
}

// parse reads a list as a program's call hands it over. Where the release has
// two readers the common one comes first.
func (r *release) parse(text, loaded string) (torchSettings, error) {
	return r.read(text, text, loaded, false)
}

// read reads the lists of the two readers, of which one comes first.
func (r *release) read(common, own, loaded string, ownFirst bool) (s torchSettings, err error) {
	p := &reader{r: r, loaded: loaded, torchSettings: torchSettings{values: map[string]any{}}}
	defer func() { s = p.torchSettings }()
	defer caught(&err)
	forAll := func() {
		p.own, p.tokens = false, r.tokens(common)
		p.segments()
		p.loose()
	}
	forCUDA := func() {
		p.own, p.tokens = true, r.tokens(own)
		p.loose()
	}
	switch {
	case r.Grammar == torchSplit:
		p.split(own)
	case r.Grammar == torchStrict:
		p.tokens = r.tokens(common)
		p.strict()
	case ownFirst:
		forCUDA()
		forAll()
	default:
		forAll()
		forCUDA()
	}
	return s, nil
}

// take reads the value of a key, which begins with the token i.
func (p *reader) take(k torchKey, i int) int {
	p.given, p.failed = append(p.given, k.name), k.name
	i = k.read(p, torchTarget(k.name), i)
	p.failed = ""
	return i
}

// known returns the key of a token, or refuses one that the release does not know.
func (p *reader) known(token, format string, args ...any) torchKey {
	k, known := p.r.key(token)
	if !known {
		p.failed = token
		refuse(format, args...)
	}
	return k
}

// split is the reader of releases before 2.0.
func (p *reader) split(text string) {
	for _, option := range strings.FieldsFunc(text, func(c rune) bool { return c == ',' || literal.IsSpace(c) }) {
		parts := torchColons.Split(option, -1)
		if parts[len(parts)-1] == "" {
			parts = parts[:len(parts)-1]
		}
		if len(parts) < 2 {
			p.odd = append(p.odd, option)
			continue
		}
		k := p.known(parts[0], "Unrecognized CachingAllocator option: %s", parts[0])
		p.tokens = parts
		p.take(k, 1)
	}
}

var torchColons = regexp.MustCompile(":+")

// tokens returns the marks , : [ ] and what is between them, less blanks; until 2.9
// only the space is one.
func (r *release) tokens(text string) []string {
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
		case c == ' ', r.Grammar == torchTwice && literal.IsSpace(rune(c)):
		default:
			word = append(word, c)
		}
	}
	flush()
	return tokens
}

// strict is the reader of 2.0 to 2.9.
func (p *reader) strict() {
	for i := 0; i < len(p.tokens); i++ {
		k := p.known(p.tokens[i], "Unrecognized CachingAllocator option: %s", p.tokens[i])
		p.mark(i+1, ":")
		if i = p.take(k, i+2) + 1; i < len(p.tokens) {
			p.mark(i, ",")
		}
	}
}

// mark wants a separator at i; since 2.10 any token will do.
func (p *reader) mark(i int, want string) {
	switch {
	case p.r.Grammar == torchTwice && i >= len(p.tokens):
		panic(refusal{errTorchEnd})
	case p.r.Grammar != torchTwice && (i >= len(p.tokens) || p.tokens[i] != want):
		refuse("Error parsing CachingAllocator settings, expected %s", want)
	}
}

// segments takes the size of large segments, wherever the list has it.
func (p *reader) segments() {
	k, known := p.r.key(keyLarge)
	for i := 0; known && i < len(p.tokens); i++ {
		if p.tokens[i] == keyLarge {
			p.mark(i+1, ":")
			i = p.take(k, i+2)
		}
	}
}

// backendAt returns the backend that is chosen while the libraries are loaded, by
// separate code: the first that the list names. Since 2.10 a list that ends
// too soon is an error already here.
func (r *release) backendAt(text string) (name string, err error) {
	defer caught(&err)
	switch r.Grammar {
	case torchSplit:
		return torchNative, nil
	case torchStrict:
		for _, option := range strings.FieldsFunc(text, func(c rune) bool { return c == ',' || literal.IsSpace(c) }) {
			parts := torchColons.Split(option, -1)
			if len(parts) > 1 && parts[0] == keyBackend && (parts[1] == torchNative || parts[1] == torchAsync) {
				return parts[1], nil
			}
		}
		return torchNative, nil
	}
	p := reader{r: r, tokens: r.tokens(text)}
	for i := 0; i < len(p.tokens); i = p.skip(i) + 2 {
		if p.tokens[i] == keyBackend && p.word(keyBackend, i+2) == torchAsync {
			return torchAsync, nil
		}
		if p.tokens[i] == keyBackend {
			break
		}
	}
	return torchNative, nil
}

// loose is each of the two readers since 2.10.
func (p *reader) loose() {
	of := "Accelerator"
	if p.own {
		of = "CUDA"
	}
	for i := 0; i < len(p.tokens); i++ {
		k := p.known(p.tokens[i], "Unrecognized key '%s' in %s allocator config.", p.tokens[i], of)
		if k.common == p.own || k.name == keyLarge {
			i = p.skip(i)
		} else {
			p.mark(i+1, ":")
			i = p.take(k, i+2)
		}
		i++ // whatever separates
	}
}

// skip passes over the key at i.
func (p *reader) skip(i int) int {
	if i += 2; i >= len(p.tokens) {
		panic(refusal{errTorchEnd})
	}
	if p.tokens[i] != "[" {
		return i
	}
	for i++; i < len(p.tokens); i++ {
		if p.tokens[i] == "]" {
			return i
		}
	}
	panic(torchNoBracket("config_"))
}
