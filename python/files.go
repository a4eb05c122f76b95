// Package python has the files of the Python package that other parts of the project use, too.
package python

import "embed"

// Keepers is the search for what keeps a program's tensors, the module _keepers of the package
// gpumem with those that it imports.
//
//go:embed gpumem/_held.py gpumem/_keepers.py gpumem/_names.py gpumem/_reads.py gpumem/_size.py
var Keepers embed.FS
