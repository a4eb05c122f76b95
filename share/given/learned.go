// What programs were measured to hold outside of their pools, kept between runs.

package given

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Learned is a folder of measured overheads: one file for each program, in a
// folder of each user's own. Several processes may use it at once; of two that
// save at the same instant the later one may undo the earlier one's measurement.
type Learned struct {
	dir string // of the registry
}

// NewLearned is what is learnt under dir, which must exist before Save.
func NewLearned(dir string) Learned { return Learned{dir} }

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
	file, err := l.read(program)
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
	folder, err := ownFolder(l.dir, "learned")
	if err != nil {
		return err
	}
	file, err := l.read(program)
	if err != nil || file.Bytes == nil {
		file = learnt{Format: 1, Program: program, Bytes: map[string][]uint64{}}
	}
	list := append(file.Bytes[framework], bytes)
	file.Bytes[framework] = list[max(0, len(list)-kept):]
	data, err := json.Marshal(file)
	if err != nil {
		return err
	}
	// Whole or not at all: readers see the old file or the new one.
	temp, err := os.CreateTemp(folder, ".new-*")
	if err != nil {
		return fmt.Errorf("cannot remember what %s needs: %w", program, err)
	}
	_, err = temp.Write(append(data, '\n'))
	err = errors.Join(err, temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), filepath.Join(folder, fileName(program)))
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("cannot remember what %s needs: %w", program, err), os.Remove(temp.Name()))
	}
	return err
}

// sane bounds a measurement: no GPU has as much.
const sane = 1 << 50

func (l Learned) read(program string) (learnt, error) {
	path := filepath.Join(l.dir, ownName("learned"), fileName(program))
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return learnt{}, nil
	case err != nil:
		return learnt{}, fmt.Errorf("what was learnt of %s is not used: %w", program, err)
	}
	if err := checkOwn(filepath.Dir(path)); err != nil {
		return learnt{}, fmt.Errorf("what was learnt of %s is not used: %w", program, err)
	}
	return parseLearned(path, program, data)
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
