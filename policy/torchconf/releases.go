// PyTorch's releases, by the table releases.txt.

package torchconf

import (
	_ "embed" // releases.txt
	"fmt"
	"slices"
	"strings"

	"gpumem/policy"
	"gpumem/policy/internal/releases"
)

// release is what a release of PyTorch's builds for CUDA does.
type release struct {
	Grammar   torchGrammar
	Keys      torchKeys
	Divisions string // the word in its errors
	NoStep    bool   // divisions of 0 in a list mean none
	Crashes   bool   // a list without its end is read beyond it
	Scolds    bool   // calls PYTORCH_CUDA_ALLOC_CONF deprecated and reads nothing else
	HIPNoPool bool   // PYTORCH_NO_HIP_MEMORY_CACHING counts, too
	policy.TorchRules
	CapOf1 bool // a fraction of 1 is a limit, and switches collection on
	// SplitAsserts reports that a release of a block above max_split_size_mb in an
	// expandable segment fails an assertion.
	SplitAsserts bool
	NoPoolIs1    bool // only the value 1 turns the pool off, not that the variable is set
	// Places are where failed assertions are in PyTorch's source, by a part of
	// their text; none where that is not known.
	Places map[string]string
}

//go:embed releases.txt
var releasesText string

// Releases is the table of PyTorch's releases.
var Releases = releases.Lazy[release]("releases.txt", releasesText)

// Newest is the newest release that was looked at.
var Newest = policy.Version{2, 15}

// torchKeys are the keys that a release knows.
type torchKeys []torchKey

// torchReads are the readers of values, as the table names them.
var torchReads = map[string]torchRead{
	"megabytes": (*reader).megabytes, "threshold": (*reader).threshold, "roundup": (*reader).roundup, "backend": (*reader).backend,
	"truth": (*reader).truth, "threads": (*reader).threads, "fraction": (*reader).fraction, "count": (*reader).count,
	"reserve": (*reader).reserve, "reserves": (*reader).reserves,
}

// UnmarshalText adds the keys of a text to those of the release before.
func (k *torchKeys) UnmarshalText(text []byte) error {
	keys := slices.Clone(*k)
	for word := range strings.FieldsSeq(string(text)) {
		how, name, _ := strings.Cut(word, ":")
		who, how, _ := strings.Cut(how, ".")
		if torchReads[how] == nil || who != "all" && who != "own" {
			return fmt.Errorf("%s: want all.READER:NAME or own.READER:NAME, with a READER of torchReads", word)
		}
		keys = append(keys, torchKey{name, who == "all", torchReads[how]})
	}
	*k = keys
	return nil
}
