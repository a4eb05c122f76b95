//go:build !invariants

// Package invariants reports whether this build checks every structure after
// every operation. With the build tag invariants it does, and a violation is a
// panic; without it the checks are compiled out.
//
//	go test -tags invariants ./...
package invariants

// Enabled is a constant, so that what it guards costs nothing when it is false.
const Enabled = false
