//go:build !linux

package slotfile

import (
	"errors"
	"fmt"
)

var errHere = fmt.Errorf("programs share such files on Linux alone: %w", errors.ErrUnsupported)

// Supported returns an error on this system.
func Supported() error { return errHere }

// Open fails on this system.
func (l *Layout) Open(path string, _ bool) (*File, error) {
	return &File{Layout: l, Path: path}, errHere
}

// OpenOf fails on this system.
func (l *Layout) OpenOf(path string, _ int) (*File, error) {
	return &File{Layout: l, Path: path}, errHere
}

// ReadAt fails on this system.
func (f *File) ReadAt([]byte, int64) (int, error) { return 0, errHere }

// WriteAt fails on this system.
func (f *File) WriteAt([]byte, int64) error { return errHere }

func (f *File) open(string, bool, int) error { return errHere }
func (f *File) stat() error                  { return errHere }
func (f *File) mapIn() error                 { return errHere }
func (f *File) end(bool) error               { return nil }
