//go:build race

package e2e

// raced says whether the tests run with the race detector: then so does the
// daemon, whose requests share a process.
const raced = true
