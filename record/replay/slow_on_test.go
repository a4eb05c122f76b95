//go:build race

package replay_test

// slow: the race detector makes everything ten times as long.
const slow = true
