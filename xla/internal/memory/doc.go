// Package memory measures the memory that a module takes. [Summarize] gives one answer.
//
// [AnalyzeModule] finds the values that a module computes, how long each lives and
// which lie in the same memory, as XLA's buffer assignment sees them; from it
// come the most that lives at once ([Analysis.Peak]), the memory over time
// ([Analysis.Curve]) and what the packed heap takes ([Analysis.Assign]). [Orders] are those
// among which XLA chooses.
//
// A [Meter] counts by another, poorer model: that of XLA's
// rematerialization pass, which computes nothing in place and for which
// parameters and results count for nothing and constants count.
//
// The two answer different questions. "Does the step fit?" is buffer assignment's: it has
// arguments, results and the heap as the program will take them. "Is there something to
// recompute?" is the pass's, which compares its own count with a limit; a planner has to go
// by that count where XLA runs the pass, even if the heap turns out smaller.
//
// The values of both come from package alias. Buffer assignment, in the order of its files:
// live.go finds when each value lives, replay.go goes through the schedule and makes and
// frees them, assign.go gives them memory, with lives.go for what lies in one allocation,
// and package pack for the heap. The pass: buffers.go finds the buffers of one computation
// and who uses them, fusion.go what loop fusions read of tuples, peak.go walks over the
// instructions, and tempcurve.go tells what lives where. schedule.go and schedule_list.go
// order instructions, and summary.go puts the figures of a module together.
//
// Modules must have passed xla/internal/verify. Nothing here changes one, except [Order.Apply], and
// nothing follows later changes, except a Meter by [Meter.Forget].
package memory
