package cri

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// wait looks at the log, and at the container's state before it: a container that has ended
// has printed all that it will.
func (c *Container) wait(ctx context.Context, prefix string) (lines []string, err error) {
	err = wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		s, err := c.Status(ctx)
		if err != nil {
			return false, err
		}
		if lines, err = c.Lines(); err != nil {
			return false, err
		}
		if prefix != "" {
			for _, l := range lines {
				if strings.HasPrefix(l, prefix) {
					return true, nil
				}
			}
		}
		if s.State == runtime.ContainerState_CONTAINER_EXITED {
			if prefix != "" {
				return false, fmt.Errorf("ended with %d (%s) and did not print %q", s.ExitCode, s.Reason, prefix)
			}
			return true, nil
		}
		return false, nil
	})
	if err != nil {
		err = fmt.Errorf("container %s/%s: %w; it printed:\n%s", c.pod.Name, c.ID, err, strings.Join(lines, "\n"))
	}
	return lines, err
}
