// What programs were measured to hold outside of their pools, kept between runs.

package runenv

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"gpumem/internal/privdir"
)

// Learned is a folder of measured overheads, private to this user: one file for
// each program. Several processes may use it at once; of two that save at the same
// instant the later one may undo the earlier one's measurement.
type Learned struct {
	open func() (*privdir.Dir, error)
}

// NewLearned is the folder in this user's private folder, see [privdir.User].
func NewLearned() Learned {
	return Learned{func() (*privdir.Dir, error) {
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

// learnt is one file.
type learnt struct {
	Format  int                 `json:"format"` // 1
	Program string              `json:"program"`
	Bytes   map[string][]uint64 `json:"outside_pool_bytes"` // by framework, the oldest first
}

// Program is the name under which a command's measurements are kept: the program
// and, if it is an interpreter's, the script or module (-m), with absolute paths
// of what is a file in dir.
func Program(command []string, dir string) string {
	if len(command) == 0 {
		return ""
	}
	name := filepath.Base(command[0])
	if !interpreter.MatchString(name) {
		return name
	}
	for i, w := range command[1:] {
		switch {
		case w == "-m" && i+2 < len(command):
			return name + " -m " + command[i+2]
		case w == "-c":
			return name + " -c"
		case strings.HasPrefix(w, "-"):
			continue
		case !filepath.IsAbs(w):
			w = filepath.Join(dir, w)
		}
		return name + " " + w
	}
	return name
}

// Load is the room outside of the pool, in bytes, for each framework that a
// program was measured with: the most of the last 8 measurements, and an eighth
// on top. It is empty for a program that was never measured.
//
// The error is a note: what there is cannot be read, or is damaged, and counts
// as nothing.
func (l Learned) Load(program string) (map[string]uint64, error) {
	dir, err := l.open()
	if err != nil { // where nothing can be kept, nothing was
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

// Save adds a measurement of a program, in bytes. What is damaged is replaced.
func (l Learned) Save(program, framework string, bytes uint64) error {
	dir, err := l.open()
	if err != nil {
		return fmt.Errorf("cannot remember what %s needs: %w", program, err)
	}
	defer dir.Close()
	file, err := read(dir, program)
	if err != nil || file.Bytes == nil {
		file = learnt{Format: 1, Program: program, Bytes: map[string][]uint64{}}
	}
	list := append(file.Bytes[framework], bytes)
	file.Bytes[framework] = list[max(0, len(list)-kept):]
	data, err := json.Marshal(file)
	if err == nil {
		err = dir.WriteFile(fileName(program), append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("cannot remember what %s needs: %w", program, err)
	}
	return nil
}

// sane bounds a measurement: no GPU has as much.
const sane = 1 << 50

func read(dir *privdir.Dir, program string) (learnt, error) {
	name := fileName(program)
	data, err := dir.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return learnt{}, nil
	case err != nil:
		return learnt{}, fmt.Errorf("what was learnt of %s is not used: %w", program, err)
	}
	return parseLearned(filepath.Join(dir.Path(), name), program, data)
}

// parseLearned reads one file.
func parseLearned(path, program string, data []byte) (learnt, error) {
	var file learnt
	damaged := func(why string) (learnt, error) {
		return learnt{}, fmt.Errorf("%s is damaged (%s) and not used; the next measurement replaces it", path, why)
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

// fileName is where a program's measurements are, whatever its name holds.
func fileName(program string) string {
	return fmt.Sprintf("%x.json", sha256.Sum256([]byte(program)))[:16] + ".json"
}
