// Containers that a lease is for.

package registry

import (
	"encoding/json"
	"strings"
)

// Container is one container that a lease is for, as the agent of a Kubernetes node
// knows it.
type Container struct {
	ID        string `json:"id"` // the runtime's, 64 hex digits
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	Name      string `json:"name,omitempty"`
}

// String returns NAMESPACE/POD/NAME; the first 12 digits of the ID where the record had no
// room for the names.
func (c Container) String() string {
	if c == c.bare() {
		return c.ID[:min(12, len(c.ID))]
	}
	return c.Namespace + "/" + c.Pod + "/" + c.Name
}

// bare is the container without its names.
func (c Container) bare() Container { return Container{ID: c.ID} }

// length is the number of bytes that the container has in a record.
func (c Container) length() int {
	text, _ := json.Marshal(c) // text never fails
	return len(text)
}

// idDigits is the length of a container's ID.
const idDigits = 64

// isContainerID reports whether an ID is one that a container runtime makes.
func isContainerID(id string) bool {
	return len(id) == idDigits && strings.Trim(id, "0123456789abcdef") == ""
}
