package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// EnvDir is the variable with the folder of the programs that the script build makes, below
// it bin.
const EnvDir = "GPUMEM_CLUSTER_DIR"

// Program returns the path of a program of the cluster.
func Program(name string) string {
	dir := os.Getenv(EnvDir)
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			cache = os.TempDir()
		}
		dir = filepath.Join(cache, "gpumem-cluster")
	}
	return filepath.Join(dir, "bin", name)
}

// plugins are the folders in which distributions put the plugins of CNI.
var plugins = []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"}

// Missing returns what this machine lacks for a node, with the way to get it, or "".
func Missing() string {
	var missing []string
	if os.Geteuid() != 0 {
		missing = append(missing, "root's rights are missing")
	}
	for _, p := range []string{"hyperkube", "containerd", "containerd-shim-runc-v2", "ctr"} {
		if _, err := os.Stat(Program(p)); err != nil {
			missing = append(missing, fmt.Sprintf("%s is not there; run kube/cluster/build", Program(p)))
			break
		}
	}
	for _, p := range []struct{ name, pkg string }{{"runc", "runc"}, {"ip", "iproute2"}, {"gcc", "gcc"}, {"mount", "mount"}} {
		if _, err := exec.LookPath(p.name); err != nil {
			missing = append(missing, fmt.Sprintf("%s is not there; install the package %s", p.name, p.pkg))
		}
	}
	if pluginFolder() == "" {
		missing = append(missing, fmt.Sprintf("no CNI plugins in %s; install the package containernetworking-plugins", strings.Join(plugins, ", ")))
	}
	return strings.Join(missing, "; ")
}

// pluginFolder returns the folder with the plugins of CNI, or "".
func pluginFolder() string {
	for _, dir := range plugins {
		if _, err := os.Stat(filepath.Join(dir, "bridge")); err == nil {
			return dir
		}
	}
	return ""
}
