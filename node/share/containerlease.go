// The lease file of a container: the only description of its format, version 1.
//
// The agent of a Kubernetes node mounts it into a container, for reading, and [EnvLease]
// names it there. It is one line of JSON without blanks, and a line feed:
//
//	{"gpumem":1,"claim":"team-a/gpu","pod":"trainer","container":"main","gpus":[
//	  {"uuid":"GPU-...","bytes":6442450944,"total":25769803776,"shares":["..."],
//	   "ledger":"/run/gpumem/....ledger","outside":314572800}]}
//
// (broken here). Every GPU has a ledger, whose path has letters, digits and "-_./" alone,
// and "outside" where the agent knows what a process holds beside its pool. So the pool
// library, whose C cannot read JSON, looks for "ledger":" and "outside": and takes what
// follows. Neither can be in another text, where a quote has a backslash before it.

package share

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"gpumem/node/internal/registry"
)

// ContainerLease is what a container may use of the GPUs of its node.
type ContainerLease struct {
	Version   int            `json:"gpumem"`    // 1; WriteContainerLease sets it
	Claim     string         `json:"claim"`     // NAMESPACE/NAME of the ResourceClaim
	Pod       string         `json:"pod"`       // its name
	Container string         `json:"container"` // its name
	GPUs      []ContainerGPU `json:"gpus"`
}

// ContainerGPU is the lease on one GPU.
type ContainerGPU struct {
	UUID    string   `json:"uuid"`
	Bytes   uint64   `json:"bytes"`             // for all programs of the share together
	Total   uint64   `json:"total"`             // of the GPU
	Shares  []string `json:"shares"`            // the shareIDs that the bytes are of
	Ledger  string   `json:"ledger"`            // absolute path in the container, see package ledger
	Outside uint64   `json:"outside,omitempty"` // bytes that each process counts for its context and libraries; 0: unknown
}

const (
	containerVersion = 1
	containerBytes   = 64 << 10 // of the file at most; the pool library has as much room
	containerBegin   = `{"gpumem":`
)

// check reports what makes no sense.
func (l ContainerLease) check() error {
	if len(l.GPUs) == 0 {
		return errors.New("it has no GPU")
	}
	seen := map[string]bool{}
	for _, g := range l.GPUs {
		switch {
		case g.UUID == "":
			return errors.New("a GPU has no UUID")
		case seen[g.UUID]:
			return fmt.Errorf("GPU %.80q is there twice", g.UUID)
		case g.Bytes == 0 || g.Bytes > g.Total:
			return fmt.Errorf("GPU %s: %d bytes of %d; want from 1 to all of them", g.UUID, g.Bytes, g.Total)
		case !filepath.IsAbs(g.Ledger) || strings.Trim(g.Ledger, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./") != "":
			return fmt.Errorf(`GPU %s: ledger %.200q: want an absolute path of letters, digits and "-_./"`, g.UUID, g.Ledger)
		}
		seen[g.UUID] = true
	}
	return nil
}

// WriteContainerLease writes the lease file of a container, readable for all, and
// replaces one that is there in one step.
func WriteContainerLease(path string, l ContainerLease) error {
	l.Version = containerVersion
	var text bytes.Buffer
	err := l.check()
	if err == nil {
		err = json.NewEncoder(&text).Encode(l)
	}
	if err == nil && text.Len() > containerBytes {
		err = fmt.Errorf("it has %d bytes; want at most %d", text.Len(), containerBytes)
	}
	if err != nil {
		return fmt.Errorf("lease file %s: %w", path, err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".lease-")
	if err != nil {
		return fmt.Errorf("lease file %s: %w", path, err)
	}
	_, err = f.Write(text.Bytes())
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("lease file %s: %w", path, errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

// ReadContainerLease reads the lease file of a container. The error is ErrDamaged,
// ErrVersion or one of the file system.
func ReadContainerLease(path string) (ContainerLease, error) {
	text, err := readSome(path)
	if err != nil {
		return ContainerLease{}, fmt.Errorf("lease file %s: %w", path, err)
	}
	var l ContainerLease
	switch err := json.Unmarshal(text, &l); {
	case len(text) > containerBytes:
		err = fmt.Errorf("it has more than %d bytes", containerBytes)
		fallthrough
	case err != nil || l.Version < 1:
		err = cmp.Or(err, errors.New("it has no version"))
		return ContainerLease{}, fmt.Errorf("lease file %s: %w: %w", path, ErrDamaged, err)
	case l.Version != containerVersion:
		return ContainerLease{}, fmt.Errorf("lease file %s: %w: its format is version %d, this program's is %d; use a gpumem of the agent's release", path, ErrVersion, l.Version, containerVersion)
	}
	if err := l.check(); err != nil {
		return ContainerLease{}, fmt.Errorf("lease file %s: %w: %w", path, ErrDamaged, err)
	}
	return l, nil
}

// readSome reads a file, of a long one as much as shows that it is too long.
func readSome(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, containerBytes+1))
}

// InContainer returns the lease of the container that this process runs in, by
// [EnvLease]; ok is false outside of one, where that names a lease of the registry or
// nothing. An error is that of [ReadContainerLease].
func InContainer() (l ContainerLease, ok bool, err error) {
	path := os.Getenv(EnvLease)
	if path == "" {
		return l, false, nil
	}
	if text, err := readSome(path); err != nil || !bytes.HasPrefix(text, []byte(containerBegin)) {
		return l, false, nil
	}
	l, err = ReadContainerLease(path)
	return l, err == nil, err
}

// Entries returns the lease on each GPU for lists. Their Device is the UUID; their process
// and its pids are unknown.
func (l ContainerLease) Entries() (all []Entry) {
	namespace, _, _ := strings.Cut(l.Claim, "/")
	for _, g := range l.GPUs {
		all = append(all, Entry{Device: g.UUID, Bytes: g.Bytes, UID: -1, Ledger: g.Ledger,
			Containers: []Container{{Namespace: namespace, Pod: l.Pod, Name: l.Container}}})
	}
	return all
}

// ReadLease reads the record of a lease, such as the one that [EnvLease] names. It
// does not check whether the lease still lives. Of a container's lease file it is the
// lease on the first GPU; [ReadContainerLease] reads all. The error is ErrDamaged,
// ErrVersion or one of the file system.
func ReadLease(path string) (Entry, error) {
	if text, err := readSome(path); err == nil && bytes.HasPrefix(text, []byte(containerBegin)) {
		l, err := ReadContainerLease(path)
		if err != nil {
			return Entry{}, err
		}
		return l.Entries()[0], nil
	}
	f, err := os.Open(path)
	if err != nil {
		return Entry{}, fmt.Errorf("lease %s: %w", path, err)
	}
	defer f.Close()
	r, err := registry.ReadRecord(f)
	if err != nil {
		return Entry{}, fmt.Errorf("lease %s: %w", path, err)
	}
	return r.Entry(0), nil
}
