package profile

import (
	"testing"

	"gpumem/internal/test/tracetest"
	"gpumem/trace"
)

var formats = trace.Formats{Format}

func mustRead(t testing.TB, data []byte, opt trace.Options) *trace.Trace {
	t.Helper()
	return tracetest.MustRead(t, formats, data, opt)
}
