//go:build !linux

package library

// capable reports false: file capabilities are Linux's.
func capable(string) bool { return false }

// Leave does nothing on this system.
func Leave() {}
