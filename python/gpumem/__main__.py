"""python -m gpumem: the command."""

from ._command import main

main()
