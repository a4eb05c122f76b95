package main

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"gpumem/node/turns"
)

// TestPauseInterrupted: Ctrl-C says what has become of the program, and another error nothing of it.
func TestPauseInterrupted(t *testing.T) {
	gone := errors.New("process 7 has ended")
	for _, tt := range []struct {
		name string
		err  error
		want string
	}{
		{"interrupted", context.Canceled, "gpumem: process 7 is not paused: it is still leaving; it goes on as before\n"},
		{"of a process that ends", gone, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			answer := turns.Answer{PID: 7, Why: "it is still leaving; it goes on as before"}
			o := turnsOptions{call: call{out: &out, errs: &errs}, pid: 7, wait: time.Second,
				do: func(context.Context, turns.Request) (turns.Answer, error) { return answer, tt.err }}
			if err := runTurns(t.Context(), &o); !errors.Is(err, tt.err) {
				t.Errorf("%v, want %v", err, tt.err)
			}
			if out.Len() > 0 || errs.String() != tt.want {
				t.Errorf("stdout %q, stderr %q, want %q", out.String(), errs.String(), tt.want)
			}
		})
	}
}
