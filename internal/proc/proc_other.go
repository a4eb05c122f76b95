//go:build !linux

package proc

import "fmt"

func environ(pid int) ([]string, error) {
	if err := check(pid); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("process %d: only Linux shows the environment of another process", pid)
}

func frameworks(pid int) ([]Framework, error) {
	_, err := environ(pid)
	return nil, err
}

func loaded(pid int, _ string) ([]Library, error) {
	_, err := environ(pid)
	return nil, err
}
