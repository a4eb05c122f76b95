package shared

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"gpumem/internal/crashpoint"
	"gpumem/internal/slotfile"
)

// Create makes a file of 1 to 16 devices at path, for its user alone (mode
// 0600). It overwrites nothing: errors.Is(err, fs.ErrExist) is true if something
// is there. No process sees less than the whole file; one that is killed in
// here may leave a file behind that begins with ".gpumem-".
func Create(path string, devs []Descriptor) (err error) {
	defer func() {
		if err != nil {
			err = layout.Errorf(path, "%w", err)
		}
	}()
	if err := slotfile.Supported(); err != nil {
		return fmt.Errorf("%w; use a private GPU, such as sim:80GiB", err)
	}
	img, err := newImage(devs)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".gpumem-*")
	if err != nil {
		return fmt.Errorf("cannot make a file there: %w", err)
	}
	defer os.Remove(f.Name())
	// All of it is written, so that no store to the mapping lacks room later.
	_, err = f.Write(slotfile.Bytes(img))
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("cannot write the file: %w", err)
	}
	crashpoint.At("create: written")
	// A link is not made over another file, whereas a rename would replace it.
	err = os.Link(f.Name(), path)
	crashpoint.At("create: linked")
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w; remove the file first, or leave out create to use it", fs.ErrExist)
	}
	if err != nil {
		return fmt.Errorf("cannot make the file: %w", err)
	}
	return nil
}
