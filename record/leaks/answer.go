package leaks

import "gpumem/record/replay"

// Answer is a report with the recording that it is about. Its JSON is that of gpumem leaks.
type Answer struct {
	Trace replay.TraceInfo `json:"trace"`
	*Report
}

// LiveAnswer is the JSON of gpumem leaks --live.
type LiveAnswer struct {
	Trace replay.TraceInfo `json:"trace"`
	Live  []Held           `json:"live"`
}
