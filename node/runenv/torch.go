// PyTorch: a fraction by the hook, and in PyTorch's list of settings where every
// PyTorch that the program may import knows it there.

package runenv

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gpumem/policy/torchconf"
)

const torchKey = "per_process_memory_fraction" // a setting since PyTorch 2.10

// The lists that some release reads it in.
var torchLists = []string{"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"}

// torch sets PyTorch's fraction.
func (e *editor) torch(lim Limits, command []string) error {
	fractions, err := lim.fractions("pytorch", 0)
	if err != nil {
		return err
	}
	theirs, set := e.torchFraction()
	var texts []string
	for i, f := range fractions {
		if set && theirs <= f {
			fractions[i] = theirs
		}
		texts = append(texts, strconv.FormatFloat(fractions[i], 'f', -1, 64))
	}
	e.set(hookTorchVar, strings.Join(texts, ","), lim.why("pytorch", -1)+": the hook makes it PyTorch's fraction")

	// A setting that a release does not know is an error there, so it is added only
	// if all releases that are found know it.
	smallest := strconv.FormatFloat(slices.Min(fractions), 'f', -1, 64)
	name, text, release := "", "", ""
	for _, v := range versionsOf("torch", command, e.get) {
		n, t, err := torchconf.Merge(e.environment(), v, torchKey, smallest)
		if err != nil || release != "" && (n != name || t != text) {
			release = ""
			break
		}
		name, text, release = n, t, v
	}
	if release != "" {
		e.set(name, text, fmt.Sprintf("the same as a setting, which PyTorch %s knows", release))
	}
	for _, off := range []string{"PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING"} {
		if e.has(off) {
			e.keep(off, "the lease is not enforced: without its pool PyTorch has no limit")
		}
	}
	return nil
}

var torchFraction = regexp.MustCompile(torchKey + `\s*:\s*([0-9.eE+-]+)`)

// torchFraction returns the smallest fraction in the user's lists.
func (e *editor) torchFraction() (f float64, set bool) {
	for _, name := range torchLists {
		for _, m := range torchFraction.FindAllStringSubmatch(e.get(name), -1) {
			if x, err := strconv.ParseFloat(m[1], 64); err == nil && x >= 0 && x <= 1 && (!set || x < f) {
				f, set = x, true
			}
		}
	}
	return f, set
}
