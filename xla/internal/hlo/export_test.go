package hlo

// Text is an instruction as it is printed.
func Text(i *Instruction) string { return string(i.append(nil)) }
