//go:build !race

package replay_test

const slow = false
