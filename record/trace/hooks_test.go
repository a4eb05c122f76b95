package trace_test

import (
	"gpumem/record/internal/test/tracetest"
	"gpumem/record/trace"
)

func init() {
	trace.Given = trace.Helpers{
		EventsOf: tracetest.EventsOf, ListEvents: tracetest.ListEvents,
		CheckTrace: tracetest.CheckTrace, WantInputError: tracetest.WantInputError, Zipped: tracetest.Zipped,
		MustRead: tracetest.MustRead, FuzzRead: tracetest.FuzzRead, Left: tracetest.Left, Diff: tracetest.Diff, ShowPools: tracetest.ShowPools,
	}
}
