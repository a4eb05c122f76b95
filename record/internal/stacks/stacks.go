// Package stacks reads the stacks of recordings, which are text: a frame a line, the
// innermost first, each "name (file:line)".
package stacks

import (
	"iter"
	"slices"
	"strings"
)

// WithoutPaths returns a stack without the directories of its files.
func WithoutPaths(stack string) string {
	lines := strings.Split(stack, "\n")
	for i, l := range lines {
		name, file, ok := strings.Cut(l, " (")
		if at := strings.LastIndexAny(file, `/\`); ok && at >= 0 {
			lines[i] = name + " (" + file[at+1:]
		}
	}
	return strings.Join(lines, "\n")
}

// OwnFrame returns the innermost frame of a stack that is not of a library, or the
// innermost at all. Libraries are known by the directories of their files.
func OwnFrame(stack string) string {
	for l := range OwnFrames(stack) {
		return l
	}
	first, _, _ := strings.Cut(stack, "\n")
	return first
}

// OwnFrames returns the frames of a stack that are not of a library, the innermost first.
func OwnFrames(stack string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for l := range strings.Lines(stack) {
			l = strings.TrimSuffix(l, "\n")
			if strings.HasSuffix(l, ")") && isPython(l) && !isLibrary(l) && !yield(l) {
				return
			}
		}
	}
}

// isPython reports whether a frame is of Python: of a file, or of code that was typed.
func isPython(frame string) bool {
	return strings.Contains(frame, ".py:") || slices.ContainsFunc(typed, func(name string) bool { return strings.Contains(frame, " ("+name) })
}

// typed are the names of Python's code without a file: python -c, standard input, a cell of
// IPython.
var typed = []string{"<string>:", "<stdin>:", "<ipython-input-"}

// packages are known by their names, since PyTorch's profiler cuts the folder where they are
// installed off its paths, as it does with the program's: "torch/nn/modules/linear.py".
var packages = []string{
	"accelerate", "apex", "deepspeed", "diffusers", "flash_attn", "lightning", "numpy", "peft", "pytorch_lightning", "timm",
	"torch", "torchaudio", "torchvision", "transformers", "triton", "xformers",
}

// isLibrary reports whether a frame is in a folder where pip, conda and Debian install
// packages, or in Python's own files.
func isLibrary(frame string) bool {
	_, file, _ := strings.Cut(frame, " (")
	file = strings.ReplaceAll(file, `\`, "/")
	for _, dir := range []string{"/site-packages/", "/dist-packages/", "/lib/python3"} {
		if strings.Contains(file, dir) {
			return true
		}
	}
	if name, _, ok := strings.Cut(file, "/"); ok && slices.Contains(packages, name) {
		return true
	}
	return strings.HasPrefix(file, "<") && !slices.ContainsFunc(typed, func(name string) bool { return strings.HasPrefix(file, name) })
}

// LayerFrame returns the innermost frame that is not of the framework itself or of Python: a line of
// the program, or of a library of models that is built on the framework. It is "" if there is
// none.
func LayerFrame(stack string) string {
	for l := range strings.Lines(stack) {
		l = strings.TrimSuffix(l, "\n")
		if strings.HasSuffix(l, ")") && isPython(l) && (!isLibrary(l) || isBuiltOn(l)) {
			return l
		}
	}
	return ""
}

// frameworks are the packages in which every allocation ends, whatever was called.
var frameworks = []string{"torch", "jax", "jaxlib", "tensorflow", "keras", "numpy", "cupy"}

// isBuiltOn reports whether a frame is of an installed package that is no framework.
func isBuiltOn(frame string) bool {
	_, file, _ := strings.Cut(frame, " (")
	file = strings.ReplaceAll(file, `\`, "/")
	for _, dir := range []string{"/site-packages/", "/dist-packages/"} {
		if _, in, ok := strings.Cut(file, dir); ok {
			name, _, _ := strings.Cut(in, "/")
			return !slices.Contains(frameworks, name)
		}
	}
	return false
}
