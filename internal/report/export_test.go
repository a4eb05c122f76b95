package report

// Apart is for the tests of labels.
var Apart = apart
