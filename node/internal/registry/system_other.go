//go:build !linux

package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

var errHere = fmt.Errorf("sharing a GPU between programs needs Linux: %w", errors.ErrUnsupported)

func supported() error { return errHere }

func openFile(string, int, int) (*os.File, error) { return nil, errHere }

// FileID is what no two files have in common. Here there is none.
type FileID struct{ Device, Inode uint64 }

// IDOf returns nothing on this system.
func IDOf(fs.FileInfo) FileID { return FileID{} }

func ownerOf(fs.FileInfo) int              { return -1 }
func isUnmapped(int) bool                  { return false }
func checkAccess(string) error             { return errHere }
func openUnnamed(string) (*os.File, error) { return nil, errHere }
func isNamedOnly(error) bool               { return false }
func nameFile(*os.File, string) error      { return errHere }
