package tape_test

import (
	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
)

func init() {
	tape.Given = tape.Helpers{
		EventsOf: tracetest.EventsOf, ListEvents: tracetest.ListEvents,
		CheckTrace: tracetest.CheckTrace, WantInputError: tracetest.WantInputError, Zipped: tracetest.Zipped,
		MustRead: tracetest.MustRead, FuzzRead: tracetest.FuzzRead, Left: tracetest.Left, Diff: tracetest.Diff, ShowPools: tracetest.ShowPools,
	}
}
