package tape

import "gpumem/internal/input"

// Error describes bad input: what is wrong, and where.
type Error = input.Error
