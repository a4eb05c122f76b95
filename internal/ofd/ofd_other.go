//go:build !linux

package ofd

import "errors"

// Try fails on this system.
func (l Lock) Try(Kind) error { return errors.ErrUnsupported }

// Taken returns false on this system.
func Taken(error) bool { return false }

// Wait fails on this system.
func (l Lock) Wait(Kind) error { return errors.ErrUnsupported }

// Unlock fails on this system.
func (l Lock) Unlock() error { return errors.ErrUnsupported }

// Other fails on this system.
func (l Lock) Other(Kind) (Lock, bool, error) { return Lock{}, false, errors.ErrUnsupported }
