package dump

// What the tests outside of the package use.

type (
	Remat = remat
	Tag   = tag
)

var IsBinary = isBinary
