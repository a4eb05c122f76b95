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
// was its last.
type torchRead func(p *reader, key string, i int) (int, error)

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

// torchRefused returns an error in PyTorch's words, less places in its source.
func torchRefused(format string, args ...any) error { return fmt.Errorf(format, args...) }

// errTorchEnd is PyTorch's error for an index beyond the end.
var errTorchEnd = errors.New("i < config_.size() INTERNAL ASSERT FAILED, please report a bug to PyTorch. Index out of bounds in ConfigTokenizer")

// errTorchCrash stands for a segmentation fault, which has no words.
var errTorchCrash = torchRefused("Segmentation fault")

func torchNoBracket(vector string) error {
	return torchRefused("i < %s.size() INTERNAL ASSERT FAILED, please report a bug to PyTorch. Expected closing bracket ']' in ConfigTokenizer but reached end of config", vector)
}

// parse reads a list as a program's call hands it over. Where the release has
// two readers the common one comes first.
func (r *release) parse(text, loaded string) (torchSettings, error) {
	return r.read(text, text, loaded, false)
}

// read reads the lists of the two readers, of which one comes first.
func (r *release) read(common, own, loaded string, ownFirst bool) (torchSettings, error) {
	if r.Grammar == torchSplit {
		return r.parseSplit(own)
	}
	p := &reader{r: r, tokens: r.tokens(common), loaded: loaded, torchSettings: torchSettings{values: map[string]any{}}}
	if r.Grammar == torchStrict {
		err := p.strict()
		return p.torchSettings, err
	}
	forAll := func() error {
		p.own, p.tokens = false, r.tokens(common)
		if err := p.segments(); err != nil {
			return err
		}
		return p.loose()
	}
	forCUDA := func() error {
		p.own, p.tokens = true, r.tokens(own)
		return p.loose()
	}
	first, second := forAll, forCUDA
	if ownFirst {
		first, second = forCUDA, forAll
	}
	err := first()
	if err == nil {
		err = second()
	}
	return p.torchSettings, err
}

// take reads the value of a key, which begins with the token i.
func (p *reader) take(k torchKey, i int) (int, error) {
	p.given, p.failed = append(p.given, k.name), k.name
	i, err := k.read(p, torchTarget(k.name), i)
	if err == nil {
		p.failed = ""
	}
	return i, err
}

func (r *release) parseSplit(text string) (torchSettings, error) {
	p := &reader{r: r, torchSettings: torchSettings{values: map[string]any{}}}
	for _, option := range strings.FieldsFunc(text, func(c rune) bool { return c == ',' || literal.IsSpace(c) }) {
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
func (p *reader) strict() error {
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
func (p *reader) mark(i int, want string) error {
	switch {
	case p.r.Grammar == torchTwice && i >= len(p.tokens):
		return errTorchEnd
	case p.r.Grammar != torchTwice && (i >= len(p.tokens) || p.tokens[i] != want):
		return torchRefused("Error parsing CachingAllocator settings, expected %s", want)
	}
	return nil
}

// segments takes the size of large segments, wherever the list has it.
func (p *reader) segments() error {
	k, known := p.r.key(keyLarge)
	for i := 0; known && i < len(p.tokens); i++ {
		if p.tokens[i] == keyLarge {
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

// backendAt returns the backend that is chosen while the libraries are loaded, by
// separate code: the first that the list names. Since 2.10 a list that ends
// too soon is an error already here.
func (r *release) backendAt(text string) (string, error) {
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
	for i := 0; i < len(p.tokens); i += 2 {
		if p.tokens[i] == keyBackend {
			name, err := p.word(keyBackend, i+2)
			if err == nil && name != torchAsync {
				name = torchNative
			}
			return name, err
		}
		var err error
		if i, err = p.skip(i); err != nil {
			return "", err
		}
	}
	return torchNative, nil
}

// loose is each of the two readers since 2.10.
func (p *reader) loose() error {
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
		case k.common == p.own || k.name == keyLarge:
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
func (p *reader) skip(i int) (int, error) {
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
