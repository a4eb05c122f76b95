package doctortest

// Paraphrase returns a log in other words.
func Paraphrase(log string, n int) string { return log }
