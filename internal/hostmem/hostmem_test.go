package hostmem

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestFree: the least of the host and all groups above counts, less the margin.
func TestFree(t *testing.T) {
	const meminfo = "MemTotal: 104857600 kB\nMemFree: 1 kB\nMemAvailable: 52428800 kB\n" // 100 and 50 GiB
	const gib = 1 << 30
	group := func(at, limit, usage, inactive string) map[string]string {
		return map[string]string{at + "/memory.max": limit + "\n", at + "/memory.current": usage + "\n", at + "/memory.stat": "anon 5\ninactive_file " + inactive + "\n"}
	}
	const top = "sys/fs/cgroup"
	for _, tc := range []struct {
		name  string
		self  string
		files []map[string]string
		want  uint64
		by    string
	}{
		{"the host", "0::/\n", nil, 45 * gib, "the host"},
		{"no groups at all", "", nil, 45 * gib, "the host"},
		{"a group", "0::/a/b\n", []map[string]string{group(top+"/a/b", "21474836480", "5368709120", "0")}, 14 * gib, "the control group /a/b"},
		{"the group above", "0::/a/b\n", []map[string]string{
			group(top+"/a", "21474836480", "5368709120", "0"), group(top+"/a/b", "max", "5368709120", "0"),
		}, 14 * gib, "the control group /a"},
		{"the one at the top, as a container sees its own", "0::/\n", []map[string]string{group(top, "21474836480", "5368709120", "0")}, 14 * gib, "the control group /"},
		{"pages of files", "0::/a\n", []map[string]string{group(top+"/a", "21474836480", "5368709120", "4294967296")}, 18 * gib, "the control group /a"},
		{"a small group's margin", "0::/a\n", []map[string]string{group(top+"/a", "1073741824", "0", "0")}, gib - leastMargin, "the control group /a"},
		{"a full group", "0::/a\n", []map[string]string{group(top+"/a", "1073741824", "1073741824", "0")}, 0, "the control group /a"},
		{"version 1", "5:cpu,memory:/a\n4:memoryless:/b\n", []map[string]string{{
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "21474836480", "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "5368709120",
			"sys/fs/cgroup/memory/a/memory.stat":         "total_inactive_file 0",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
		}}, 14 * gib, "the control group /a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			files := append(tc.files, map[string]string{"proc/meminfo": meminfo})
			if tc.self != "" {
				files = append(files, map[string]string{"proc/self/cgroup": tc.self})
			}
			for _, list := range files {
				for name, text := range list {
					file := filepath.Join(root, name)
					if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			if got, err := free(root); err != nil || got != (Room{tc.want, tc.by}) {
				t.Errorf("%+v, %v; want %d by %s", got, err, tc.want, tc.by)
			}
		})
	}
}

// TestFreeOfDamage: a figure that is none is an error that names its file, and not room.
func TestFreeOfDamage(t *testing.T) {
	for _, tc := range []struct{ file, text string }{
		{"proc/meminfo", "MemTotal: many kB\n"}, {"sys/fs/cgroup/a/memory.max", "much"}, {"sys/fs/cgroup/a/memory.current", "-1"},
	} {
		t.Run(tc.file, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range map[string]string{
				"proc/meminfo": "MemTotal: 8 kB\nMemAvailable: 8 kB\n", "proc/self/cgroup": "0::/a\n",
				"sys/fs/cgroup/a/memory.max": "5", "sys/fs/cgroup/a/memory.current": "1", "sys/fs/cgroup/a/memory.stat": "",
			} {
				if name == tc.file {
					text = tc.text
				}
				file := filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := free(root); err == nil || !strings.Contains(err.Error(), filepath.Base(tc.file)) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// TestFreeHere: this machine has some room.
func TestFreeHere(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: Linux alone has /proc")
	}
	if room, err := Free(); err != nil || room.Bytes == 0 || room.By == "" {
		t.Errorf("%+v, %v", room, err)
	}
}
