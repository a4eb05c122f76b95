//go:build !linux

package proc

import (
	"fmt"
	"time"
)

func look(pid int) (Info, error) { return Info{}, cannot(pid) }

func hostPIDs() bool { return true }

func opens(pid int, _ string) (bool, error) { return false, cannot(pid) }

func cannot(pid int) error {
	if err := check(pid); err != nil {
		return err
	}
	return fmt.Errorf("process %d: only Linux shows what another process is", pid)
}

func readStat(int) (Stat, bool)     { return Stat{}, false }
func self() Stat                    { return Stat{} }
func command(int) []string          { return nil }
func cgroup(int) string             { return "" }
func inner(int) (uint64, int, bool) { return 0, 0, false }
func uptime() time.Duration         { return 0 }
