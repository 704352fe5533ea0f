//go:build !race

package e2e

// raced: see race_test.go.
const raced = false
