//go:build !race

package e2e

// raced is documented in race_test.go.
const raced = false
