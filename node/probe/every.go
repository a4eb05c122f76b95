package probe

import (
	"fmt"
	"time"
)

// least is the shortest time between two snapshots: each costs some milliseconds.
const least = 100 * time.Millisecond

// CheckEvery returns an error unless snapshots can be taken as often as this.
func CheckEvery(every time.Duration) error {
	if every < least || every > 24*time.Hour {
		return fmt.Errorf("--every %v: want a time from %v to 24h, such as 2s", every, least)
	}
	return nil
}
