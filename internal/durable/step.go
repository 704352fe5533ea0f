//go:build !metacni_steps

package durable

// Step is called before each system call that changes what is on disk, or who
// holds a lock, with the call and the file's name. It does nothing, unless it is
// built with the tag metacni_steps: see the end-to-end tests.
func Step(string, string) {}
