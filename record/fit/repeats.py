# When the memory of a program repeats, in a run of gpumem fit. start.py has the rest.

# It repeats if the highest peak is some seconds old, and there were as many times the allocations
# since as before.
TIMES = 3

# How many refusals a program may need to find what fits: accelerate takes a tenth off each time. One
# that is refused more, such as each long batch, does not look for it.
SEARCH = 100


class Watch:
    """What was seen of the memory of a process. A refusal that the program has caught is as a new
    peak: it looks for what fits, and what it finds is to be seen."""

    def __init__(self, seconds):
        self.seconds, self.peak, self.refused, self.before, self.since = seconds, 0, 0, 0, 0.0

    def is_new(self, now, peak, allocations, refused):
        """Whether there is a new peak or refusal. The counts are those since the program began, the
        time is in seconds."""
        if peak <= self.peak and min(refused, SEARCH) <= self.refused:
            return False
        self.peak, self.refused, self.before, self.since = max(peak, self.peak), min(refused, SEARCH), allocations, now
        return True

    def repeats(self, now, allocations):
        return self.peak > 0 and allocations >= (1 + TIMES) * self.before and now - self.since > self.seconds
