package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/node/share"
)

// TestRunInContainer: a program starts in the lease of its container, and what that
// cannot give is refused with a way out.
func TestRunInContainer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lease.json")
	t.Setenv(share.EnvLease, path)
	if ok, err := new(Plan).inContainer(); ok || err != nil {
		t.Errorf("without a lease file: %t, %v", ok, err)
	}
	err := share.WriteContainerLease(path, share.ContainerLease{Claim: "n/c", Pod: "p", Container: "c", GPUs: []share.ContainerGPU{
		{UUID: "GPU-1", Bytes: 6 << 30, Total: 24 << 30, Ledger: "/l"}, {UUID: "GPU-2", Bytes: 2 << 30, Total: 24 << 30, Ledger: "/m"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		plan *Plan
		want string // of the error; "" for none
	}{
		{"as it is", &Plan{Copies: 1}, ""},
		{"within", &Plan{Copies: 1, Bytes: 2 << 30}, ""},
		{"beyond", &Plan{Copies: 1, Bytes: 3 << 30}, "not enough free memory on GPU-2: requested 3 GiB; this container has a lease of 2 GiB; ask for at most that, or for more in the ResourceClaim"},
		{"copies", &Plan{Copies: 2}, "--copies 2: the programs of this container have its lease together"},
		{"recorded", &Plan{Copies: 1, Record: "f"}, "set GPUMEM_RECORD=f"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			said := ""
			tc.plan.Say = func(line string) { said += line + "\n" }
			ok, err := tc.plan.inContainer()
			if !ok || (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%t, %v; want %q", ok, err, tc.want)
			}
			if err == nil && !strings.HasPrefix(said, "this container has a lease of 6 GiB on GPU-1 and 2 GiB on GPU-2, ") {
				t.Errorf("said %q", said)
			}
		})
	}
	if err := os.WriteFile(path, []byte(`{"gpumem":1}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := new(Plan).inContainer(); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("damaged: %v", err)
	}
}
