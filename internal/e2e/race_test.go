//go:build race

package e2e

// raced reports whether the tests run with the race detector. If so, the daemon
// is built with it too.
const raced = true
