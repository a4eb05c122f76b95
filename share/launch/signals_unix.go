//go:build unix

// Signals: which are passed on, and how a program ended.

package launch

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// fromTerminal are the signals that a terminal sends to its whole foreground
// process group: the program gets those from the kernel.
var fromTerminal = []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGWINCH}

// sent are those that someone sends to us, meaning the program.
var sent = []os.Signal{syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGCONT}

type signals struct{ c chan os.Signal }

func catch() signals {
	s := signals{make(chan os.Signal, 16)}
	signal.Notify(s.c, append(append([]os.Signal(nil), fromTerminal...), sent...)...)
	return s
}

func (s signals) stop() { signal.Stop(s.c) }

// pass gives what comes to the program, until it has ended.
func (s signals) pass(ctx context.Context, p *os.Process, ended <-chan struct{}) {
	over := ctx.Done()
	for {
		select {
		case <-ended:
			return
		case <-over:
			over = nil // asked once
			_ = p.Signal(syscall.SIGTERM)
		case sig := <-s.c:
			if inForeground() {
				skip := false
				for _, t := range fromTerminal {
					skip = skip || t == sig
				}
				if skip {
					continue
				}
			}
			_ = p.Signal(sig) // it may have ended
		}
	}
}

// endedBy is the signal that ended a program; nil: it ended by itself.
func endedBy(state *os.ProcessState) os.Signal {
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return ws.Signal()
	}
	return nil
}

func number(sig os.Signal) int {
	n, _ := sig.(syscall.Signal)
	return int(n)
}

// End ends this process as the program ended: with its status, or by its
// signal, so that a shell or a script sees what it would have seen.
func (r Result) End() {
	if sig, ok := r.Signal.(syscall.Signal); ok {
		signal.Reset(sig)
		_ = syscall.Kill(os.Getpid(), sig)
		// It comes to one of our threads, at once but maybe not before the next
		// line. One that does not end us: the shell's way to say it.
		time.Sleep(time.Second)
	}
	os.Exit(r.Status)
}
