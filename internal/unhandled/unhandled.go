// Package unhandled gives signals their default action while nothing in a process waits for
// them. Go's runtime has a handler for each from its start: unless os/signal has asked for
// SIGQUIT it writes all stacks and ends with status 2, and it drops SIGUSR1, SIGUSR2 and SIGALRM.
package unhandled
