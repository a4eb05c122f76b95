// Measurements of earlier runs, kept between runs.

package overhead

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"gpumem/node/internal/privdir"
)

// Store is a folder of measured overheads, private to this user: one file for
// each program. Several processes may use it at once; of two that save at the same
// instant the later one may undo the earlier one's measurement.
type Store struct {
	open func() (*privdir.Dir, error)
}

// NewStore returns the store in this user's private folder, see [privdir.User].
func NewStore() Store {
	return Store{func() (*privdir.Dir, error) {
		user, err := privdir.User(nil)
		if err != nil {
			return nil, err
		}
		defer user.Close()
		return privdir.Open(filepath.Join(user.Path(), "measured"))
	}}
}

// kept is how many measurements of a program and framework are kept.
const kept = 8

// measurements is one file.
type measurements struct {
	Format  int                 `json:"format"` // 1
	Program string              `json:"program"`
	Bytes   map[string][]uint64 `json:"outside_pool_bytes"` // by framework, the oldest first
}

// Load returns the overhead in bytes for each framework that a program was measured
// with: the maximum of the last 8 measurements, plus an eighth. It is empty for a
// program that was never measured.
//
// The error is a note: the file is damaged or cannot be read, and is not used.
func (s Store) Load(program string) (map[string]uint64, error) {
	dir, err := s.open()
	if err != nil { // no folder, no measurements
		return nil, nil
	}
	defer dir.Close()
	file, err := read(dir, program)
	if err != nil {
		return nil, err
	}
	room := map[string]uint64{}
	for framework, list := range file.Bytes {
		most := uint64(0)
		for _, n := range list {
			most = max(most, n)
		}
		room[framework] = most + most/8
	}
	return room, nil
}

// Save adds a measurement of a program, in bytes. A damaged file is replaced.
func (s Store) Save(program, framework string, bytes uint64) error {
	dir, err := s.open()
	if err != nil {
		return fmt.Errorf("cannot save the measurement of %s: %w", program, err)
	}
	defer dir.Close()
	file, err := read(dir, program)
	if err != nil || file.Bytes == nil {
		file = measurements{Format: 1, Program: program, Bytes: map[string][]uint64{}}
	}
	list := append(file.Bytes[framework], bytes)
	file.Bytes[framework] = list[max(0, len(list)-kept):]
	data, err := json.Marshal(file)
	if err == nil {
		err = dir.WriteFile(fileName(program), append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("cannot save the measurement of %s: %w", program, err)
	}
	return nil
}

// sane bounds a measurement: no GPU has that much.
const sane = 1 << 50

func read(dir *privdir.Dir, program string) (measurements, error) {
	name := fileName(program)
	data, err := dir.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return measurements{}, nil
	case err != nil:
		return measurements{}, fmt.Errorf("the measurements of %s are not used: %w", program, err)
	}
	return parse(filepath.Join(dir.Path(), name), program, data)
}

// parse reads one file.
func parse(path, program string, data []byte) (measurements, error) {
	var file measurements
	damaged := func(why string) (measurements, error) {
		return measurements{}, fmt.Errorf("%s is damaged (%s) and not used; the next measurement replaces it", path, why)
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return damaged("no JSON of ours")
	}
	switch {
	case file.Format != 1:
		return damaged(fmt.Sprintf("format %d, want 1", file.Format))
	case file.Program != program:
		return damaged("of another program")
	}
	for framework, list := range file.Bytes {
		if framework == "" || len(list) == 0 || len(list) > kept {
			return damaged("measurements missing or too many")
		}
		for _, n := range list {
			if n > sane {
				return damaged("more bytes than any GPU has")
			}
		}
	}
	return file, nil
}

// fileName returns the name of a program's file, whatever the program's name contains.
func fileName(program string) string {
	return fmt.Sprintf("%x.json", sha256.Sum256([]byte(program)))[:16] + ".json"
}
