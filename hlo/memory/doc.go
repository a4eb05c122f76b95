// Package memory measures the memory that a module takes. Package summary gives one answer.
//
// [AnalyzeModule] finds the values that a module computes, how long each lives and
// which lie in the same memory, as XLA's buffer assignment sees them; from it
// come the most that lives at once ([Analysis.Peak]), the memory over time
// ([Analysis.Curve]) and what the packed heap takes ([Assign]). [Orders] are those
// among which XLA chooses.
//
// [Analyze] and [Peaks] are another, poorer model: that of XLA's
// rematerialization pass, which computes nothing in place and for which
// parameters and results count for nothing and constants count.
package memory
