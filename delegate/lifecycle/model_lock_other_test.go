//go:build !linux

package lifecycle

// lockIsHeld takes the word of the Manager for it.
func lockIsHeld(string) bool { return true }
