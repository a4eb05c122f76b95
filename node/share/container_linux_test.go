package share

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// pod returns n containers with names.
func pod(n int) (all []Container) {
	for i := range n {
		all = append(all, Container{digits(i), "team-a", fmt.Sprintf("trainer-%d", i), "main"})
	}
	return all
}

// TestRecordKeepsTheContainersThatFit: whatever does not fit is left out and counted, the
// ledger and the first containers stay.
func TestRecordKeepsTheContainersThatFit(t *testing.T) {
	for _, tc := range []struct {
		name    string
		put     []Container
		command []string
		named   int // containers that keep their names
		kept    int
	}{
		{"none", nil, nil, 0, 0},
		{"one", pod(1), []string{"agent"}, 1, 1},
		{"names of the last go first", pod(40), nil, 17, 40},
		{"then the command", pod(46), []string{strings.Repeat("x", 1000)}, 0, 46},
		{"then containers", pod(60), []string{"agent"}, 0, 52},
		{"a great many", pod(2000), nil, 0, 52},
		{"long names", []Container{{digits(1), strings.Repeat("\x01", 500), "", ""}, {digits(2), strings.Repeat("\x01", 500), "", ""}}, nil, 1, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := sample("gpu")
			r.Command = tc.command
			put := slices.Clone(tc.put)
			r, err := r.use(put, "/run/gpumem/shares/1/ledger")
			must(t, err)
			got, err := decode(r.encode())
			must(t, err)
			named := 0
			for i, c := range got.Containers {
				if c == tc.put[i] {
					named++
				} else if c != tc.put[i].bare() {
					t.Errorf("container %d is %+v", i, c)
				}
			}
			if len(got.Containers) != tc.kept || named != tc.named || got.More != len(tc.put)-tc.kept || got.Ledger != r.Ledger {
				t.Errorf("%d containers, %d with names, %d more, ledger %q; want %d, %d and %d", len(got.Containers), named, got.More, got.Ledger, tc.kept, tc.named, len(tc.put)-tc.kept)
			}
			if !slices.Equal(put, tc.put) {
				t.Error("the caller's containers have changed")
			}
		})
	}
}

func TestUseRefuses(t *testing.T) {
	deep := sample(strings.Repeat("\x01", maxDevice)) // JSON writes six bytes for one
	for _, tc := range []struct {
		name       string
		r          record
		containers []Container
		ledger     string
		want       string
	}{
		{"a short id", sample("gpu"), []Container{{ID: "12ab", Pod: "p"}}, "", `container "12ab" (/p): its id has not 64 hex digits`},
		{"no digits", sample("gpu"), []Container{{ID: strings.Repeat("g", 64)}}, "", "64 hex digits"},
		{"a relative path", sample("gpu"), nil, "ledger", "absolute path"},
		{"a long path", sample("gpu"), nil, "/" + strings.Repeat("x", maxLedger), "1025 bytes"},
		{"no room for a path", deep, nil, "/" + strings.Repeat("x", maxLedger-1), "want a shorter one"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := tc.r.use(tc.containers, tc.ledger); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// TestDecodeRefusesContainers: a part of an ID would name others' containers.
func TestDecodeRefusesContainers(t *testing.T) {
	r := sample("gpu")
	r.Containers = []Container{{ID: "0"}}
	if _, err := decode(r.encode()); err == nil || !strings.Contains(err.Error(), `its container is "0"`) {
		t.Error(err)
	}
	r.Containers, r.More = nil, -1
	if _, err := decode(r.encode()); err == nil {
		t.Error("-1 containers are left out")
	}
}

func TestContainerOf(t *testing.T) {
	leases := map[string]string{digits(1): "a", digits(2): "b"}
	for _, tc := range []struct {
		name, cgroup, want string
	}{
		{"no file", "", ""},
		{"cgroup 2", "0::/kubepods/besteffort/pod5/" + digits(1) + "\n", "a"},
		{"systemd's names", "0::/kubepods.slice/kubepods-pod5.slice/cri-containerd-" + digits(2) + ".scope\n", "b"},
		{"cgroup 1", "11:memory:/kubepods/pod5/" + digits(1) + "\n10:cpu:/\n", "a"},
		{"seen from another container", "0::/../" + digits(2) + "\n", "b"},
		{"a part of the container", "0::/kubepods/pod5/" + digits(1) + "/init", "a"},
		{"a container in a container", "0::/docker/" + digits(1) + "/kubepods/" + digits(2) + "\n", "b"},
		{"another's", "0::/kubepods/pod5/" + digits(3) + "\n", ""},
		{"the beginning of an id", "0::/kubepods/" + digits(1)[:63] + "\n", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got, ok := containerOf(tc.cgroup, leases); got != tc.want || ok != (tc.want != "") {
				t.Errorf("%q, %t; want %q", got, ok, tc.want)
			}
		})
	}
}

func TestContainerString(t *testing.T) {
	for want, c := range map[string]Container{
		"team-a/trainer/main": {digits(1), "team-a", "trainer", "main"},
		digits(1)[:12]:        {ID: digits(1)},
	} {
		if got := c.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
