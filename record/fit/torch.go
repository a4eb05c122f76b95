package fit

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"

	"gpumem/policy/frameworks"
	"gpumem/record/leaks"
	"gpumem/record/trace"
	"gpumem/size"
)

// ended reports whether a program was aborted after its own end, as PyTorch now and then is
// while its libraries are unloaded: what was recorded is whole.
func ended(failed error, found string) bool {
	var exit *exec.ExitError
	if !errors.As(failed, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() || status.Signal() != syscall.SIGABRT {
		return false
	}
	p, err := readProgram(found)
	return err == nil && p.Framework == "pytorch" && p.ended
}

// noGPU returns the error of a program that took no GPU memory, with the reason if it is
// known.
func noGPU(p program) error {
	if p.forCPU {
		return fmt.Errorf("%w: its PyTorch %s is built without CUDA", ErrNoGPU, p.Version)
	}
	return ErrNoGPU
}

// as returns the framework for advise.Config, without a version that cannot be read; ""
// if it is not known.
func (p *program) as() string {
	as := p.Framework + "@" + p.Version
	if _, err := frameworks.ParseRelease(as); p.Version == "" || err != nil {
		return p.Framework
	}
	return as
}

// lines returns what lives at the peak of a pool by line of the program, of the pool with
// the highest for "".
func lines(ctx context.Context, t *trace.Trace, pool string) ([]Place, error) {
	held, err := leaks.Peak(ctx, t, leaks.Config{Pool: pool})
	list := []Place{}
	for _, h := range held[:min(len(held), mostParts)] {
		list = append(list, Place{What: h.Site, Bytes: h.Bytes, Blocks: h.Blocks})
	}
	rest := Place{What: "others"} // so that the list adds up
	for _, h := range held[min(len(held), mostParts):] {
		rest.Bytes, rest.Blocks = size.Add(rest.Bytes, h.Bytes), rest.Blocks+h.Blocks
	}
	if rest.Blocks > 0 {
		list = append(list, rest)
	}
	return list, err
}

// torchDiffers is how a run of PyTorch differs from one on a card.
const torchDiffers = "Convolutions had no workspace of cuDNN."

// sizesDiffer is how a run of a framework does where its calls are not known, see Doubt.
const sizesDiffer = "What depends on values of the GPU, such as nonzero() or a mask, has the size that zeros give it."
