package stacks

import (
	"strings"
	"testing"
)

// TestOwnFrame refuses a frame of a library, of Python itself, or with its path cut wrongly.
func TestOwnFrame(t *testing.T) {
	for stack, want := range map[string]string{
		"":                       "",
		"a (x.py:1)\nb (y.py:2)": "a (x.py:1)",
		"linear (/venv/lib/python3.12/site-packages/torch/nn/linear.py:125)\nforward (/home/u/model.py:12)\nmain (/home/u/train.py:3)": "forward (/home/u/model.py:12)",
		"run (<frozen runpy>:1)\nat::empty":                              "run (<frozen runpy>:1)",
		"ones (/v/site-packages/jax/a.py:1)\nf (<ipython-input-3-1f>:2)": "f (<ipython-input-3-1f>:2)",
		"ones (/v/site-packages/jax/a.py:1)\nf (<stdin>:2)":              "f (<stdin>:2)",
		`f (C:\py\site-packages\t\a.py:1)` + "\n" + `g (C:\me\b.py:2)`:   `g (C:\me\b.py:2)`,
	} {
		if got := OwnFrame(stack); got != want {
			t.Errorf("%q: %q, want %q", stack, got, want)
		}
	}
	if got := WithoutPaths("forward (/home/u/model.py:12)\nmain (/home/u/train.py:3)\nat::empty(int)"); got != "forward (model.py:12)\nmain (train.py:3)\nat::empty(int)" {
		t.Errorf("%q", got)
	}
}

// Frames of installed packages and of Python itself are not the program's own.
func TestLibraryFramesAreSkipped(t *testing.T) {
	for _, file := range []string{"/v/lib/python3.11/site-packages/jax/a.py", `C:\v\site-packages\jax\a.py`, "/opt/dist-packages/a.py", "/usr/lib/python3.11/a.py", "<frozen a.py"} {
		stack := "inner (" + file + ":1)\nown (/home/u/train.py:2)\nmain (/home/u/train.py:9)"
		if got := OwnFrame(stack); got != "own (/home/u/train.py:2)" {
			t.Errorf("%s: %s", file, got)
		}
	}
	if got := OwnFrame("a (/v/site-packages/a.py:1)\nb (x.cc:3)"); got != "a (/v/site-packages/a.py:1)" {
		t.Errorf("without a frame of the program: %s", got)
	}
}

// Below a trainer's step stands the layer of the library of models; a framework's own frames and
// Python's never do.
func TestLayerFrame(t *testing.T) {
	const (
		linear  = "forward (/v/lib/python3.12/site-packages/torch/nn/linear.py:134)\n"
		layer   = "forward (/v/lib/python3.12/site-packages/transformers/modeling_llama.py:155)\n"
		trainer = "train (/v/lib/python3.12/site-packages/transformers/trainer.py:9)\n"
		own     = "main (/home/u/train.py:3)"
	)
	for stack, want := range map[string]string{
		linear + layer + trainer + own: strings.TrimSuffix(layer, "\n"),
		linear + own:                   own,
		own:                            own,
		linear + "run (/usr/lib/python3.12/runpy.py:5)\n" + own: own,
		strings.TrimSuffix(linear, "\n"):                        "",
		"at::empty(x)":                                          "",
	} {
		if got := LayerFrame(stack); got != want {
			t.Errorf("%q: %q, want %q", stack, got, want)
		}
	}
}
