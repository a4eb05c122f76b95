//go:build !unix

package launch

import (
	"context"
	"os"
)

type signals struct{}

func catch() signals { return signals{} }

func (signals) stop() {}

// pass ends the program when ctx ends.
func (signals) pass(ctx context.Context, p *os.Process, ended <-chan struct{}) {
	select {
	case <-ended:
	case <-ctx.Done():
		_ = p.Kill()
	}
}

func endedBy(*os.ProcessState) os.Signal { return nil }

func number(os.Signal) int { return 0 }

// End ends this process with the program's status.
func (r Result) End() { os.Exit(r.Status) }
