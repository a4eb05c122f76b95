package profile

import (
	"testing"

	"gpumem/record/internal/test/tracetest"
	"gpumem/record/trace"
)

var formats = trace.Formats{Format}

func mustRead(t testing.TB, data []byte, opt trace.Options) *trace.Trace {
	t.Helper()
	return tracetest.MustRead(t, formats, data, opt)
}
